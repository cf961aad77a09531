"""The backward of naive attention, written out: one launch a step, P kept from the forward as training keeps it.

    dV = Pᵀ dO · dP = dO Vᵀ · dS = P ∘ (dP − rowsum(dP ∘ P)) · [mask] · scale · dQ = dS K · dK = dSᵀ Q

As written, that is "d_values", "d_weights", "d_softmax", "d_mask" if causal, "d_scale", "d_queries", "d_keys": nine N×N
passes, eleven when causal. Folded, the scale is the last two matmuls' alpha, and no mask is needed, since P is 0 there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.checks import check_flag, check_inputs, check_like, resolve_scale
from kernels.naive import Stage, blind_rows, hidden, no_stage, weights

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *, causal: bool = False,
            scale: float | None = None, fold_scale: bool = False) -> Callable[[Stage | None], Gradients]:
    """Compute P; the result, called with a stage or None, runs only the backward: dQ, dK, dV, shaped like q, k, v.

    q, dout (B, H, Nq, D); k, v (B, Hk, Nk, D), one floating dtype. Other strides than contiguous are copied here, not
    in the steps. Rows that see no key have gradient 0. Raises UnsupportedCall as naive_attention does.
    """
    check_inputs(q, k, v)
    check_like("dout", dout, q)
    check_flag("causal", causal)
    scale = resolve_scale(scale, q.shape[3])
    batch, heads, nq, head_dim = q.shape
    kv_heads, nk = k.shape[1:3]
    if fold_scale and causal:
        from kernels import masked_softmax

        masked_softmax.check(q, nk)
    blind = blind_rows(nq, nk, causal)
    seeing, stacked = nq - blind, (batch * kv_heads, heads // kv_heads * (nq - blind), head_dim)
    with torch.no_grad():
        rows, grad = (x[:, :, blind:].reshape(stacked) for x in (q, dout))
        keys, values = (x.reshape(batch * kv_heads, nk, head_dim) for x in (k, v))
        if seeing == 0 or rows.numel() == 0:
            return lambda stage=None: (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v))
        p = weights(rows, keys.transpose(1, 2), seeing, causal, scale, fold_scale, no_stage)
        masked = hidden(seeing, nk, q.device) if causal and not fold_scale else None
    empty = rows.new_empty((1, 1, 1))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(empty, a, b, beta=0, alpha=scale) if fold_scale else torch.bmm(a, b)

    @torch.no_grad()
    def run(stage: Stage | None = None) -> Gradients:
        stage = stage or no_stage
        with stage("d_values"):
            dv = torch.bmm(p.transpose(1, 2), grad)
        with stage("d_weights"):
            ds = torch.bmm(grad, values.transpose(1, 2))
        with stage("d_softmax"):
            ds = torch.ops.aten._softmax_backward_data(ds, p, -1, p.dtype)
        if masked is not None:
            with stage("d_mask"):
                ds.view(-1, seeing, nk).masked_fill_(masked, 0.0)
        if not fold_scale:
            with stage("d_scale"):
                ds = ds * scale
        with stage("d_queries"):
            dq = product(ds, keys)
        with stage("d_keys"):
            dk = product(ds.transpose(1, 2), rows)
        dq = dq.view(batch, heads, seeing, head_dim)
        if blind:
            dq = torch.cat([dq.new_zeros((batch, heads, blind, head_dim)), dq], dim=2)
        return dq, dk.view(k.shape), dv.view(v.shape)

    return run
