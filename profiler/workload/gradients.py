"""The error of dQ, dK and dV against float64, beside the error of eager PyTorch's own backward in the same dtype.

The float64 gradients are autograd's, of attention by its definition; every row of the heads compared counts. Beyond
``PAIRS`` query-key pairs, and beyond ``HEADS`` key heads, a subset of them, spread evenly, stands for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.reference import CHUNK_BYTES, reference_attention
from profiler.workload import accuracy

PAIRS = 2**31
HEADS = 32
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ExpectedGradients:
    """float64 (dQ, dK, dV) of each compared key head with its query heads, which (batch, key head) those are, that in
    words, eager PyTorch's worst relative error of the three."""

    gradients: list[Three]
    places: list[tuple[int, int]]
    words: str
    eager_relative: float

    def compare(self, output: Three) -> dict[str, Any]:
        """Error columns of (dQ, dK, dV): the worst of the three, each over all compared heads."""
        found = [parts(*output, place) for place in self.places]
        return accuracy.columns(
            all(bool(torch.isfinite(x).all()) for x in output),
            self.words,
            largest=max((a - b).abs().max().item() for f, g in zip(found, self.gradients) for a, b in zip(f, g)),
            error=worst(found, self.gradients),
            eager=self.eager_relative,
        )


def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, place: tuple[int, int]) -> Three:
    """One key head with its query heads: (1, G, Nq, D), (1, 1, Nk, D), (1, 1, Nk, D)."""
    b, h = place
    group = q.shape[1] // k.shape[1]
    return q[b : b + 1, h * group : (h + 1) * group], k[b : b + 1, h : h + 1], v[b : b + 1, h : h + 1]


def worst(found: list[Three], exact: list[Three]) -> float:
    """The largest ‖x − exact‖ / ‖exact‖ of dQ, dK and dV, each over all heads at once; 0/0 counts as 0."""
    errors = []
    for mine, true in zip(zip(*found), zip(*exact)):
        gap = sum((a.double() - b).square().sum().item() for a, b in zip(mine, true))
        size = sum(b.square().sum().item() for b in true)
        errors.append((gap / size) ** 0.5 if size else math.inf if gap else 0.0)
    return max(errors)


def choose_heads(q: torch.Tensor, k: torch.Tensor) -> tuple[list[tuple[int, int]], str]:
    """Which (batch, key head) to compare, and the same in words."""
    everything = [(b, h) for b in range(k.shape[0]) for h in range(k.shape[1])]
    each = q.shape[1] // k.shape[1] * q.shape[2] * k.shape[2]
    most = max(1, min(HEADS, PAIRS // max(1, each)))
    if len(everything) <= most:
        return everything, "all"
    chosen = [everything[i * (len(everything) - 1) // max(1, most - 1)] for i in range(most)]
    return chosen, f"all rows of {most} of {len(everything)} key heads"


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool,
          hidden: torch.Tensor | None = None) -> Three:
    """float64 (dQ, dK, dV); rows go in chunks, so that a long sequence needs time and not memory."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    totals, bias = [torch.zeros_like(x) for x in leaves], accuracy.as_bias(hidden)
    chunk = max(1, CHUNK_BYTES // (8 * max(1, k.shape[2]) * q.shape[1]))
    for rows in torch.arange(q.shape[2], device=q.device).split(chunk):
        with torch.enable_grad():
            out, _ = reference_attention(*leaves, causal=causal and hidden is None, rows=rows, attn_bias=bias)
        for total, part in zip(totals, torch.autograd.grad(out, leaves, dout[:, :, rows].double())):
            total += part
    return totals[0], totals[1], totals[2]


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool,
          hidden: torch.Tensor | None = None) -> Three:
    """(dQ, dK, dV) of eager PyTorch: forward and backward round every step to the dtype of q."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        out = accuracy.eager(q, k, v, torch.arange(q.shape[2], device=q.device), causal, hidden)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    return dq, dk, dv


def expect(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool,
    hidden: torch.Tensor | None = None,
) -> ExpectedGradients:
    """What a backward must give on q, dout (B, H, Nq, D), k and v (B, Hk, Nk, D). hidden: as `accuracy.eager` takes it.
    """
    places, words = choose_heads(q, k)
    true, plain = [], []
    for place in places:
        some, (d_some, _, _) = parts(q, k, v, place), parts(dout, k, v, place)
        own = hidden if hidden is None or len(hidden) == 1 else hidden[place[0] : place[0] + 1]
        true.append(exact(*some, d_some, causal, own))
        plain.append(eager(*some, d_some, causal, own))
    return ExpectedGradients(true, places, words, worst(plain, true))
