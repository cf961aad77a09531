"""Attention on packed sequences of different lengths, forward and backward: the tokens of all sequences behind each
other, (tokens, heads, head size), and cumulative lengths that say where each begins.

The tiles are those of flash2 (kernels.flash2, kernels.flash2_backward), read through pointers. A program works on one
block of one sequence; there are programs for ``max_seqlen`` tokens of each, and those behind a sequence's end return at
once. No length is read on the host, so a call waits for nothing and fits a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.flash2 import LN_2, _load, _walk
from kernels.flash2_backward import PAD, _key_head, _query_loop, _row, _tile
from kernels.launch import on_device
from kernels.options import Options, extras
from kernels.plan import Tuning, padded
from kernels.scores import LOG2_E

# (padded head size, float32) -> blocks that spill no register in a loop on any architecture; not measured.
TABLE = {(64, False): Tuning(64, 64, 4, 3), (128, False): Tuning(64, 64, 8, 2), (256, False): Tuning(64, 32, 8, 2),
         (64, True): Tuning(32, 32, 8, 2), (128, True): Tuning(32, 32, 8, 2), (256, True): Tuning(32, 16, 8, 2)}
SCORED = {(64, False): Tuning(64, 32, 4, 2), (128, False): Tuning(64, 32, 8, 2), (256, False): Tuning(64, 32, 8, 2),
          **{key: row for key, row in TABLE.items() if key[1]}}  # with an option of kernels.scores


@triton.jit
def close_rows(acc, l_i, m_i, head, extras, SCORED: tl.constexpr):
    """What follows the loop of an online softmax in base 2: (O, natural LSE) of rows whose keys are all seen.

    flash2's forward keeps these lines in place: with this call in it ptxas orders the recorded kernels differently."""
    blind = m_i == float("-inf")
    if SCORED:  # noqa: SIM102  Triton would look for a field of None
        if extras.sinks is not None:
            sink = tl.load(extras.sinks + head) * LOG2_E
            m_new = tl.where(blind, m_i, tl.maximum(m_i, sink))
            alpha = tl.exp2(m_i - tl.where(blind, 0.0, m_new))
            l_i = l_i * alpha + tl.where(blind, 0.0, tl.exp2(sink - m_new))
            acc = acc * alpha[:, None]
            m_i = m_new
    divisor = tl.where(l_i == 0.0, 1.0, l_i)  # a row without keys: 0 / 1, and LSE = -inf + log2(1)
    lse = (m_i + tl.log2(divisor)) * LN_2
    if SCORED:  # noqa: SIM102
        if extras.seed is not None:
            divisor = divisor / extras.keep_scale
    return acc * (1.0 / divisor)[:, None], lse


@triton.jit
def _sequence(cu_seqlens, sequence):
    """(first token, 64 bits; number of tokens) of one sequence."""
    begin = tl.load(cu_seqlens + sequence)
    return begin.to(tl.int64), tl.load(cu_seqlens + sequence + 1) - begin


