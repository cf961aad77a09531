"""FlashAttention-1 forward in plain Triton (Dao, Fu, Ermon, Rudra, Ré 2022, arXiv 2205.14135, Algorithm 1).

The loops are the other way round than in FlashAttention-2: the outer one takes a block of keys and values, once, and
the inner one takes every block of queries that sees it. So O, its running maximum m and its running sum l of every
query go to memory and come back once a key block; O is kept normalised, as the algorithm has it, which costs a
division an element each time. All blocks of a head depend on one another: one program works on a whole head, and a
call has only batch × heads programs. Both are what FlashAttention-2 changed; this kernel is here to be measured
beside it.

Between key blocks O is float32, as in the authors' own code, so that many blocks round it once only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.checks import check_flag, check_inputs, resolve_scale
from kernels.launch import no_gradient, on_device, parameters, pointer_tuning
from kernels.plan import Tuning, padded
from kernels.scores import LOG2_E

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = range(1, 257)
# (padded head size, float32) -> blocks that spill no register on any architecture; not measured. More keys a block
# mean fewer passes over O.
TABLE = {(64, False): Tuning(64, 128, 8, 2), (128, False): Tuning(64, 64, 8, 2), (256, False): Tuning(32, 64, 8, 1),
         (64, True): Tuning(32, 32, 8, 1), (128, True): Tuning(32, 32, 8, 1), (256, True): Tuning(16, 32, 8, 1)}


@triton.jit
def _visit(o, m, l, q, k, v, rows, columns, nk, highest, scale, CAUSAL: tl.constexpr):  # noqa: E741
    """One block of queries meets one block of keys (Algorithm 1, lines 9 to 13): O, m and l before -> after.

    o is normalised; m and l belong to exp, not exp2. Query i sees key j < nk, and under CAUSAL j <= i + highest.
    """
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    visible = (columns < nk)[None, :]
    if CAUSAL:
        visible = visible & (columns[None, :] <= rows[:, None] + highest)
    s = tl.where(visible, s, float("-inf"))
    m_block = tl.max(s, 1)
    # A row that sees no key of this block has m_block = -inf, and -inf - (-inf) is NaN: subtract 0, all terms are 0.
    p = tl.exp2((s - tl.where(m_block == float("-inf"), 0.0, m_block)[:, None]) * LOG2_E)
    l_block = tl.sum(p, 1)
    m_new = tl.maximum(m, m_block)
    reference = tl.where(m_new == float("-inf"), 0.0, m_new)
    alpha = tl.exp2((m - reference) * LOG2_E)
    beta = tl.exp2((m_block - reference) * LOG2_E)
    l_new = alpha * l + beta * l_block
    product = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    divisor = tl.where(l_new == 0.0, 1.0, l_new)
    o = (o * (l * alpha)[:, None] + product * beta[:, None]) / divisor[:, None]
    return o, m_new, l_new


@triton.jit(do_not_specialize=["heads", "nq", "nk"])
def _forward(q, k, v, out, partial, m, l, lse, scale, stride_qb, stride_qh, stride_qn, stride_kb, stride_kh,  # noqa: E741
             stride_kn, stride_vb, stride_vh, stride_vn, heads, nq, nk, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr,
             WITH_LSE: tl.constexpr):
    """One head. out, partial (B, H, Nq, D) and m, l, lse (B, H, Nq) contiguous; partial is float32."""
    batch_head = tl.program_id(0).to(tl.int64)  # 64-bit offsets: a tensor may be longer than 2^31 elements
    batch, head = batch_head // heads, batch_head % heads
    q += batch * stride_qb + head * stride_qh
    k += batch * stride_kb + head // GROUP * stride_kh
    v += batch * stride_vb + head // GROUP * stride_vh
    out += batch_head * nq * HEAD_DIM
    partial += batch_head * nq * HEAD_DIM
    highest = nk - nq  # causal: query i sees keys j <= i + highest
    offsets_d = tl.arange(0, BLOCK_D)
    in_columns = (offsets_d < HEAD_DIM)[None, :]
    for start_n in tl.range(0, nk, BLOCK_N):
        columns = start_n + tl.arange(0, BLOCK_N)
        exists = (columns < nk)[:, None] & in_columns
        k_tile = tl.load(k + columns.to(tl.int64)[:, None] * stride_kn + offsets_d[None, :], mask=exists, other=0.0)
        v_tile = tl.load(v + columns.to(tl.int64)[:, None] * stride_vn + offsets_d[None, :], mask=exists, other=0.0)
        again = start_n > 0
        first = 0  # the first key block meets all queries, those that see nothing too: their O is 0
        if CAUSAL:
            first = tl.where(again, tl.maximum(start_n - highest, 0) // BLOCK_M * BLOCK_M, 0)
        for start_m in tl.range(first, nq, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            in_rows = rows < nq
            inside = in_rows[:, None] & in_columns
            q_tile = tl.load(q + rows.to(tl.int64)[:, None] * stride_qn + offsets_d[None, :], mask=inside, other=0.0)
            places = rows.to(tl.int64)[:, None] * HEAD_DIM + offsets_d[None, :]
            o_i = tl.load(partial + places, mask=inside & again, other=0.0)
            m_i = tl.load(m + batch_head * nq + rows, mask=in_rows & again, other=float("-inf"))
            l_i = tl.load(l + batch_head * nq + rows, mask=in_rows & again, other=0.0)
            o_i, m_i, l_i = _visit(o_i, m_i, l_i, q_tile, k_tile, v_tile, rows, columns, nk, highest, scale, CAUSAL)
            end = nk
            if CAUSAL:
                end = tl.minimum(start_m + BLOCK_M + highest, nk)
            tl.store(m + batch_head * nq + rows, m_i, mask=in_rows)
            tl.store(l + batch_head * nq + rows, l_i, mask=in_rows)
            if start_n + BLOCK_N < end:
                tl.store(partial + places, o_i, mask=inside)
            else:  # the last keys that these queries see
                tl.store(out + places, o_i.to(out.dtype.element_ty), mask=inside)
                if WITH_LSE:
                    tl.store(lse + batch_head * nq + rows, m_i + tl.log(tl.where(l_i == 0.0, 1.0, l_i)), mask=in_rows)
        tl.debug_barrier()  # other threads of this program read next what these have written


INTERPRETED = not isinstance(_forward, triton.JITFunction)  # decided by TRITON_INTERPRET when this module is imported


def choose(q: torch.Tensor, tuning: Mapping[str, Any] | None) -> Tuning:
    """The configuration of a call on checked q; raises UnsupportedCall for a device or a tuning that it cannot take."""
    from kernels.api import capability

    return pointer_tuning(TABLE, q, capability(q), tuning)


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
            tuning: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The tuning parameters that a call runs with."""
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    return parameters(choose(q, tuning))


