"""Softmax over rows that masks while it reads: the one kernel the best unfused attention needs beside two matmuls."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.errors import UnsupportedCall

LONGEST_ROW = 65_536  # one program holds a row in registers


@triton.jit(do_not_specialize=["nq", "nk"])
def _causal_softmax(scores, weights, nq, nk, BLOCK: tl.constexpr):
    """One row of softmax(S) with keys beyond the diagonal hidden; reads and writes the whole row once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < nk
    s = tl.load(scores + row * nk + columns, mask=inside, other=float("-inf")).to(tl.float32)
    s = tl.where(columns <= row % nq + nk - nq, s, float("-inf"))
    p = tl.exp2((s - tl.max(s, 0)) * 1.4426950408889634)
    p = p / tl.sum(p, 0)
    tl.store(weights + row * nk + columns, p.to(weights.dtype.element_ty), mask=inside)


INTERPRETED = not isinstance(_causal_softmax, triton.JITFunction)


def check(tensor: torch.Tensor, nk: int) -> None:
    if not tensor.is_cuda and not INTERPRETED:
        raise UnsupportedCall("q", "a CUDA tensor for fold_scale=True with causal=True (a Triton kernel masks)",
                              f"one on {tensor.device}", "Use fold_scale=False, or set TRITON_INTERPRET=1.")
    if INTERPRETED and tensor.dtype == torch.bfloat16:
        raise UnsupportedCall("q", "float16 or float32 in Triton's interpreter", "torch.bfloat16")
    if tensor.dtype == torch.float64:
        raise UnsupportedCall("q", "at most float32 for fold_scale=True with causal=True", "torch.float64",
                              "Use fold_scale=False.")
    if nk > LONGEST_ROW:
        raise UnsupportedCall("k", f"at most {LONGEST_ROW} tokens for fold_scale=True with causal=True", str(nk),
                              "Use fold_scale=False.")


def causal_softmax(scores: torch.Tensor, nq: int) -> torch.Tensor:
    """scores (..., nk) contiguous, rows cycling through nq queries that all see a key -> weights of the same shape."""
    return _Differentiable.apply(scores, nq)


class _Differentiable(torch.autograd.Function):
    """The kernel forward; backward PyTorch's own softmax backward, which gives 0 where the weight is 0."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, nq: int) -> torch.Tensor:
        weights = launch(scores, nq)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weights,) = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype), None


def launch(scores: torch.Tensor, nq: int) -> torch.Tensor:
    """The kernel alone."""
    nk = scores.shape[-1]
    weights = torch.empty_like(scores)
    block = triton.next_power_of_2(nk)
    with torch.cuda.device(scores.device) if scores.is_cuda else contextlib.nullcontext():
        _causal_softmax[(scores.numel() // nk,)](scores, weights, nq, nk, BLOCK=block,
                                                 num_warps=min(32, max(1, block // 1024)))
    return weights
