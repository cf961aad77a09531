"""Attention of other packages, each loaded only where it is installed; one that is not is named with its install.

An adapter lays q (B, H, Nq, D), k and v (B, Hk, Nk, D) out as its package wants them, outside the timed call, and calls
it; the output is seen as O (B, H, Nq, D) again. A backward is timed in that layout too, dO laid out beforehand. Every
package scales the scores by 1/√D by itself, unless it is told. Float8 tensors stand for themselves: scales are 1.
Names in PACKED are the same packages called on packed sequences, of the lengths that the configuration has.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from profiler.spec import RunConfig
from profiler.workload import patterns
from profiler.workload.implementations import Refused, is_causal

HALF = ("fp16", "bf16")
PACKED = ("fa3_varlen", "fa4_varlen")
LENGTHS = ("q_lengths", "k_lengths")
WORKSPACE_BYTES = 128 * 2**20  # what FlashInfer's documentation gives its wrappers


class Missing(Refused):
    """A package that is not installed, or not for this PyTorch; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """layout(x): one of q, k, v as the package takes it; call(q, k, v) on those; restore(out): O (B, H, Nq, D)."""

    layout: Callable[[Any], Any]
    call: Callable[[Any, Any, Any], Any]
    restore: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """modules: of these the first that is there is used; make: an Adapter from that module for a configuration."""

    modules: tuple[str, ...]
    install: str
    make: Callable[[Any, RunConfig], Adapter]
    dtypes: tuple[str, ...] = HALF
    directions: tuple[str, ...] = ("forward", "backward")


def _tokens_first(call: Callable[[Any, Any, Any], Any]) -> Adapter:
    """A function on (B, N, H, D), which may give (O, LSE)."""

    def first(q: Any, k: Any, v: Any) -> Any:
        out = call(q, k, v)
        return out[0] if isinstance(out, tuple) else out

    return Adapter(lambda x: x.transpose(1, 2).contiguous(), first, lambda out: out.transpose(1, 2))


def _sides(config: RunConfig, unlimited: int | None) -> dict[str, Any]:
    """The mask as versions 2, 3 and 4 take it, aligned to the bottom right; unlimited: what stands for a side of -1."""
    sides = patterns.window(config)
    if sides is None:
        return {"causal": patterns.causal(config)}
    return {"causal": False, "window_size": tuple(unlimited if side < 0 else side for side in sides)}


def _flash(module: Any, config: RunConfig, unlimited: int | None = -1) -> Adapter:
    """The calling form that versions 2, 3 and 4 share."""
    function, sides = module.flash_attn_func, _sides(config, unlimited)
    return _tokens_first(lambda q, k, v: function(q, k, v, **sides))


def _packed(module: Any, config: RunConfig, unlimited: int | None = -1) -> Adapter:
    """The same of the function on packed sequences, (tokens, H, D); where each begins is told once, beforehand."""
    import torch

    if any(nq != nk for nq, nk in config.lengths):
        raise Refused("packed peers are called with as many keys as queries in each sequence")
    lengths, longest = [n for n, _ in config.lengths], config.shape.nq
    ends, sides = [0, *itertools.accumulate(lengths)], _sides(config, unlimited)
    places: dict[str, Any] = {}

    def call(q: Any, k: Any, v: Any) -> Any:
        if not places:
            starts = torch.tensor(ends, dtype=torch.int32, device=q.device)
            places.update({f"cu_seqlens_{x}": starts for x in "qk"} | {f"max_seqlen_{x}": max(lengths) for x in "qk"})
        out = module.flash_attn_varlen_func(q, k, v, **places, **sides)
        return out[0] if isinstance(out, tuple) else out

    def restore(out: Any) -> Any:
        whole = out.new_zeros(len(lengths), longest, *out.shape[1:])
        for one, n, begin in zip(whole, lengths, ends):
            one[:n] = out[begin:begin + n]
        return whole.transpose(1, 2)

    return Adapter(lambda x: torch.cat([one[:, :n].transpose(0, 1) for one, n in zip(x, lengths)]), call, restore)


def _flash3(module: Any, config: RunConfig, make: Callable[[Any, RunConfig], Adapter] = _flash) -> Adapter:
    """Version 3, of which builds leave parts out and say so in a module of their own; float8 comes with a factor for
    each of q, k and v, a batch and key head (B, Hk), float32."""
    import torch

    shape = config.shape
    for part in ("FP16", "FP8"):
        if shape.dtype == part.lower() and _left_out(module, part):
            raise Refused(f"this build of fa3 was made without {shape.dtype}")
    if patterns.window(config) and _left_out(module, "LOCAL"):
        raise Refused("this build of fa3 was made without windows")
    if shape.dtype != "fp8":
        return make(module, config)
    function, sides = module.flash_attn_func, _sides(config, -1)
    factors: dict[str, Any] = {}

    def call(q: Any, k: Any, v: Any) -> Any:
        if not factors:
            one = torch.ones(shape.batch, shape.kv_heads, device=q.device)
            factors.update(q_descale=one, k_descale=one, v_descale=one)
        return function(q, k, v, **sides, **factors)

    return _tokens_first(call)


def _left_out(module: Any, part: str) -> bool:
    """Whether a build of version 3 says that it was made without ``part``; one that says nothing has it."""
    try:
        config = importlib.import_module(module.__name__.replace("interface", "config")).CONFIG
    except (ImportError, AttributeError):
        return False
    return bool(config.get("build_flags", {}).get(f"FLASHATTENTION_DISABLE_{part}"))


