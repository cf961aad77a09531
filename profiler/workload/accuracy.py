"""The error of an output against float64, beside the error that eager PyTorch makes in the same dtype.

Up to ``ALL_ROWS`` queries every row is compared, beyond it ``SAMPLE`` rows spread evenly, first and last included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.reference import reference_attention

ALL_ROWS = 2048
SAMPLE = 256


@dataclass(frozen=True)
class Expected:
    """float64 O (B, H, R, D) of query rows ``rows`` (R,), those in words, eager PyTorch's relative error there."""

    output: torch.Tensor
    rows: torch.Tensor
    words: str
    eager_relative: float

    def compare(self, output: torch.Tensor) -> dict[str, Any]:
        """Error columns of one output; ``finite`` is False where any element of the whole output is NaN or infinite."""
        found = output[:, :, self.rows].double()
        return columns(
            bool(torch.isfinite(output).all()),
            self.words,
            largest=(found - self.output).abs().max().item(),
            error=relative(found, self.output),
            eager=self.eager_relative,
        )


def choose_rows(nq: int) -> tuple[list[int], str]:
    """Which query rows to compare, and the same in words."""
    if nq <= ALL_ROWS:
        return list(range(nq)), "all"
    return [i * (nq - 1) // (SAMPLE - 1) for i in range(SAMPLE)], f"{SAMPLE} of {nq}, evenly spread"


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, causal: bool,
          hidden: torch.Tensor | None = None) -> torch.Tensor:
    """Rows ``rows`` of attention in eager PyTorch: every step rounds to the dtype of q, as the unfused form does.
    hidden: the pairs that are not seen, bool (B or 1, 1, Nq, Nk), in the place of causal."""
    batch, heads, nq, head_dim = q.shape
    kv_heads, nk = k.shape[1:3]
    # The query heads that share a key head are rows of one product: no copy of k and v for each of them.
    scores = q[:, :, rows].reshape(batch, kv_heads, -1, head_dim) @ k.transpose(-1, -2) / math.sqrt(head_dim)
    scores = scores.view(batch, heads, -1, nk)
    sees = torch.ones(len(rows), 1, dtype=torch.bool, device=q.device)
    if hidden is not None:
        sees = ~hidden[:, :, rows].all(-1, keepdim=True)
        scores = scores.masked_fill(hidden[:, :, rows], torch.finfo(q.dtype).min)
    elif causal:
        last = rows[:, None] + nk - nq
        sees = last >= 0
        scores = scores.masked_fill(torch.arange(nk, device=q.device) > last, torch.finfo(q.dtype).min)
    weights = torch.softmax(scores, -1).view(batch, kv_heads, -1, nk)
    return (weights @ v).view(batch, heads, -1, head_dim) * sees


def relative(output: torch.Tensor, exact: torch.Tensor) -> float:
    """‖output − exact‖ / ‖exact‖."""
    return ((output.double() - exact).norm() / exact.norm()).item()


def as_bias(hidden: torch.Tensor | None) -> torch.Tensor | None:
    """0 where a pair is seen, -inf where it is not."""
    if hidden is None:
        return None
    return torch.zeros(hidden.shape, dtype=torch.float16, device=hidden.device).masked_fill_(hidden, -torch.inf)


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
           hidden: torch.Tensor | None = None) -> Expected:
    """What an implementation must give on q (B, H, Nq, D), k and v (B, Hk, Nk, D). hidden: as `eager` takes it."""
    numbers, words = choose_rows(q.shape[2])
    rows = torch.tensor(numbers, dtype=torch.int64, device=q.device)
    exact, _ = reference_attention(q, k, v, causal=causal and hidden is None, rows=rows, attn_bias=as_bias(hidden))
    return Expected(exact, rows, words, relative(eager(q, k, v, rows, causal, hidden), exact))


def columns(finite: bool, words: str, *, largest: float, error: float, eager: float) -> dict[str, Any]:
    """The error columns of a timings row; a value that is not finite is null."""
    errors = {"error_max_abs": largest, "error_relative": error, "error_eager_relative": eager}
    return {
        "finite": finite,
        "error_rows": words,
        **{name: value if math.isfinite(value) else None for name, value in errors.items()},
    }