def flash1_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
                     scale: float | None = None, return_lse: bool = False, tuning: Mapping[str, Any] | None = None
                     ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v by the schedule of FlashAttention-1; no gradient.

    q (B, H, Nq, D), k and v (B, Hk, Nk, D), Hk dividing H; float16, bfloat16 or float32; D 1 to 256; any strides with
    unit last stride. causal is bottom-right aligned; a row that sees no key is 0, its LSE -inf. Returns out
    (B, H, Nq, D) contiguous, and with return_lse also the natural-log LSE, float32 (B, H, Nq).
    tuning: any of block_m, block_n, num_warps, num_stages. Raises UnsupportedCall by name before anything is launched.
    """
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    check_flag("causal", causal)
    check_flag("return_lse", return_lse)
    scale = resolve_scale(scale, q.shape[3])
    no_gradient("flash1", q=q, k=k, v=v)
    chosen = choose(q, tuning)
    (batch, heads, nq, head_dim), (kv_heads, nk) = q.shape, k.shape[1:3]
    out = q.new_empty(q.shape)
    lse = q.new_empty((batch, heads, nq), dtype=torch.float32) if return_lse else None
    if out.numel() == 0 or nk == 0:
        out.zero_()
        return out if lse is None else (out, lse.fill_(float("-inf")))
    partial = out if q.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    m, l = q.new_empty((2, batch, heads, nq), dtype=torch.float32)  # noqa: E741
    with on_device(q, chosen):
        _forward[(batch * heads,)](
            q, k, v, out, partial, m, l, m if lse is None else lse, scale, *q.stride()[:3], *k.stride()[:3],
            *v.stride()[:3], heads, nq, nk, GROUP=heads // kv_heads, HEAD_DIM=head_dim, BLOCK_M=chosen.block_m,
            BLOCK_N=chosen.block_n, BLOCK_D=padded(head_dim), CAUSAL=causal, WITH_LSE=return_lse,
            num_warps=chosen.num_warps, num_stages=chosen.num_stages)
    return out if lse is None else (out, lse)