def _tutorial(module: Any, config: RunConfig) -> Adapter:
    """The kernel of Triton's tutorial, as it sets itself up: (B, H, N, D), square, fp16, the scale given."""
    shape, causal = config.shape, is_causal(config)
    if (shape.nq, shape.heads) != (shape.nk, shape.kv_heads):
        raise Refused("the tutorial's kernel takes Nq = Nk and as many key heads as query heads")
    function, scale = module.attention, 1 / math.sqrt(shape.head_dim)
    return Adapter(lambda x: x, lambda q, k, v: function(q, k, v, causal, scale), lambda out: out)


def _xformers(module: Any, config: RunConfig) -> Adapter:
    causal = is_causal(config)
    if config.shape.heads != config.shape.kv_heads:
        raise Refused("xFormers takes grouped heads in five dimensions, which no adapter is written for")
    function = module.memory_efficient_attention
    bias = module.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    return _tokens_first(lambda q, k, v: function(q, k, v, attn_bias=bias))


def _flashinfer(module: Any, config: RunConfig) -> Adapter:
    """Sequences one after the other, (B·N, H, D); how they are shared out is planned once, outside the timed call."""
    import torch

    shape, causal = config.shape, is_causal(config)
    planned: list[Any] = []

    def call(q: Any, k: Any, v: Any) -> Any:
        if not planned:
            room = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
            wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD")
            starts = [torch.arange(shape.batch + 1, dtype=torch.int32, device=q.device) * n
                      for n in (shape.nq, shape.nk)]
            wrapper.plan(*starts, shape.heads, shape.kv_heads, shape.head_dim, causal=causal, q_data_type=q.dtype)
            planned.append(wrapper)
        return planned[0].run(q, k, v)

    return Adapter(
        lambda x: x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]).contiguous(),
        call,
        lambda out: out.view(shape.batch, -1, *out.shape[1:]).transpose(1, 2),
    )


def _flex(module: Any, config: RunConfig) -> Adapter:
    """torch's FlexAttention, compiled; the causal mask skips whole blocks and is aligned to the bottom right."""
    import torch
    import torch._dynamo

    shape, causal = config.shape, is_causal(config)
    # A suite has more shapes than torch compiles one function for; beyond its limit it would run the unfused form.
    torch._dynamo.config.recompile_limit = max(256, torch._dynamo.config.recompile_limit)
    options: dict[str, Any] = {"enable_gqa": True} if shape.heads != shape.kv_heads else {}
    if causal:
        shift = shape.nk - shape.nq

        def sees(batch: Any, head: Any, i: Any, j: Any) -> Any:
            return j <= i + shift

        device = "cuda" if torch.cuda.is_available() else "cpu"
        options["block_mask"] = module.create_block_mask(sees, None, None, shape.nq, shape.nk, device=device)
    compiled = torch.compile(module.flex_attention, dynamic=False, fullgraph=True)
    return Adapter(lambda x: x, lambda q, k, v: compiled(q, k, v, **options), lambda out: out)


FLASH3 = (("flash_attn_interface", "fa3_fwd_interface"),
          "pip install fa3-fwd (forward only), or build the folder hopper of Dao-AILab/flash-attention")
FLASH4 = (("flash_attn.cute",), "pip install --pre flash-attn-4[cu13]")
PEERS = {
    "flex_attention": Peer(("torch.nn.attention.flex_attention",), "update PyTorch", _flex, (*HALF, "fp32")),
    "fa2": Peer(("flash_attn.flash_attn_interface",), "pip install flash-attn --no-build-isolation", _flash),
    "fa3": Peer(*FLASH3, _flash3, (*HALF, "fp8")),
    "fa4": Peer(*FLASH4, partial(_flash, unlimited=None)),
    "fa3_varlen": Peer(*FLASH3, partial(_flash3, make=_packed)),
    "fa4_varlen": Peer(*FLASH4, partial(_packed, unlimited=None)),
    "xformers": Peer(("xformers.ops.fmha",), "pip install xformers", _xformers, (*HALF, "fp32")),
    "flashinfer": Peer(("flashinfer",), "pip install flashinfer-python", _flashinfer, directions=("forward",)),
    "triton_tutorial": Peer(("06-fused-attention",), "put the folder that holds Triton's tutorial 06-fused-attention.py"
                            " on PYTHONPATH", _tutorial, ("fp16",), ("forward",)),
}


def adapter(config: RunConfig) -> Adapter:
    """The adapter of a peer for this call. Raises Missing with how to install it, or Refused with its own reason."""
    name, direction = config.implementation, config.direction
    peer = PEERS[name]
    if config.shape.dtype not in peer.dtypes:
        raise Refused(f"{name} takes {', '.join(peer.dtypes)}, got {config.shape.dtype}")
    if direction not in peer.directions:
        raise Refused(f"{name} has {', '.join(peer.directions)} only")
    broken = ""
    for module in peer.modules:
        try:
            found = importlib.import_module(module)
            if direction == "backward" and name.startswith("fa3") and _left_out(found, "BACKWARD"):
                raise Refused("this build of fa3 was made without the backward")
            return peer.make(found, config)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # it is there, and something that it needs is not
                broken = broken or f"it needs {error.name}"
        except (ImportError, OSError, AttributeError, RuntimeError) as error:  # built for another PyTorch or CUDA
            broken = broken or next(iter(str(error).splitlines()), type(error).__name__)[:160]
    state = f"installed, but cannot be used ({broken})" if broken else "not installed"
    raise Missing(f"{name} is {state}: {peer.install}")