@triton.jit(do_not_specialize=["heads", "tokens", "blocks", "left", "right"])
def _forward(q, k, v, out, lse, cu_q, cu_k, scale_log2, stride_qn, stride_qh, stride_kn, stride_kh, stride_vn,
             stride_vh, heads, tokens, blocks, left, right, extras, SCORED: tl.constexpr, GROUP: tl.constexpr,
             HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
             LEFT: tl.constexpr, RIGHT: tl.constexpr, SIGN: tl.constexpr):
    """BLOCK_M queries of one head of one sequence. out (tokens, heads, HEAD_DIM) and lse (heads, tokens) contiguous."""
    program = tl.program_id(0)
    sequence, head = program // blocks // heads, program // blocks % heads
    start_m = (blocks - 1 - program % blocks) * BLOCK_M  # longest rows first
    begin_q, nq = _sequence(cu_q, sequence)
    begin_k, nk = _sequence(cu_k, sequence)
    if start_m < nq:
        kv_head = head // GROUP
        q += begin_q * stride_qn + head.to(tl.int64) * stride_qh
        k += begin_k * stride_kn + kv_head.to(tl.int64) * stride_kh
        v += begin_k * stride_vn + kv_head.to(tl.int64) * stride_vh
        q_tile = _load(q, sequence, head, start_m, stride_qn, nq, HEAD_DIM, BLOCK_M, BLOCK_D, "pointer", True)
        if SIGN != 1:
            q_tile = (q_tile * SIGN).to(q_tile.dtype)
        rows = start_m + tl.arange(0, BLOCK_M)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
        lowest, highest, begin, end = nk - nq, nk - nq, 0, nk
        full_end = nk // BLOCK_N * BLOCK_N
        if right is not None:
            highest += right
        if RIGHT:
            end = tl.maximum(tl.minimum(start_m + BLOCK_M + highest, nk), 0)
            full_end = tl.maximum(tl.minimum(start_m + highest + 1, nk), 0) // BLOCK_N * BLOCK_N
        if LEFT:
            lowest -= left
            begin = tl.maximum(start_m + lowest, 0) // BLOCK_N * BLOCK_N
            full_end = begin  # one loop that masks every block
        else:
            acc, l_i, m_i = _walk(acc, l_i, m_i, q_tile, k, v, sequence, head, kv_head, 0, full_end, start_m, rows,
                                  stride_kn, stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED, HEAD_DIM,
                                  BLOCK_M, BLOCK_N, BLOCK_D, "pointer", LEFT, RIGHT, False)
        acc, l_i, m_i = _walk(acc, l_i, m_i, q_tile, k, v, sequence, head, kv_head, full_end, end, start_m, rows,
                              stride_kn, stride_vn, nq, nk, lowest, highest, scale_log2, extras, SCORED, HEAD_DIM,
                              BLOCK_M, BLOCK_N, BLOCK_D, "pointer", LEFT, RIGHT, True)
        o, logarithm = close_rows(acc, l_i, m_i, head, extras, SCORED)
        tl.store(lse + head.to(tl.int64) * tokens + begin_q + rows, logarithm, mask=rows < nq)
        put(out, o, begin_q, head, start_m, nq, heads * HEAD_DIM, HEAD_DIM, BLOCK_M, BLOCK_D)


