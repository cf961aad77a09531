"""FlashAttention-2 forward in plain Triton (Dao 2023, arXiv 2307.08691, algorithm 1).

One program computes one block of query rows: it walks the visible key blocks once, keeps the running maximum m, the
running sum l and the unnormalised output in registers, and divides once at the end. S and P never leave the chip.

Two data paths share one body: tensor-memory-accelerator descriptors (sm_90 and later, strides in multiples of 16 bytes)
and pointers (everything else). `plan` chooses; `forward` launches.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.errors import UnsupportedCall
from kernels.options import Options, extras
from kernels.plan import Plan, head_group, padded
from kernels.scores import LOG2_E, changed, kept, seen

LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _load(source, batch, head, start, stride_n, rows, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
          BLOCK_D: tl.constexpr, PATH: tl.constexpr, CHECK_ROWS: tl.constexpr):
    """Rows [start, start + BLOCK) of one head as (BLOCK, BLOCK_D); what lies outside the tensor reads as 0."""
    if PATH == "tma":
        tile = source.load([batch, head, start, 0]).reshape(BLOCK, BLOCK_D)
    else:
        rows_in = tl.arange(0, BLOCK)
        columns = tl.arange(0, BLOCK_D)
        corner = source + tl.cast(start, tl.int64) * stride_n
        pointers = corner + (rows_in.to(tl.int64)[:, None] * stride_n + columns[None, :])
        row_exists = (start + rows_in < rows)[:, None]
        column_exists = (columns < HEAD_DIM)[None, :]
        if CHECK_ROWS and HEAD_DIM != BLOCK_D:
            tile = tl.load(pointers, mask=row_exists & column_exists, other=0.0)
        elif CHECK_ROWS:
            tile = tl.load(pointers, mask=row_exists, other=0.0)
        elif HEAD_DIM != BLOCK_D:
            tile = tl.load(pointers, mask=column_exists, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, kv_head, low, high, start_m, offsets_m, stride_kn,
          stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED: tl.constexpr, HEAD_DIM: tl.constexpr,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PATH: tl.constexpr, LEFT: tl.constexpr,
          RIGHT: tl.constexpr, MASKED: tl.constexpr):
    """The online softmax over key blocks [low, high); MASKED blocks may cross the window or the end of the keys.

    Query i sees key j if i + lowest <= j (LEFT) and j <= i + highest (RIGHT)."""
    for start in tl.range(low, high, BLOCK_N):
        k = _load(k_source, batch, kv_head, start, stride_kn, nk, HEAD_DIM, BLOCK_N, BLOCK_D, PATH, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        unit = scale_log2
        if SCORED:
            columns = start + tl.arange(0, BLOCK_N)
            s, _ = changed(s * scale_log2, offsets_m[:, None], columns[None, :], batch, head, nq, nk, extras)
            unit = 1.0
        if MASKED:
            columns = start + tl.arange(0, BLOCK_N)
            visible = (columns < nk)[None, :]
            if RIGHT:
                visible = visible & (columns[None, :] <= offsets_m[:, None] + highest)
            if LEFT:
                visible = visible & (columns[None, :] >= offsets_m[:, None] + lowest)
            s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1) * unit)
        subtract = m_new
        if MASKED or SCORED:
            # A row that has seen no key yet has m_i = -inf, and -inf - (-inf) is NaN: subtract 0 and every term is 0.
            subtract = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s * unit - subtract[:, None])  # one fused multiply-add an element
        alpha = tl.exp2(m_i - subtract)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = _load(v_source, batch, kv_head, start, stride_vn, nk, HEAD_DIM, BLOCK_N, BLOCK_D, PATH, MASKED)
        if SCORED:
            if extras.padding is not None:
                v = tl.where(seen(columns, batch, nk, extras)[:, None], v, 0.0)  # 0 · NaN of a hidden value is NaN
            if extras.seed is not None:
                p = tl.where(kept(start_m, start, batch, head, extras, BLOCK_M, BLOCK_N), p, 0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "all_heads", "head_group", "nq", "nk", "left", "right"])
def _forward(q_source, k_source, v_source, o_source, lse_pointer, scale_log2, stride_qb, stride_qh, stride_qn,
             stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_on, heads,
             all_heads, head_group, nq, nk, left, right, extras, SCORED: tl.constexpr, GROUP: tl.constexpr,
             HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
             PATH: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, TAIL: tl.constexpr, SIGN: tl.constexpr,
             WITH_LSE: tl.constexpr):
    """BLOCK_M query rows of one head. TAIL: nk is not a multiple of BLOCK_N. SIGN: of the softmax scale. LEFT, RIGHT:
    the window has that side; left, right: its keys, None where there is none (right: also where it is causal's 0)."""
    # Longest rows first, over `head_group` heads at a time, so that the keys and values in use fit in L2.
    blocks = tl.cdiv(nq, BLOCK_M)
    program = tl.program_id(0)
    first_head = program // (head_group * blocks) * head_group
    heads_here = tl.minimum(head_group, all_heads - first_head)
    place = program % (head_group * blocks)
    batch_head = first_head + place % heads_here
    start_m = (blocks - 1 - place // heads_here) * BLOCK_M
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // GROUP

    if PATH == "pointer":
        # 64-bit offsets: a slice of a fused QKV tensor passes 2^31 elements long before memory is full.
        q_source += batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
        k_source += batch.to(tl.int64) * stride_kb + kv_head.to(tl.int64) * stride_kh
        v_source += batch.to(tl.int64) * stride_vb + kv_head.to(tl.int64) * stride_vh
        o_source += batch.to(tl.int64) * stride_ob + head.to(tl.int64) * stride_oh
    q = _load(q_source, batch, head, start_m, stride_qn, nq, HEAD_DIM, BLOCK_M, BLOCK_D, PATH, True)
    if SIGN != 1:
        q = (q * SIGN).to(q.dtype)  # max(s · scale) = max(s) · scale needs scale > 0; changing a sign is exact

    offsets_m = start_m + tl.arange(0, BLOCK_M)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    lowest = nk - nq
    highest = nk - nq  # causal: query i sees keys j <= i + nk - nq
    if right is not None:
        highest += right
    full_end = nk // BLOCK_N * BLOCK_N
    end = nk
    if RIGHT:
        full_end = tl.maximum(tl.minimum(start_m + highest + 1, nk), 0) // BLOCK_N * BLOCK_N
        end = tl.maximum(tl.minimum(start_m + BLOCK_M + highest, nk), 0)
    full_start = 0
    if LEFT:
        # Blocks before `begin` no row sees, those from `full_start` on every row sees as far as the left side goes.
        lowest -= left
        begin = tl.maximum(start_m + lowest, 0) // BLOCK_N * BLOCK_N
        full_start = tl.cdiv(tl.maximum(start_m + BLOCK_M - 1 + lowest, 0), BLOCK_N) * BLOCK_N
        full_start = tl.minimum(full_start, end)
        full_end = tl.minimum(tl.maximum(full_end, full_start), end)
        acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, kv_head, begin, full_start, start_m,
                              offsets_m, stride_kn, stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED,
                              HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, PATH, LEFT, RIGHT, True)
    acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, kv_head, full_start, full_end, start_m,
                          offsets_m, stride_kn, stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED,
                          HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, PATH, LEFT, RIGHT, False)
    if LEFT or RIGHT or TAIL:
        acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, kv_head, full_end, end, start_m,
                              offsets_m, stride_kn, stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED,
                              HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, PATH, LEFT, RIGHT, True)

    blind = m_i == float("-inf")
    if SCORED:  # noqa: SIM102  Triton would look for a field of None
        if extras.sinks is not None:
            # One more score, of no value: in the denominator of rows that see a key.
            sink = tl.load(extras.sinks + head) * LOG2_E
            m_new = tl.where(blind, m_i, tl.maximum(m_i, sink))
            alpha = tl.exp2(m_i - tl.where(blind, 0.0, m_new))
            l_i = l_i * alpha + tl.where(blind, 0.0, tl.exp2(sink - m_new))
            acc = acc * alpha[:, None]
            m_i = m_new
    divisor = tl.where(l_i == 0.0, 1.0, l_i)  # a row without keys: 0 / 1, and LSE = -inf + log2(1)
    if WITH_LSE:
        lse = (m_i + tl.log2(divisor)) * LN_2  # both in base 2
        tl.store(lse_pointer + batch_head.to(tl.int64) * nq + offsets_m, lse, mask=offsets_m < nq)
    if SCORED:  # noqa: SIM102
        if extras.seed is not None:
            divisor = divisor / extras.keep_scale
    o = acc * (1.0 / divisor)[:, None]
    if PATH == "tma":
        o_source.store([batch, head, start_m, 0], o.to(o_source.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))
    else:
        columns = tl.arange(0, BLOCK_D)
        tl.store(o_source + offsets_m.to(tl.int64)[:, None] * stride_on + columns[None, :],
                 o.to(o_source.dtype.element_ty), mask=(offsets_m < nq)[:, None] & (columns < HEAD_DIM)[None, :])


