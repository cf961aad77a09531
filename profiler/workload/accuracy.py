"""The error of an output against float64, beside the error that eager PyTorch makes in the same dtype.

Up to ``ALL_ROWS`` queries every row is compared, beyond it ``SAMPLE`` rows spread evenly, first and last included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels import philox
from kernels.reference import reference_attention

ALL_ROWS = 2048
SAMPLE = 256
FP8_UNIT = 256  # what a row's largest weight becomes before it is rounded to float8: below the largest, 448


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
          hidden: torch.Tensor | None = None, attn_bias: torch.Tensor | None = None,
          keep: torch.Tensor | None = None) -> torch.Tensor:
    """Rows ``rows`` of attention in eager PyTorch: every step rounds to the dtype of q, as the unfused form does.
    hidden: the pairs that are not seen, bool (B or 1, 1, Nq, Nk), in the place of causal. attn_bias: (B or 1, H or 1,
    Nq, Nk), added to the scores. keep: (B, H, R, Nk), what dropout multiplies the weights of ``rows`` by.

    Float8 is multiplied as bf16, which holds its values exactly; P alone is rounded to it, times 256 so that small
    weights do not vanish, as fused kernels do."""
    if q.dtype == torch.float8_e4m3fn:
        return _eager(q.bfloat16(), k.bfloat16(), v.bfloat16(), rows, causal, hidden, attn_bias, keep, q.dtype)
    return _eager(q, k, v, rows, causal, hidden, attn_bias, keep)


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, causal: bool,
           hidden: torch.Tensor | None, attn_bias: torch.Tensor | None, keep: torch.Tensor | None,
           weights_dtype: torch.dtype | None = None) -> torch.Tensor:
    batch, heads, nq, head_dim = q.shape
    kv_heads, nk = k.shape[1:3]
    # The query heads that share a key head are rows of one product: no copy of k and v for each of them.
    scores = q[:, :, rows].reshape(batch, kv_heads, -1, head_dim) @ k.transpose(-1, -2) / math.sqrt(head_dim)
    scores = scores.view(batch, heads, -1, nk)
    if attn_bias is not None:
        scores = scores + attn_bias[:, :, rows]
    sees = torch.ones(len(rows), 1, dtype=torch.bool, device=q.device)
    if hidden is not None:
        sees = ~hidden[:, :, rows].all(-1, keepdim=True)
        scores = scores.masked_fill(hidden[:, :, rows], torch.finfo(q.dtype).min)
    elif causal:
        last = rows[:, None] + nk - nq
        sees = last >= 0
        scores = scores.masked_fill(torch.arange(nk, device=q.device) > last, torch.finfo(q.dtype).min)
    weights = torch.softmax(scores, -1)
    if keep is not None:
        weights = weights * keep.to(weights.dtype)
    weights = weights.view(batch, kv_heads, -1, nk)
    if weights_dtype:
        largest = weights.amax(-1, keepdim=True) / FP8_UNIT
        weights = (weights / largest).to(weights_dtype).to(q.dtype) * largest
    return (weights @ v).view(batch, heads, -1, head_dim) * sees


def relative(output: torch.Tensor, exact: torch.Tensor) -> float:
    """‖output − exact‖ / ‖exact‖."""
    return ((output.double() - exact).norm() / exact.norm()).item()


def as_bias(hidden: torch.Tensor | None) -> torch.Tensor | None:
    """0 where a pair is seen, -inf where it is not."""
    if hidden is None:
        return None
    return torch.zeros(hidden.shape, dtype=torch.float16, device=hidden.device).masked_fill_(hidden, -torch.inf)


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, hidden: torch.Tensor | None = None, *,
           attn_bias: torch.Tensor | None = None, dropout_p: float = 0.0, seed: int = 0) -> Expected:
    """What an implementation must give on q (B, H, Nq, D), k and v (B, Hk, Nk, D). hidden: as `eager` takes it; the
    options as kernels.flash_attention does."""
    numbers, words = choose_rows(q.shape[2])
    rows = torch.tensor(numbers, dtype=torch.int64, device=q.device)
    wide = [x.bfloat16() if x.dtype == torch.float8_e4m3fn else x for x in (q, k, v)]  # it cannot be indexed by rows
    bias = as_bias(hidden)
    if attn_bias is not None:
        bias = attn_bias if bias is None else attn_bias + bias
    exact, _ = reference_attention(*wide, causal=causal and hidden is None, rows=rows, attn_bias=bias,
                                   dropout_p=dropout_p, seed=seed)
    keep = kept_weights(q, k, numbers, dropout_p, seed) if dropout_p else None
    return Expected(exact, rows, words, relative(eager(q, k, v, rows, causal, hidden, attn_bias, keep), exact))


def kept_weights(q: torch.Tensor, k: torch.Tensor, rows: list[int], p: float, seed: int) -> torch.Tensor:
    """What dropout multiplies the weights of ``rows`` by, float32 (B, H, R, Nk)."""
    found = [[philox.kept(seed, p, b, h, np.asarray(rows), k.shape[2]) for h in range(q.shape[1])]
             for b in range(q.shape[0])]
    return torch.from_numpy(np.asarray(found)).to(q.device) / (1 - p)


def columns(finite: bool, words: str, *, largest: float, error: float, eager: float) -> dict[str, Any]:
    """The error columns of a timings row; a value that is not finite is null."""
    errors = {"error_max_abs": largest, "error_relative": error, "error_eager_relative": eager}
    return {
        "finite": finite,
        "error_rows": words,
        **{name: value if math.isfinite(value) else None for name, value in errors.items()},
    }
