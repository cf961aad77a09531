"""Attention that materialises S and P in memory: what FlashAttention is compared with, in two forms.

As written, every step is a launch of its own that reads and writes N×N matrices in HBM:
    scores q·kᵀ (write) · scale (read, write) · mask, if causal (read, write) · softmax (read, write) · values (read):
six N×N passes, eight when causal. Folded, the best that does not fuse the matmuls: the scale is the first matmul's
alpha and the softmax masks while it reads, so scores (write) · softmax (read, write) · values (read): four passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache

import torch

from kernels.checks import check_flag, check_inputs, resolve_scale

Stage = Callable[[str], AbstractContextManager]


def no_stage(name: str) -> AbstractContextManager:
    return contextlib.nullcontext()


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                    scale: float | None = None, fold_scale: bool = False, stage: Stage | None = None) -> torch.Tensor:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), one floating dtype, Hk dividing H -> (B, H, Nq, D), contiguous.

    causal: bottom-right aligned. Rows that see no key are 0. scale: 1/sqrt(D) unless given.
    stage: called with "scores", "scale", "mask", "softmax" and "values", gives the context each step runs in.
    The matmuls take contiguous inputs as they are; other strides may cost a copy inside torch.bmm's preparation.
    fold_scale with causal runs a Triton kernel: a CUDA device or Triton's interpreter, else UnsupportedCall.
    """
    check_inputs(q, k, v)
    check_flag("causal", causal)
    check_flag("fold_scale", fold_scale)
    scale = resolve_scale(scale, q.shape[3])
    stage = stage or no_stage
    batch, heads, nq, head_dim = q.shape
    kv_heads, nk = k.shape[1], k.shape[2]
    if fold_scale and causal:
        from kernels import masked_softmax

        masked_softmax.check(q, nk)
    blind = blind_rows(nq, nk, causal)
    if blind:
        # Their softmax would be NaN; leaving them out keeps the number of N×N passes as it is.
        seen = naive_attention(q[:, :, blind:], k, v, causal=causal, scale=scale, fold_scale=fold_scale,
                               stage=stage) if blind < nq else q[:, :, nq:]
        return torch.cat([q.new_zeros((batch, heads, blind, head_dim)), seen], dim=2)
    if q.numel() == 0:
        return torch.empty_like(q, memory_format=torch.contiguous_format)

    # The query heads that share a key head are stacked along the rows: grouped heads need no copy of k and v.
    rows = q.reshape(batch * kv_heads, heads // kv_heads * nq, head_dim)
    keys = k.reshape(batch * kv_heads, nk, head_dim).transpose(1, 2)
    values = v.reshape(batch * kv_heads, nk, head_dim)
    p = weights(rows, keys, nq, causal, scale, fold_scale, stage)
    with stage("values"):
        out = torch.bmm(p, values)
    return out.view(batch, heads, nq, head_dim)


def blind_rows(nq: int, nk: int, causal: bool) -> int:
    """How many leading rows see no key."""
    return nq if nk == 0 else max(0, nq - nk) if causal else 0


def weights(rows: torch.Tensor, keys: torch.Tensor, nq: int, causal: bool, scale: float, fold_scale: bool,
            stage: Stage) -> torch.Tensor:
    """P (X, group · nq, nk) of rows (X, group · nq, D) and keys (X, D, nk), all of which see a key."""
    nk = keys.shape[2]
    if fold_scale:
        with stage("scores"):
            # beta=0: the first argument is neither read nor copied.
            scores = torch.baddbmm(rows.new_empty((1, 1, 1)), rows, keys, beta=0, alpha=scale)
        with stage("softmax"):
            if not causal:
                return torch.softmax(scores, dim=-1)
            from kernels import masked_softmax

            return masked_softmax.causal_softmax(scores, nq)
    mask = hidden(nq, nk, rows.device) if causal else None
    with stage("scores"):
        scores = torch.bmm(rows, keys)
    with stage("scale"):
        scores = scores * scale
    if mask is not None:
        with stage("mask"):
            # In place: out of place PyTorch copies first, which would be two passes more.
            scores.view(-1, nq, nk).masked_fill_(mask, float("-inf"))
    with stage("softmax"):
        return torch.softmax(scores, dim=-1)


@lru_cache(maxsize=1)
def hidden(nq: int, nk: int, device: torch.device) -> torch.Tensor:
    """The causal mask (nq, nk), True where hidden. Kept: a warmed-up call launches its steps alone."""
    return torch.ones((nq, nk), dtype=torch.bool, device=device).triu_(nk - nq + 1)
