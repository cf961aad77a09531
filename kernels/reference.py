"""Attention by its definition, in float64, on any device: the specification every implementation is compared with.

    S = c·tanh(q·kᵀ·scale / c) - slope·|i + nk - nq - j| + bias, masked;   P = exp(S - LSE);   O = (P·D)·v
    LSE = log(Σ exp S + exp sink)

Query i of nq sees key j of nk if i + nk - nq - left <= j <= i + nk - nq + right (bottom-right aligned; -1: unlimited)
and the padding mask of j is True; `causal` is right = 0. A row that sees no key, or only scores of -inf, has O = 0 and
LSE = -inf. D is 1 / (1 - p) where dropout keeps, else 0 (kernels.philox). What is not given falls away.
"""

from __future__ import annotations

import torch

from kernels.checks import check_flag, check_inputs, resolve_scale, resolve_window
from kernels.errors import UnsupportedCall
from kernels.philox import kept

CHUNK_BYTES = 1 << 28  # of one float64 block of scores


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                        window: tuple[int, int] = (-1, -1), scale: float | None = None,
                        rows: torch.Tensor | None = None, softcap: float = 0.0,
                        alibi_slopes: torch.Tensor | None = None, attn_bias: torch.Tensor | None = None,
                        key_padding_mask: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
                        dropout_p: float = 0.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), any floating dtype -> out (B, H, R, D), lse (B, H, R), float64.

    Options as in flash_attention, and differentiable all of them. rows: the query rows wanted, int64 (R,), in any
    order; all Nq by default. Rows are computed in chunks whose scores take at most CHUNK_BYTES, so a large N needs
    time, not memory. lse is the natural logarithm.
    """
    check_inputs(q, k, v)
    check_flag("causal", causal)
    scale = resolve_scale(scale, q.shape[3])
    left, right = resolve_window(window, causal)
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
    slopes = None if alibi_slopes is None else alibi_slopes.double().expand(q.shape[:2])
    bias = None if attn_bias is None else attn_bias.expand(*q.shape[:2], nq, nk)
    chunk = max(1, CHUNK_BYTES // (8 * nk))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            keys, values = k[b, h // group].double(), v[b, h // group].double()
            for start in range(0, rows.numel(), chunk):
                some = rows[start:start + chunk]
                scores = q[b, h, some].double() @ keys.T * scale
                middle = (some + nk - nq)[:, None]
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                if slopes is not None:
                    scores = scores - slopes[b, h] * (middle - columns).abs()
                if bias is not None:
                    scores = scores + bias[b, h, some].double()
                hidden = torch.zeros_like(scores, dtype=torch.bool)
                if left >= 0:
                    hidden |= columns < middle - left
                if right >= 0:
                    hidden |= columns > middle + right
                if key_padding_mask is not None:
                    hidden = hidden | ~key_padding_mask[b]
                hidden = hidden | (scores == float("-inf"))
                sees = ~hidden.all(dim=1)  # the others stay 0 and -inf
                place = torch.arange(start, start + some.numel(), device=q.device)[sees]
                scores = scores[sees].masked_fill(hidden[sees], float("-inf"))
                if sinks is not None:  # one more key, of value 0
                    scores = torch.cat([scores, sinks[h].double().expand(len(scores), 1)], dim=1)
                p = torch.softmax(scores, dim=-1)[:, :nk]
                if dropout_p:
                    keep = kept(seed, dropout_p, b, h, some[sees].cpu().numpy(), nk)
                    p = p * torch.from_numpy(keep).to(p.device) / (1 - dropout_p)
                out[b, h, place] = p @ values.masked_fill(hidden.all(dim=0)[:, None], 0.0)  # 0 · NaN is NaN
                lse[b, h, place] = torch.logsumexp(scores, dim=-1)
    return out, lse