INTERPRETED = not isinstance(_forward, triton.JITFunction)  # decided by TRITON_INTERPRET when this module is imported


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan, *, causal: bool, scale: float,
            return_lse: bool, out: torch.Tensor | None = None, options: Options | None = None
            ) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch on checked tensors: q (B, H, Nq, D), k and v (B, Hk, Nk, D) -> out like q, lse (B, H, Nq) float32 or None.

    options: of kernels.options.check, which contain causal; by default none but causal.
    out: where to write, unit last stride (tests pass a poisoned tensor); by default a new contiguous tensor.
    """
    batch, heads, nq, head_dim = q.shape
    kv_heads, nk = k.shape[1], k.shape[2]
    options = options or Options(right=0 if causal else -1)
    out = q.new_empty(q.shape) if out is None else out
    lse = q.new_empty((batch, heads, nq), dtype=torch.float32) if return_lse else None
    if out.numel() == 0:
        return out, lse
    if nk == 0:
        return out.zero_(), None if lse is None else lse.fill_(float("-inf"))

    tuning, block_d = plan.tuning, padded(head_dim)
    sources: list[Any] = [q, k, v, out]
    if plan.path == "tma":
        blocks = (tuning.block_m, tuning.block_n, tuning.block_n, tuning.block_m)
        sources = [TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, block, block_d])
                   for t, block in zip(sources, blocks)]
    build = {} if INTERPRETED else {"enable_fp_fusion": True}  # the exponent's multiply-add; off by default from 3.10
    grid = (triton.cdiv(nq, tuning.block_m) * batch * heads,)  # one dimension: y and z end at 65,535
    try:
        with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
            _forward[grid](
                *sources, lse if return_lse else out, abs(scale) * LOG2_E.value or 1.0,
                *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
                heads, batch * heads, head_group(k, heads), nq, nk, options.left if options.left >= 0 else None,
                options.right if options.right > 0 else None, extras(options), SCORED=options.scored,
                GROUP=heads // kv_heads, HEAD_DIM=head_dim, BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n,
                BLOCK_D=block_d, PATH=plan.path, LEFT=options.left >= 0, RIGHT=options.right >= 0,
                TAIL=nk % tuning.block_n != 0, SIGN=(scale > 0) - (scale < 0), WITH_LSE=return_lse,
                num_warps=tuning.num_warps, num_stages=tuning.num_stages, **build)
    except OutOfResources as error:
        raise UnsupportedCall("tuning", "blocks that fit the device", f"{tuning} ({error})",
                              "Use smaller blocks or fewer stages.") from error
    return out, lse
