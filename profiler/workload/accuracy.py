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


def choose_rows(nq: int) -> tuple[list[int], str]:
    """Which query rows to compare, and the same in words."""
    if nq <= ALL_ROWS:
        return list(range(nq)), "all"
    return [i * (nq - 1) // (SAMPLE - 1) for i in range(SAMPLE)], f"{SAMPLE} of {nq}, evenly spread"


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, causal: bool) -> torch.Tensor:
    """Rows ``rows`` of attention in eager PyTorch: every step rounds to the dtype of q, as the unfused form does."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q[:, :, rows] @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    if causal:
        last = rows[:, None] + k.shape[2] - q.shape[2]
        scores = scores.masked_fill(torch.arange(k.shape[2], device=q.device) > last, -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def relative(output: torch.Tensor, exact: torch.Tensor) -> float:
    """‖output − exact‖ / ‖exact‖."""
    return ((output.double() - exact).norm() / exact.norm()).item()


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Expected:
    """What an implementation must give on q (B, H, Nq, D), k and v (B, Hk, Nk, D)."""
    numbers, words = choose_rows(q.shape[2])
    rows = torch.tensor(numbers, dtype=torch.int64, device=q.device)
    exact, _ = reference_attention(q, k, v, causal=causal, rows=rows)
    return Expected(exact, rows, words, relative(eager(q, k, v, rows, causal), exact))


def compare(output: torch.Tensor, expected: Expected) -> dict[str, Any]:
    """Error columns of one output; ``finite`` is False where any element of the whole output is NaN or infinite."""
    found = output[:, :, expected.rows].double()
    errors = {
        "error_max_abs": (found - expected.output).abs().max().item(),
        "error_relative": relative(found, expected.output),
        "error_eager_relative": expected.eager_relative,
    }
    return {
        "finite": bool(torch.isfinite(output).all()),
        "error_rows": expected.words,
        **{name: value if math.isfinite(value) else None for name, value in errors.items()},
    }
