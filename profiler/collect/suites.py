"""Named suites: what to profile, as a list of configurations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from profiler.errors import BadInput
from profiler.spec import AttentionShape, RunConfig

UNFUSED = ("naive", "naive_folded")
FUSED = ("flash2", "sdpa_flash", "sdpa_cudnn")
EVERYTHING = (*UNFUSED, *FUSED, "sdpa_math")
MATH_LENGTHS = (1024, 2048, 4096)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def sweep(
    implementations: Sequence[str],
    lengths: Iterable[int],
    *,
    head_dims: Iterable[int] = (64, 128),
    masks: Iterable[str] = ("full", "causal"),
    dtypes: Iterable[str] = ("bf16",),
    batch: int = 1,
    heads: int = 16,
    kv_heads: int = 0,
    directions: Iterable[str] = ("forward",),
) -> list[RunConfig]:
    """Every combination, square shapes, shortest sequences first. An implementation is a name, or MODULE:FUNCTION."""
    head_dims, masks, dtypes, directions = tuple(head_dims), tuple(masks), tuple(dtypes), tuple(directions)
    for name in implementations:
        if ":" in name and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
            raise BadInput(f"--callable: expected MODULE:FUNCTION, got {name!r}.", remedy="As in mine:attention.")
    return [
        RunConfig(name, AttentionShape(batch, heads, n, n, d, kv_heads, dtype, mask), direction)
        for n in lengths
        for dtype in dtypes
        for d in head_dims
        for mask in masks
        for direction in directions
        for name in implementations
    ]


def evidence() -> list[RunConfig]:
    """What the recorded profile holds: B1 H16 bf16, so that S is 537 MB at N 4096, far above any L2.

    sdpa_math has up to 20 launches a call, half of all in the suite if it ran everywhere: three lengths show what it
    does. At N 16384 ncu would save and restore tens of gigabytes of its fp32 copies through the host. All are timed;
    a quarter of them is profiled, which every claim can be decided from.
    """
    return [c for c in sweep(EVERYTHING, LENGTHS) if c.implementation != "sdpa_math" or c.shape.nq in MATH_LENGTHS]


def counted(config: RunConfig) -> bool:
    """Whether the evidence suite profiles a configuration; the others are timed only.

    Claims judge one shape at a time, so that each can be decided from these; what they say of growth over N comes from
    timings, and the bytes at every length are the scaling suite's.
    """
    name, n = config.implementation, config.shape.nq
    if name == "sdpa_math":  # up to 20 launches a call
        return n == 1024 and config.shape.head_dim == 64 and config.shape.mask == "full"
    lengths = {"flash2": (1024, 4096, 16384), "naive": (1024, 4096)}
    return n in lengths.get(name, (4096,))


def timed_only(name: str | None) -> frozenset[str]:
    """The config_ids of a named suite that are timed and not profiled."""
    return frozenset(c.config_id for c in evidence() if not counted(c)) if name == "evidence" else frozenset()


def quick() -> list[RunConfig]:
    """One shape, in about a minute: B1 H16 N2048 D64 full."""
    return sweep((*UNFUSED, "flash2", "sdpa_flash"), (2048,), head_dims=(64,), masks=("full",))


def scaling() -> list[RunConfig]:
    """Time and bytes over length: six implementations, six lengths, two masks, two head sizes."""
    return sweep((*UNFUSED, "hopper", *FUSED), LENGTHS)


def bench() -> list[RunConfig]:
    """What `bench` times when nothing is named: everything at N 4096, full mask, both head sizes."""
    return sweep(EVERYTHING, (4096,), masks=("full",))


# (block_m, block_n): the pairs that introductions to FlashAttention compare.
BLOCKS = ((64, 64), (128, 64), (128, 128), (256, 64))


def tuning() -> list[RunConfig]:
    """flash2 over block sizes × warps × stages at B1 H16 N4096, D 64 and 128, full mask."""
    return [
        RunConfig(
            "flash2",
            AttentionShape(1, 16, 4096, 4096, d),
            parameters={"block_m": m, "block_n": n, "num_warps": warps, "num_stages": stages},
        )
        for d in (64, 128)
        for m, n in BLOCKS
        for warps in (4, 8)
        for stages in (2, 3)
    ]


def backward() -> list[RunConfig]:
    """The naive backward, P kept, beside those that recompute it: B1 H16 bf16."""
    return sweep(("naive", *FUSED), (1024, 2048, 4096), directions=("backward",))


def decode() -> list[RunConfig]:
    """A few queries at the end of long caches, H32/8 D128 bf16: batches 1, 8 and 32, then four queries, then naive."""

    def one(name: str, batch: int, n: int, nq: int = 1) -> RunConfig:
        return RunConfig(name, AttentionShape(batch, 32, nq, n, 128, kv_heads=8, mask="causal"))

    lengths = (4096, 32768)
    caches = [(name, batch, n) for n in lengths for batch in (1, 8, 32) for name in ("decode", "sdpa_flash")]
    return [*(one(*cache) for cache in caches), one("decode", 8, 32768, 4), *(one("naive", 1, n) for n in lengths)]


# Packages that a visitor may have installed, beside torch's own backends; one that is not there is named as missing.
PACKAGES = ("flex_attention", "fa2", "fa3", "fa4", "xformers", "flashinfer", "triton_tutorial")
HALF_PRECISION = ("flash2", "hopper", "sdpa_flash", "sdpa_cudnn", "fa3", "fa4", "triton_tutorial")
FLOAT8 = ("hopper", "fa3")
NO_BACKWARD = ("flashinfer", "triton_tutorial")
TOKENS, HIDDEN = 16_384, 2048


def peers(direction: str = "forward") -> list[RunConfig]:
    """Ours beside every other implementation that is installed: 16,384 tokens and hidden size 2048 at every length.

    bf16 with all of them, fp16 with those that lead there, fp8 with those that take it (forward only).
    """
    everyone = ("flash2", "hopper", "sdpa_flash", "sdpa_cudnn", *PACKAGES)
    measured = {"bf16": everyone, "fp16": HALF_PRECISION, "fp8": FLOAT8}
    if direction == "backward":
        measured = {dtype: tuple(name for name in names if name not in NO_BACKWARD)
                    for dtype, names in measured.items() if dtype != "fp8"}
    found = [
        config
        for dtype, names in measured.items()
        for n in (1024, 4096, 16384)
        for d in (64, 128)
        for config in sweep(names, (n,), head_dims=(d,), dtypes=(dtype,), batch=TOKENS // n, heads=HIDDEN // d,
                            directions=(direction,))
    ]
    fixed = [RunConfig("hopper", config.shape, direction, {"deterministic": True}) for config in found
             if direction == "backward" and config.implementation == "hopper"]  # flash2's sums have one order as it is
    return [*found, *fixed]


# What is packed into 16,384 tokens, and what a row of a window sees: its own key and so many before it, or beside it.
PACKED = (8192, 5003, 2048, 1024, 117)
WINDOWS = ((4096, "window:1023,0"), (16384, "window:1023,0"), (16384, "window:4095,0"), (16384, "window:1023,1023"))


def shapes() -> list[RunConfig]:
    """What grouped heads, windows and packed sequences cost beside plain attention, forward, bf16 and fp16.

    16,384 tokens of hidden size 2048, N 4096 and 16384: plain calls, windows, sequences packed, of one length and of
    several; 32 query heads on 8 key heads, at D 128 beside 32 on 32. A name with _varlen is called on packed sequences.
    """
    found: list[RunConfig] = []
    for dtype, d in product(("bf16", "fp16"), (64, 128)):
        heads, at = HIDDEN // d, partial(sweep, head_dims=(d,), dtypes=(dtype,))
        for n, (h, kv) in product((4096, 16384), ((heads, 0), (32, 0), (32, 8))):
            found += at(("hopper", "sdpa_cudnn", "fa3", "fa4"), (n,), batch=TOKENS // n, heads=h, kv_heads=kv)
        for n, mask in WINDOWS:
            found += at(("hopper", "fa3", "fa4"), (n,), masks=(mask,), batch=TOKENS // n, heads=heads)
        for lengths in ((4096,) * (TOKENS // 4096), PACKED):
            given = {"q_lengths": list(lengths), "k_lengths": list(lengths)}
            calls = at(("flash_varlen", "fa3_varlen", "fa4_varlen"), (max(lengths),), batch=len(lengths), heads=heads)
            found += [replace(config, parameters=given) for config in calls]
    return list({config.config_id: config for config in found}.values())


# One switch off at a time, beside all on (profiler.workload.ablation).
SWITCHED_OFF: tuple[dict[str, Any], ...] = (
    {}, {"folded": False}, {"edge_only": False}, {"staged": False}, {"ordered": False}, {"tma": False},
    {"num_stages": 1}, {"num_warps": 8})


def ablation() -> list[RunConfig]:
    """What each decision of the FlashAttention-2 forward is worth: all on, each off, and flash2 itself beside them."""
    return [
        config
        for d in (64, 128)
        for mask in ("full", "causal")
        for shape in [AttentionShape(TOKENS // 4096, HIDDEN // d, 4096, 4096, d, mask=mask)]
        for config in (*(RunConfig("ablation", shape, parameters=off) for off in SWITCHED_OFF),
                       RunConfig("flash2", shape))
    ]


# FlashAttention-3's ideas one after another on the Hopper kernel (kernels.hopper_plan.SWITCHES). What it starts from: a
# warp that loads by TMA, warpgroups that multiply, lists of tiles.
HOPPER_STEPS: tuple[dict[str, Any], ...] = (
    {"turns": False, "overlap": False, "fixed": False}, {"overlap": False, "fixed": False}, {"fixed": False}, {})


def ladder() -> list[RunConfig]:
    """FlashAttention-1, 2 and 3, one idea at a time: naive with the scale folded, the schedules of 1 and 2, the Hopper
    kernel with its loading warp alone, then in turns, then with the softmax under the matmuls, then with the first
    block's maximum; torch's flash and cuDNN beside them. N 4096, 16,384 tokens, hidden size 2048."""
    return [
        config
        for d in (64, 128)
        for mask in ("full", "causal")
        for shape in [AttentionShape(TOKENS // 4096, HIDDEN // d, 4096, 4096, d, mask=mask)]
        for config in (*(RunConfig(name, shape) for name in ("naive_folded", "flash1", "flash2")),
                       *(RunConfig("hopper", shape, parameters=off) for off in HOPPER_STEPS),
                       *(RunConfig(name, shape) for name in ("sdpa_flash", "sdpa_cudnn")))
    ]


def options() -> list[RunConfig]:
    """The price of what a call may ask of flash2: dropout and a bias in the forward, a fixed order of sums in the
    backward (one_pass adds by atomics), and fp16 beside bf16 over N."""
    shapes = [AttentionShape(1, 16, 4096, 4096, d, mask=mask) for d in (64, 128) for mask in ("full", "causal")]
    asked: tuple[dict[str, Any], ...] = ({}, {"dropout_p": 0.1}, {"attn_bias": 1}, {"attn_bias": True})
    forward = [RunConfig("flash2", shape, parameters=on) for shape in shapes for on in asked]
    ways: tuple[dict[str, Any], ...] = ({}, {"one_pass": True})
    backward = [RunConfig("flash2", shape, "backward", way) for shape in shapes for way in ways]
    both = sweep(("flash2",), LENGTHS, masks=("full",), dtypes=("bf16", "fp16"))
    return list({config.config_id: config for config in (*forward, *backward, *both)}.values())


def memory() -> list[RunConfig]:
    """The peak of a whole training step, forward and backward, over N: B1 H16 bf16 causal."""
    return [
        RunConfig("flash2", AttentionShape(1, 16, n, n, d, mask="causal"), "backward", {"training": True})
        for d in (64, 128)
        for n in (4096, 8192, 16384, 32768, 65536)
    ]


SUITES: dict[str, Callable[[], list[RunConfig]]] = {
    "quick": quick,
    "evidence": evidence,
    "scaling": scaling,
    "tuning": tuning,
    "backward": backward,
    "decode": decode,
    "peers": peers,
    "shapes": shapes,
    "ablation": ablation,
    "ladder": ladder,
    "options": options,
    "memory": memory,
}


METRICS = {"ladder": "stalls"}  # what else than the evidence set a suite counts when nothing is asked for


def suite(name: str, direction: str = "forward") -> list[RunConfig]:
    """The configurations of a named suite; raises BadInput for another name, and for the backward of a suite that has
    its own directions: only peers comes in both."""
    if name not in SUITES:
        raise BadInput(f"--suite: expected one of {', '.join(SUITES)}, got {name!r}.")
    if name == "peers":
        return peers(direction)
    if direction != "forward":
        raise BadInput(f"--direction: the suite {name} has its own, got {direction}.", remedy="Leave out --direction.")
    return SUITES[name]()


def narrowed(configs: Sequence[RunConfig], *, implementations: Sequence[str] = (), lengths: Sequence[int] = (),
             head_dims: Sequence[int] = (), masks: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[RunConfig]:
    """Those that have one of each of the given values, where any are given; raises BadInput where none is left."""
    kept = [
        c for c in configs
        if (not implementations or c.implementation in implementations) and (not lengths or c.shape.nk in lengths)
        and (not head_dims or c.shape.head_dim in head_dims) and (not masks or c.shape.mask in masks)
        and (not dtypes or c.shape.dtype in dtypes)
    ]
    if not kept:
        raise BadInput("--suite: it has no configuration with these values.", remedy="Leave out some of them.")
    return kept
