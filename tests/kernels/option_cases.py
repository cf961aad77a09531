"""The options of flash_attention as cases, and attention with them on whole matrices, in the dtype of its inputs.

`formula` is written apart from kernels.reference (no rows, no chunks) and is both the eager computation and, on float64
inputs, an expected result. tests/kernels uses it in the interpreter, tests/gpu on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels import philox

NAMES = ("window", "window to the left", "causal window", "softcap", "alibi", "alibi a batch", "bias",
         "bias that hides", "row of bias", "padding", "padding, causal", "sinks", "dropout", "all")


def build(name: str, batch: int, heads: int, nq: int, nk: int, device: str) -> dict[str, Any]:
    """Keyword arguments of flash_attention; sinks require a gradient."""
    generator = torch.Generator().manual_seed(nq + nk)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    padding = torch.rand(batch, nk, generator=generator) > 0.3
    padding[-1] = False
    padding[-1, -max(1, nk // 8):] = True  # the first blocks have no key
    bias = normal(1, heads, nq, nk)
    hiding = bias.clone()
    hiding[:, 0, nq // 2] = -torch.inf  # a row that sees nothing
    hiding[..., nk // 3] = -torch.inf
    slopes = 2.0 ** -torch.arange(1.0, heads + 1, device=device)
    options: dict[str, dict[str, Any]] = {
        "window": {"window": (20, 10)}, "window to the left": {"window": (7, -1)},
        "causal window": {"causal": True, "window": (33, -1)}, "softcap": {"softcap": 2.0},
        "alibi": {"alibi_slopes": slopes, "causal": True},
        "alibi a batch": {"alibi_slopes": slopes * (1 + torch.arange(batch, device=device)[:, None])},
        "bias": {"attn_bias": bias.transpose(2, 3).contiguous().transpose(2, 3)},  # keys in rows
        "bias that hides": {"attn_bias": hiding}, "row of bias": {"attn_bias": normal(batch, 1, 1, nk)},
        "padding": {"key_padding_mask": padding.to(device)},
        "padding, causal": {"key_padding_mask": padding.to(device), "causal": True},
        "sinks": {"sinks": normal(heads).requires_grad_(), "causal": True},
        "dropout": {"dropout_p": 0.3, "seed": 2**40 + 5},
        "all": {"causal": True, "window": (40, -1), "softcap": 3.0, "alibi_slopes": slopes, "attn_bias": hiding,
                "key_padding_mask": padding.to(device), "sinks": normal(heads).requires_grad_(), "dropout_p": 0.5,
                "seed": 7, "scale": -0.3}}
    return options[name]


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None,
            window: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
            attn_bias: torch.Tensor | None = None, key_padding_mask: torch.Tensor | None = None,
            sinks: torch.Tensor | None = None, dropout_p: float = 0.0, seed: int = 0
            ) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE; rows without keys are 0 and -inf and have gradient 0."""
    (batch, heads, nq, d), nk = q.shape, k.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    s = q @ k.mT * (d**-0.5 if scale is None else scale)
    distance = torch.arange(nk, device=q.device) - torch.arange(nq, device=q.device)[:, None] - (nk - nq)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        s = s - alibi_slopes.to(s.dtype)[..., None, None] * distance.abs()
    if attn_bias is not None:
        s = s + attn_bias.to(s.dtype)
    hidden = s == -torch.inf
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        hidden = hidden | (distance < -left)
    if right >= 0:
        hidden = hidden | (distance > right)
    if key_padding_mask is not None:
        hidden = hidden | ~key_padding_mask[:, None, None]
    blind = hidden.all(-1, keepdim=True)
    s = torch.where(hidden, -torch.inf, s).masked_fill(blind, 0.0)  # finite there, so that no gradient is NaN
    if sinks is not None:
        s = torch.cat([s, sinks.to(s.dtype)[:, None, None].expand(batch, heads, nq, 1)], -1)
    lse = torch.logsumexp(s, -1).masked_fill(blind[..., 0], -torch.inf)
    p = torch.softmax(s, -1)[..., :nk].masked_fill(blind, 0.0)
    if dropout_p:
        keep = np.stack([[philox.kept(seed, dropout_p, b, h, np.arange(nq), nk) for h in range(heads)]
                         for b in range(batch)])
        p = p * torch.from_numpy(keep).to(p.device) / (1 - dropout_p)
    return p @ v, lse
