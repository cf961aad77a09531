"""Attention by its definition, in float64, on any device: the specification every implementation is compared with.

    S = q·kᵀ·scale, masked;   P = softmax(S);   O = P·v;   LSE = log Σ exp S

Query i of nq sees key j of nk if i + nk - nq - left <= j <= i + nk - nq + right (bottom-right aligned; -1: unlimited);
`causal` is right = 0. A row that sees no key has O = 0 and LSE = -inf.
"""

from __future__ import annotations

import torch

from kernels.checks import check_flag, check_inputs, resolve_scale
from kernels.errors import UnsupportedCall

CHUNK_BYTES = 1 << 28  # of one float64 block of scores


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                        window: tuple[int, int] = (-1, -1), scale: float | None = None,
                        rows: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), any floating dtype -> out (B, H, R, D), lse (B, H, R), float64.

    rows: the query rows wanted, int64 (R,), in any order; all Nq by default. Rows are computed in chunks whose scores
    take at most CHUNK_BYTES, so a large N needs time, not memory. lse is the natural logarithm.
    """
    check_inputs(q, k, v)
    check_flag("causal", causal)
    scale = resolve_scale(scale, q.shape[3])
    left, right = _sides(window, causal)
    nq, nk, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    if rows is None:
        rows = torch.arange(nq, device=q.device)
    elif rows.ndim != 1 or rows.dtype != torch.int64 or (rows.numel() and not 0 <= rows.min() <= rows.max() < nq):
        raise UnsupportedCall("rows", f"int64 indices in [0, {nq})", f"{rows.dtype} of shape {tuple(rows.shape)}")
    rows = rows.to(q.device)
    out = q.new_zeros((*q.shape[:2], rows.numel(), q.shape[3]), dtype=torch.float64)
    lse = q.new_full((*q.shape[:2], rows.numel()), float("-inf"), dtype=torch.float64)
    if nk == 0:
        return out, lse
    columns = torch.arange(nk, device=q.device)
    chunk = max(1, CHUNK_BYTES // (8 * nk))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            keys, values = k[b, h // group].double(), v[b, h // group].double()
            for start in range(0, rows.numel(), chunk):
                some = rows[start:start + chunk]
                scores = q[b, h, some].double() @ keys.T * scale
                middle = (some + nk - nq)[:, None]
                hidden = torch.zeros_like(scores, dtype=torch.bool)
                if left >= 0:
                    hidden |= columns < middle - left
                if right >= 0:
                    hidden |= columns > middle + right
                scores.masked_fill_(hidden, float("-inf"))
                sees = ~hidden.all(dim=1)  # the others stay 0 and -inf
                place = torch.arange(start, start + some.numel(), device=q.device)[sees]
                out[b, h, place] = torch.softmax(scores[sees], dim=-1) @ values
                lse[b, h, place] = torch.logsumexp(scores[sees], dim=-1)
    return out, lse


def _sides(window: tuple[int, int], causal: bool) -> tuple[int, int]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise UnsupportedCall("window", "a pair (left, right)", repr(window)) from None
    if any(isinstance(side, bool) or not isinstance(side, int) or side < -1 for side in (left, right)):
        raise UnsupportedCall("window", "whole numbers of at least -1", repr(window))
    return left, (0 if causal else right)
