"""Named suites: what to profile, as a list of configurations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

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
    """Time and bytes over length: five implementations, six lengths, two masks, two head sizes."""
    return sweep((*UNFUSED, *FUSED), LENGTHS)


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
PACKAGES = ("flex_attention", "fa2", "fa3", "fa4", "xformers", "flashinfer")


def peers() -> list[RunConfig]:
    """flash2 beside every other implementation that is installed: B1 H16 bf16."""
    return sweep((*FUSED, *PACKAGES), (4096, 16384))


SUITES: dict[str, Callable[[], list[RunConfig]]] = {
    "quick": quick,
    "evidence": evidence,
    "scaling": scaling,
    "tuning": tuning,
    "backward": backward,
    "decode": decode,
    "peers": peers,
}


def suite(name: str) -> list[RunConfig]:
    """The configurations of a named suite; raises BadInput for another name."""
    if name not in SUITES:
        raise BadInput(f"--suite: expected one of {', '.join(SUITES)}, got {name!r}.")
    return SUITES[name]()
