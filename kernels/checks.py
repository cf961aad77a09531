"""What every attention function checks before it launches anything."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.errors import UnsupportedCall


def check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dtypes: tuple[torch.dtype, ...] | None = None,
                 head_dims: range | None = None, unit_stride: bool = False) -> None:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), one floating dtype and device, Hk dividing H; else UnsupportedCall."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedCall(name, "a torch.Tensor", type(tensor).__name__)
        if tensor.ndim != 4:
            raise UnsupportedCall(name, "4 dimensions (batch, heads, tokens, head_dim)", f"shape {tuple(tensor.shape)}")
        if tensor.dtype != q.dtype:
            raise UnsupportedCall(name, f"the dtype of q, {q.dtype}", f"{tensor.dtype}")
        if tensor.device != q.device:
            raise UnsupportedCall(name, f"the device of q, {q.device}", f"{tensor.device}")
    if not q.dtype.is_floating_point:
        raise UnsupportedCall("q", "a floating-point dtype", f"{q.dtype}")
    if dtypes is not None and q.dtype not in dtypes:
        raise UnsupportedCall("q", f"one of {', '.join(map(str, dtypes))}", f"{q.dtype}")
    batch, heads, _, head_dim = q.shape
    kv_heads, nk = k.shape[1], k.shape[2]
    if k.shape[0] != batch:
        raise UnsupportedCall("k", f"batch {batch} as q has", f"shape {tuple(k.shape)}")
    if k.shape[3] != head_dim:
        raise UnsupportedCall("k", f"head_dim {head_dim} as q has", f"shape {tuple(k.shape)}")
    if v.shape != k.shape:
        raise UnsupportedCall("v", f"the shape of k, {tuple(k.shape)}", f"{tuple(v.shape)}")
    if kv_heads == 0 or heads % kv_heads:
        raise UnsupportedCall("k", f"a number of heads that divides the {heads} heads of q", f"{kv_heads}")
    if head_dim < 1 or (head_dims is not None and head_dim not in head_dims):
        known = f"{head_dims[0]} to {head_dims[-1]}" if head_dims else "of at least 1"
        raise UnsupportedCall("q", f"head_dim {known}", f"{head_dim}")
    if unit_stride:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            if tensor.stride(3) != 1 and head_dim > 1:
                raise UnsupportedCall(name, "stride 1 in the last dimension", f"strides {tensor.stride()}",
                                      f"Pass {name}.contiguous().")
    if nk >= 1 << 30 or q.shape[2] >= 1 << 30:
        raise UnsupportedCall("q" if nk < 1 << 30 else "k", "fewer than 2^30 tokens", f"{max(nk, q.shape[2])}")


def check_like(name: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    """``tensor`` has the shape, dtype and device of ``like``; else UnsupportedCall."""
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedCall(name, "a torch.Tensor", type(tensor).__name__)
    for what in ("shape", "dtype", "device"):
        if getattr(tensor, what) != getattr(like, what):
            raise UnsupportedCall(name, f"{what} {getattr(like, what)}", f"{getattr(tensor, what)}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UnsupportedCall(name, "True or False", repr(value))


def resolve_window(window: object, causal: bool) -> tuple[int, int]:
    """(left, right) keys around a query's own, -1 unlimited; causal is right = 0."""
    sides: Any = window
    try:
        left, right = sides
    except (TypeError, ValueError):
        raise UnsupportedCall("window", "a pair (left, right)", repr(window)) from None
    if any(isinstance(side, bool) or not isinstance(side, int) or side < -1 for side in (left, right)):
        raise UnsupportedCall("window", "whole numbers of at least -1", repr(window))
    return left, (0 if causal else right)


def resolve_scale(scale: float | None, head_dim: int) -> float:
    """The softmax scale: 1/sqrt(head_dim) unless given; finite."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise UnsupportedCall("scale", "a finite number or None", repr(scale))
    return float(scale)
