"""Attention of other packages, each loaded only where it is installed; one that is not is named with its install.

An adapter lays q (B, H, Nq, D), k and v (B, Hk, Nk, D) out as its package wants them, outside the timed call, and calls
it; the output is seen as O (B, H, Nq, D) again. Every package scales the scores by 1/√D by itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profiler.spec import AttentionShape
from profiler.workload.implementations import Refused

HALF = ("fp16", "bf16")


class Missing(Refused):
    """A package that is not installed, or not for this PyTorch; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """layout(x): one of q, k, v as the package takes it; call(q, k, v) on those; restore(out): O (B, H, Nq, D)."""

    layout: Callable[[Any], Any]
    call: Callable[[Any, Any, Any], Any]
    restore: Callable[[Any], Any]

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        """Everything at once, for autograd."""
        return self.restore(self.call(self.layout(q), self.layout(k), self.layout(v)))


@dataclass(frozen=True, slots=True)
class Peer:
    """modules: of these the first that is there is used; make: an Adapter from that module, the mask and the shape."""

    modules: tuple[str, ...]
    install: str
    make: Callable[[Any, bool, AttentionShape], Adapter]
    dtypes: tuple[str, ...] = HALF
    directions: tuple[str, ...] = ("forward", "backward")


def _tokens_first(call: Callable[[Any, Any, Any], Any]) -> Adapter:
    """A function on (B, N, H, D), which may give (O, LSE)."""

    def first(q: Any, k: Any, v: Any) -> Any:
        out = call(q, k, v)
        return out[0] if isinstance(out, tuple) else out

    return Adapter(lambda x: x.transpose(1, 2).contiguous(), first, lambda out: out.transpose(1, 2))


def _flash(module: Any, causal: bool, shape: AttentionShape) -> Adapter:
    """The calling form that versions 2, 3 and 4 share; their causal mask is aligned to the bottom right."""
    function = module.flash_attn_func
    return _tokens_first(lambda q, k, v: function(q, k, v, causal=causal))


def _xformers(module: Any, causal: bool, shape: AttentionShape) -> Adapter:
    if shape.heads != shape.kv_heads:
        raise Refused("xFormers takes grouped heads in five dimensions, which no adapter is written for")
    function = module.memory_efficient_attention
    bias = module.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    return _tokens_first(lambda q, k, v: function(q, k, v, attn_bias=bias))


def _flashinfer(module: Any, causal: bool, shape: AttentionShape) -> Adapter:
    """A function of one sequence on (N, H, D)."""
    if shape.batch != 1:
        raise Refused(f"FlashInfer's call for one sequence takes batch 1, got {shape.batch}")
    function = module.single_prefill_with_kv_cache
    return Adapter(
        lambda x: x[0].transpose(0, 1).contiguous(),
        lambda q, k, v: function(q, k, v, causal=causal),
        lambda out: out.transpose(0, 1)[None],
    )


def _flex(module: Any, causal: bool, shape: AttentionShape) -> Adapter:
    """torch's FlexAttention, compiled; the causal mask skips whole blocks and is aligned to the bottom right."""
    import torch
    import torch._dynamo

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


PEERS = {
    "flex_attention": Peer(("torch.nn.attention.flex_attention",), "update PyTorch", _flex, (*HALF, "fp32")),
    "fa2": Peer(("flash_attn.flash_attn_interface",), "pip install flash-attn --no-build-isolation", _flash),
    "fa3": Peer(("flash_attn_interface", "fa3_fwd_interface", "fa3_fwd"), "pip install fa3-fwd (forward only),"
                         " or build the folder hopper of Dao-AILab/flash-attention", _flash),
    "fa4": Peer(("flash_attn.cute",), "pip install flash-attn-4", _flash),
    "xformers": Peer(("xformers.ops.fmha",), "pip install xformers", _xformers, (*HALF, "fp32")),
    "flashinfer": Peer(("flashinfer",), "pip install flashinfer-python", _flashinfer, directions=("forward",)),
}


def adapter(name: str, causal: bool, shape: AttentionShape, direction: str) -> Adapter:
    """The adapter of a peer for this call. Raises Missing with how to install it, or Refused with its own reason."""
    peer = PEERS[name]
    if shape.dtype not in peer.dtypes:
        raise Refused(f"{name} takes {', '.join(peer.dtypes)}, got {shape.dtype}")
    if direction not in peer.directions:
        raise Refused(f"{name} has {', '.join(peer.directions)} only")
    broken = ""
    for module in peer.modules:
        try:
            return peer.make(importlib.import_module(module), causal, shape)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # it is there, and something that it needs is not
                broken = broken or f"it needs {error.name}"
        except (ImportError, OSError, AttributeError, RuntimeError) as error:  # built for another PyTorch or CUDA
            broken = broken or next(iter(str(error).splitlines()), type(error).__name__)[:160]
    state = f"installed, but cannot be used ({broken})" if broken else "not installed"
    raise Missing(f"{name} is {state}: {peer.install}")