@triton.jit
def put(x, tile, begin, head, start, rows, stride_n, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows [start, start + ROWS) of one sequence and head, as far as they exist, into x (tokens, heads, HEAD_DIM)."""
    r, c = start + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    places = (begin + r.to(tl.int64))[:, None] * stride_n + head.to(tl.int64) * HEAD_DIM + c[None, :]
    tl.store(x + places, tile.to(x.dtype.element_ty), mask=(r < rows)[:, None] & (c < HEAD_DIM)[None, :])


@triton.jit
def _padded_place(begin, sequence, PAD: tl.constexpr):
    """Where a sequence's row statistics begin, so that each has whole blocks of PAD rows to itself."""
    return (begin + sequence.to(tl.int64) * PAD) // PAD * PAD


@triton.jit(do_not_specialize=["heads", "tokens", "blocks"])
def _prepare(out, dout, lse, dlse, stats, delta, cu_q, stride_on, stride_oh, stride_dn, stride_dh, heads, tokens,
             blocks, NQP, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, PAD: tl.constexpr,
             HAS_DLSE: tl.constexpr):
    """Per query -LSE · log2(e) and -Delta; rows without keys, and padding, get -inf: their P is 0."""
    program = tl.program_id(0)
    sequence, h = program // blocks // heads, program // blocks % heads
    m0 = program % blocks * BM
    begin, nq = _sequence(cu_q, sequence)
    if m0 < tl.cdiv(nq, PAD) * PAD:
        rows = m0 + tl.arange(0, BM)
        o = _tile(out + begin * stride_on, (0, stride_oh, stride_on), sequence, h, m0, nq, D, BM, DP, False, False)
        do = _tile(dout + begin * stride_dn, (0, stride_dh, stride_dn), sequence, h, m0, nq, D, BM, DP, False, False)
        at = h.to(tl.int64) * tokens + begin + rows
        logarithm = tl.load(lse + at, mask=rows < nq, other=float("-inf"))
        sums = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
        if HAS_DLSE:
            sums -= tl.load(dlse + at, mask=rows < nq, other=0.0)
        dead = logarithm == float("-inf")
        place = h.to(tl.int64) * NQP + _padded_place(begin, sequence, PAD) + rows
        tl.store(stats + place, tl.where(dead, float("-inf"), -logarithm * LOG2_E))
        tl.store(delta + place, tl.where(dead, 0.0, -sums))


@triton.jit(do_not_specialize=["HK", "blocks", "left", "right"])
def _key_pass(Q, K, V, DO, STATS, DELTA, DK, DV, cu_q, cu_k, sq, sk, sv, sdo, HK, blocks, NQP, scale, qk_scale, left,
              right, extras, SCORED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, PAD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """dK and dV of one block of keys of one sequence, summed over the query heads of its group in float32."""
    program = tl.program_id(0)
    sequence, hk, n0 = program // blocks // HK, program // blocks % HK, program % blocks * BN
    begin_q, NQ = _sequence(cu_q, sequence)
    begin_k, NK = _sequence(cu_k, sequence)
    if n0 < NK:
        lowest, highest = NK - NQ - left, NK - NQ + right
        place = _padded_place(begin_q, sequence, PAD)
        k = _tile(K + begin_k * sk[2], sk, sequence, hk, n0, NK, D, BN, DP, False, False)
        v = _tile(V + begin_k * sv[2], sv, sequence, hk, n0, NK, D, BN, DP, False, False)
        dk = tl.zeros([BN, DP], tl.float32)
        dv = tl.zeros([BN, DP], tl.float32)
        for g in range(GROUP):
            h = hk * GROUP + g
            dk, dv = _key_head(dk, dv, k, v, Q + begin_q * sq[2], DO + begin_q * sdo[2], STATS + place, DELTA + place,
                               STATS, sq, sdo, sequence, h, h, n0, NQ, NK, NQP, qk_scale, lowest, highest, extras,
                               SCORED, D, DP, BM, BN, LEFT, RIGHT, 0, False, False, False, False)
        put(DK, dk * scale, begin_k, hk, n0, NK, HK * D, D, BN, DP)
        put(DV, dv, begin_k, hk, n0, NK, HK * D, D, BN, DP)


@triton.jit(do_not_specialize=["H", "blocks", "left", "right"])
def _query_pass(Q, K, V, DO, STATS, DELTA, DQ, cu_q, cu_k, sq, sk, sv, sdo, H, blocks, NQP, scale, qk_scale, left,
                right, extras, SCORED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, PAD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """dQ of one block of queries of one sequence; one loop that masks every block of keys."""
    program = tl.program_id(0)
    sequence, h = program // blocks // H, program // blocks % H
    m0 = (blocks - 1 - program % blocks) * BM
    begin_q, NQ = _sequence(cu_q, sequence)
    begin_k, NK = _sequence(cu_k, sequence)
    if m0 < NQ:
        lowest, highest, begin, end = NK - NQ - left, NK - NQ + right, 0, NK
        if LEFT:
            begin = tl.maximum(m0 + lowest, 0) // BN * BN
        if RIGHT:
            end = tl.minimum(NK, m0 + BM + highest)
        place = _padded_place(begin_q, sequence, PAD)
        q = _tile(Q + begin_q * sq[2], sq, sequence, h, m0, NQ, D, BM, DP, False, False)
        do = _tile(DO + begin_q * sdo[2], sdo, sequence, h, m0, NQ, D, BM, DP, False, False)
        dq = _query_loop(tl.zeros([BM, DP], tl.float32), q, do, K + begin_k * sk[2], V + begin_k * sv[2],
                         _row(STATS + place, h, m0, NQP, BM), _row(DELTA + place, h, m0, NQP, BM), sk, sv, sequence, h,
                         h // GROUP, m0, begin, end, NQ, NK, qk_scale, lowest, highest, extras, SCORED, D, DP, BM, BN,
                         True, True, LEFT, RIGHT, False, False)
        put(DQ, dq * scale, begin_q, h, m0, NQ, H * D, D, BM, DP)


INTERPRETED = not isinstance(_forward, triton.JITFunction)  # decided by TRITON_INTERPRET when this module is imported


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int,
            tuning: Tuning, *, scale: float, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch on checked tensors: q (Tq, H, D), k and v (Tk, Hk, D) -> out like q, contiguous, lse (H, Tq) float32."""
    (tokens, heads, head_dim), kv_heads = q.shape, k.shape[1]
    out, lse = q.new_empty(q.shape), q.new_empty((heads, tokens), dtype=torch.float32)
    blocks, sequences = triton.cdiv(max_q, tuning.block_m), len(cu_q) - 1
    if out.numel() == 0 or blocks * sequences == 0:
        return out, lse
    build = {} if INTERPRETED else {"enable_fp_fusion": True}  # the exponent's multiply-add; off by default from 3.10
    with on_device(q, tuning):
        _forward[(sequences * heads * blocks,)](
            q, k, v, out, lse, cu_q, cu_k, abs(scale) * LOG2_E.value or 1.0, *q.stride()[:2], *k.stride()[:2],
            *v.stride()[:2], heads, tokens, blocks, options.left if options.left >= 0 else None,
            options.right if options.right > 0 else None, extras(options), SCORED=options.scored,
            GROUP=heads // kv_heads, HEAD_DIM=head_dim, BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n,
            BLOCK_D=padded(head_dim), LEFT=options.left >= 0, RIGHT=options.right >= 0,
            SIGN=(scale > 0) - (scale < 0), num_warps=tuning.num_warps, num_stages=tuning.num_stages, **build)
    return out, lse


def launches(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dlse: torch.Tensor | None, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int,
             max_k: int, grads: tuple[torch.Tensor, ...], *, tuning: Any, scale: float, options: Options
             ) -> Iterator[tuple[str, Any, int, tuple[Any, ...], Mapping[str, Any]]]:
    """The kernels of one backward, in order, as (stage, kernel, programs, arguments, options)."""
    (tokens, heads, d), kv_heads, sequences = q.shape, k.shape[1], len(cu_q) - 1
    nqp = triton.cdiv(tokens + sequences * PAD, PAD) * PAD
    stats, delta = q.new_empty((2, heads, nqp), dtype=torch.float32)
    dp, small, extra = padded(d), 32 if padded(d) > 128 else 64, extras(options)
    dq, dk, dv = grads
    strides = [(0, x.stride(1), x.stride(0)) for x in (q, k, v, dout)]
    blocks = triton.cdiv(max_q, PAD) * PAD // small
    shared = dict(GROUP=heads // kv_heads, D=d, DP=dp, PAD=PAD, LEFT=options.left >= 0, RIGHT=options.right >= 0,
                  SCORED=extra is not None)
    sides = (max(options.left, 0), max(options.right, 0))

    def build(one: Any) -> dict[str, Any]:
        more = {} if INTERPRETED else {"enable_fp_fusion": True}
        return dict(BM=one.block_m, BN=one.block_n, num_warps=one.num_warps, num_stages=one.num_stages, **more)

    yield ("prepare", _prepare, sequences * heads * blocks,
           (out, dout, lse, lse if dlse is None else dlse, stats, delta, cu_q, *out.stride()[:2], *dout.stride()[:2],
            heads, tokens, blocks, nqp), dict(D=d, DP=dp, BM=small, PAD=PAD, HAS_DLSE=dlse is not None, num_warps=4))
    blocks = triton.cdiv(max_k, tuning.keys.block_n)
    yield ("keys", _key_pass, sequences * kv_heads * blocks,
           (q, k, v, dout, stats, delta, dk, dv, cu_q, cu_k, *strides, kv_heads, blocks, nqp, scale,
            scale * LOG2_E.value, *sides, extra), dict(**shared, **build(tuning.keys)))
    blocks = triton.cdiv(max_q, tuning.queries.block_m)
    yield ("queries", _query_pass, sequences * heads * blocks,
           (q, k, v, dout, stats, delta, dq, cu_q, cu_k, *strides, heads, blocks, nqp, scale, scale * LOG2_E.value,
            *sides, extra), dict(**shared, **build(tuning.queries)))
