"""FlashAttention-2 backward in plain Triton: P is recomputed block by block from the row statistics; no N x N buffer.

With S = scale Q K', P = exp(S - LSE), dP = dO V' and Delta = rowsum(dO * O) - dLSE (FlashAttention-2, arXiv 2307.08691,
algorithm 2):
    dV = P' dO      dS = P * (dP - Delta)      dK = scale dS' Q      dQ = scale dS K
Options (kernels.scores) change S before P, and then dS by the softcap's derivative; dropout D = keep / (1 - p) acts on
P in dV and on dP, Delta stays; a sink's gradient is -sum(exp(sink - LSE) Delta) over the rows of its head.
Two designs with the same mathematics:
- two passes: one program per block of keys makes dK and dV, one per block of queries makes dQ. S and dP are computed
  twice (7 products for 5), every sum has one order, so the result is bitwise reproducible.
- one pass over blocks of keys: dQ is added to a float32 buffer by atomics, in whatever order the programs come (5
  products).
Programs over keys hold S' and dP' (keys in rows), so that P' and dS' are register operands of the products that make dV
and dK.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.backward_plan import Pass, Tuning, choose
from kernels.checks import check_flag, check_inputs, resolve_scale, resolve_window
from kernels.errors import UnsupportedCall
from kernels.options import Options, extras
from kernels.plan import padded, tma_obstacle
from kernels.scores import changed, kept, seen

LOG2_E = math.log2(math.e)
PAD = 128  # statistics are padded to a multiple of the largest block of queries, so that their loads need no mask


@triton.jit
def _tile(X, strides, b, h, row, N, D: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr, TMA: tl.constexpr,
          EVEN: tl.constexpr):
    """ROWS x DP elements of X[b, h] from `row` on; what lies outside N x D reads as 0."""
    if TMA:
        return X.load([b, h, row, 0]).reshape(ROWS, DP)
    else:
        r = row + tl.arange(0, ROWS)
        c = tl.arange(0, DP)
        base = X + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1]
        ptr = base + r.to(tl.int64)[:, None] * strides[2] + c[None, :]
        if EVEN and D == DP:
            return tl.load(ptr)
        else:
            return tl.load(ptr, mask=(r < N)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def _row(X, bh, m0, NQP, BM: tl.constexpr):
    """BM row statistics; the padding makes a mask unnecessary."""
    return tl.load(X + bh.to(tl.int64) * NQP + m0 + tl.arange(0, BM))


@triton.jit
def _store(X, x, bh, row, N, D: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):
    """Write a tile to the contiguous X (batch * heads, N, D)."""
    r = row + tl.arange(0, ROWS)
    c = tl.arange(0, DP)
    ptr = X + bh.to(tl.int64) * N * D + r.to(tl.int64)[:, None] * D + c[None, :]
    tl.store(ptr, x.to(X.dtype.element_ty), mask=(r < N)[:, None] & (c < D)[None, :])


@triton.jit(do_not_specialize=["H", "NQ"])
def _prepare(OUT, DO, LSE, DLSE, STATS, DELTA, ACC, so, sdo, H, NQ, NQP, stat_scale, D: tl.constexpr, DP: tl.constexpr,
             BM: tl.constexpr, HAS_DLSE: tl.constexpr, ZERO: tl.constexpr):
    """Per query: -LSE times a factor and -Delta. Rows without keys, and padding, get -inf: their P is 0."""
    blocks = NQP // BM
    bh = tl.program_id(0) // blocks
    m0 = (tl.program_id(0) % blocks) * BM
    rows = m0 + tl.arange(0, BM)
    o = _tile(OUT, so, bh // H, bh % H, m0, NQ, D, BM, DP, False, False).to(tl.float32)
    do = _tile(DO, sdo, bh // H, bh % H, m0, NQ, D, BM, DP, False, False).to(tl.float32)
    at = bh.to(tl.int64) * NQ + rows
    lse = tl.load(LSE + at, mask=rows < NQ, other=float("-inf"))
    delta = tl.sum(o * do, 1)
    if HAS_DLSE:
        delta -= tl.load(DLSE + at, mask=rows < NQ, other=0.0)
    dead = lse == float("-inf")
    out = bh.to(tl.int64) * NQP + rows
    tl.store(STATS + out, tl.where(dead, float("-inf"), lse * stat_scale))
    tl.store(DELTA + out, tl.where(dead, 0.0, -delta))
    if ZERO:
        c = tl.arange(0, DP)
        tl.store(ACC + out[:, None] * DP + c[None, :], tl.zeros([BM, DP], tl.float32))


@triton.jit(do_not_specialize=["NQ"])
def _finish(ACC, DQ, NQ, NQP, scale, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr):
    """The atomically summed dQ, scaled and in the operands' type."""
    blocks = NQP // BM
    bh = tl.program_id(0) // blocks
    m0 = (tl.program_id(0) % blocks) * BM
    rows = bh.to(tl.int64) * NQP + m0 + tl.arange(0, BM)
    x = tl.load(ACC + rows[:, None] * DP + tl.arange(0, DP)[None, :])
    _store(DQ, x * scale, bh, m0, NQ, D, BM, DP)


@triton.jit
def _visible(x, keys, queries, lowest, highest, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """x where query i may see key j, i + lowest <= j <= i + highest; 0 elsewhere."""
    if RIGHT:
        x = tl.where(keys <= queries + highest, x, 0.0)
    if LEFT:
        x = tl.where(keys >= queries + lowest, x, 0.0)
    return x


@triton.jit
def _clean(k, v, n0, b, NK, extras, BN: tl.constexpr):
    """Keys and values that the padding mask hides as 0: what they hold may be NaN, and 0 * NaN is NaN."""
    if extras.padding is not None:
        keep = seen(n0 + tl.arange(0, BN), b, NK, extras)[:, None]
        k = tl.where(keep, k, 0.0)
        v = tl.where(keep, v, 0.0)
    return k, v


@triton.jit
def _key_loop(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, h, bh, n0, begin, end, NQ, NK, NQP, qk_scale,
              lowest, highest, extras, SCORED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
              BN: tl.constexpr, MASK: tl.constexpr,
              LEFT: tl.constexpr,
              RIGHT: tl.constexpr, ATOMIC: tl.constexpr, TMA: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr,
              SEED: tl.constexpr):
    """Add the query blocks [begin, end) of one query head to dK and dV of one block of keys."""
    keys = n0 + tl.arange(0, BN)
    cols = tl.arange(0, BM)
    for m0 in tl.range(begin, end, BM):
        q = _tile(Q, sq, b, h, m0, NQ, D, BM, DP, TMA, EVEN_Q)
        do = _tile(DO, sdo, b, h, m0, NQ, D, BM, DP, TMA, EVEN_Q)
        neg_lse = _row(STATS, bh, m0, NQP, BM)
        neg_delta = _row(DELTA, bh, m0, NQP, BM)
        if SEED:
            # the accumulators start from the statistics: a subtraction and their registers saved
            s = tl.dot(k, tl.trans(q), tl.broadcast_to(neg_lse[None, :], (BN, BM)), input_precision="ieee")
            dp = tl.dot(v, tl.trans(do), tl.broadcast_to(neg_delta[None, :], (BN, BM)), input_precision="ieee")
            p = tl.exp2(s * qk_scale)
        else:
            s = tl.dot(k, tl.trans(q), input_precision="ieee")
            dp = tl.dot(v, tl.trans(do), input_precision="ieee")
            if not SCORED:
                p = tl.exp2(s * qk_scale + neg_lse[None, :])
            else:
                s, t = changed(s * qk_scale, m0 + cols[None, :], keys[:, None], b, h, NQ, NK, extras)
                p = tl.exp2(s + neg_lse[None, :])
        if MASK:
            p = _visible(p, keys[:, None], m0 + cols[None, :], lowest, highest, LEFT, RIGHT)
        if ATOMIC and not EVEN_K:
            p = tl.where((keys < NK)[:, None], p, 0.0)  # exp2(-LSE) of a missing key may be inf, and inf * 0 is NaN
        used = p
        if SCORED:  # noqa: SIM102  Triton would look for a field of None
            if extras.seed is not None:
                keep = tl.trans(kept(m0, n0, b, h, extras, BM, BN))
                used = tl.where(keep, p * extras.keep_scale, 0.0)
                dp = tl.where(keep, dp * extras.keep_scale, 0.0)
        dv = tl.dot(used.to(do.dtype), do, dv, input_precision="ieee")
        if not SEED:
            dp = dp + neg_delta[None, :]
        if SCORED:  # noqa: SIM102
            if extras.cap_log2 is not None:
                dp = dp * (1.0 - t * t)
        ds = (p * dp).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")
        if ATOMIC == 1:
            at = (bh.to(tl.int64) * NQP + m0) * DP + cols[:, None] * DP + tl.arange(0, DP)[None, :]
            tl.atomic_add(ACC + at, tl.dot(tl.trans(ds), k, input_precision="ieee"), sem="relaxed")
        elif ATOMIC == 2:
            ACC.atomic_add([bh, m0, 0], tl.dot(tl.trans(ds), k, input_precision="ieee").reshape(1, BM, DP))
    return dk, dv


@triton.jit
def _key_head(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, h, bh, n0, NQ, NK, NQP, qk_scale, lowest, highest,
              extras, SCORED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
              LEFT: tl.constexpr, RIGHT: tl.constexpr, ATOMIC: tl.constexpr, TMA: tl.constexpr, EVEN_Q: tl.constexpr,
              EVEN_K: tl.constexpr, SEED: tl.constexpr):
    """One query head. Under a causal mask the blocks that cross its edge go first, then those that see every key of the
    block; with a left side or options one loop masks them all, since each copy of that loop costs registers."""
    begin, end = 0, NQ
    if RIGHT:
        begin = tl.maximum(n0 - highest, 0) // BM * BM
    if LEFT:
        end = tl.minimum(NQ, n0 + BN - lowest)
    if LEFT or SCORED:
        dk, dv = _key_loop(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, h, bh, n0, begin, end, NQ, NK, NQP,
                           qk_scale, lowest, highest, extras, SCORED, D, DP, BM, BN, LEFT or RIGHT, LEFT, RIGHT,
                           ATOMIC, TMA, EVEN_Q, EVEN_K,
                           SEED)
    else:
        first = begin
        if RIGHT:
            first = tl.minimum(tl.cdiv(tl.maximum(n0 + BN - 1 - highest, 0), BM) * BM, end)
            dk, dv = _key_loop(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, h, bh, n0, begin, first, NQ, NK, NQP,
                               qk_scale, lowest, highest, extras, SCORED, D, DP, BM, BN, True, LEFT, RIGHT, ATOMIC,
                               TMA, EVEN_Q, EVEN_K, SEED)
        dk, dv = _key_loop(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, h, bh, n0, first, end, NQ, NK, NQP,
                           qk_scale, lowest, highest, extras, SCORED, D, DP, BM, BN, False, LEFT, RIGHT, ATOMIC, TMA,
                           EVEN_Q, EVEN_K, SEED)
    return dk, dv


@triton.jit(do_not_specialize=["HK", "NQ", "NK", "lowest", "highest"])
def _key_pass(Q, K, V, DO, STATS, DELTA, DK, DV, ACC, sq, sk, sv, sdo, HK, NQ, NK, NQP, scale, qk_scale, lowest,
              highest, extras, SCORED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, ATOMIC: tl.constexpr,
              TMA: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr, SEED: tl.constexpr):
    """dK and dV of one block of keys, summed over the query heads of its group in float32 (and dQ, by atomics)."""
    blocks = tl.cdiv(NK, BN)
    bhk = tl.program_id(0) // blocks
    n0 = (tl.program_id(0) % blocks) * BN
    b, hk = bhk // HK, bhk % HK
    k = _tile(K, sk, b, hk, n0, NK, D, BN, DP, TMA, EVEN_K)
    v = _tile(V, sv, b, hk, n0, NK, D, BN, DP, TMA, EVEN_K)
    if SCORED:
        k, v = _clean(k, v, n0, b, NK, extras, BN)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    if GROUP == 1:
        dk, dv = _key_head(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, hk, bhk, n0, NQ, NK, NQP, qk_scale,
                           lowest, highest, extras, SCORED, D, DP, BM, BN, LEFT, RIGHT, ATOMIC, TMA, EVEN_Q, EVEN_K,
                           SEED)
    else:
        for g in range(GROUP):
            dk, dv = _key_head(dk, dv, k, v, Q, DO, STATS, DELTA, ACC, sq, sdo, b, hk * GROUP + g, bhk * GROUP + g,
                               n0, NQ, NK, NQP, qk_scale, lowest, highest, extras, SCORED, D, DP, BM, BN, LEFT, RIGHT,
                               ATOMIC, TMA, EVEN_Q, EVEN_K, SEED)
    _store(DK, dk * scale, bhk, n0, NK, D, BN, DP)
    _store(DV, dv, bhk, n0, NK, D, BN, DP)


@triton.jit
def _query_loop(dq, q, do, K, V, neg_lse, neg_delta, sk, sv, b, h, hk, m0, begin, end, NQ, NK, qk_scale, lowest,
                highest, extras, SCORED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
                BN: tl.constexpr, MASK: tl.constexpr,
                TAIL: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, TMA: tl.constexpr, EVEN_K: tl.constexpr):
    """Add the key blocks [begin, end) to dQ of one block of queries."""
    rows = m0 + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    for n0 in tl.range(begin, end, BN):
        k = _tile(K, sk, b, hk, n0, NK, D, BN, DP, TMA, EVEN_K)
        v = _tile(V, sv, b, hk, n0, NK, D, BN, DP, TMA, EVEN_K)
        if SCORED:
            k, v = _clean(k, v, n0, b, NK, extras, BN)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        if not SCORED:
            p = tl.exp2(s * qk_scale + neg_lse[:, None])
        else:
            s, t = changed(s * qk_scale, rows[:, None], n0 + cols[None, :], b, h, NQ, NK, extras)
            p = tl.exp2(s + neg_lse[:, None])
        if MASK:
            p = _visible(p, n0 + cols[None, :], rows[:, None], lowest, highest, LEFT, RIGHT)
        if TAIL:
            p = tl.where((n0 + cols < NK)[None, :], p, 0.0)
        if SCORED:
            if extras.seed is not None:
                dp = tl.where(kept(m0, n0, b, h, extras, BM, BN), dp * extras.keep_scale, 0.0)
            if extras.cap_log2 is not None:
                p = p * (1.0 - t * t)
        ds = (p * (dp + neg_delta[:, None])).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=["H", "NQ", "NK", "lowest", "highest"])
def _query_pass(Q, K, V, DO, STATS, DELTA, DQ, sq, sk, sv, sdo, H, NQ, NK, NQP, scale, qk_scale, lowest, highest,
                extras, SCORED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, TMA: tl.constexpr,
                EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr, SEED: tl.constexpr):
    """dQ of one block of queries; under a causal mask the longest rows go first."""
    blocks = tl.cdiv(NQ, BM)
    bh = tl.program_id(0) // blocks
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = bh // H, bh % H
    hk = h // GROUP
    q = _tile(Q, sq, b, h, m0, NQ, D, BM, DP, TMA, EVEN_Q)
    do = _tile(DO, sdo, b, h, m0, NQ, D, BM, DP, TMA, EVEN_Q)
    neg_lse = _row(STATS, bh, m0, NQP, BM)
    neg_delta = _row(DELTA, bh, m0, NQP, BM)
    if SEED:
        neg_lse *= qk_scale
    begin, end = 0, NK
    if LEFT:
        begin = tl.maximum(m0 + lowest, 0) // BN * BN
    if RIGHT:
        end = tl.minimum(NK, m0 + BM + highest)
    # whole blocks of keys that every query of the block sees: [first, last)
    first, last = begin, end
    if LEFT:
        first = tl.minimum(tl.cdiv(tl.maximum(m0 + BM - 1 + lowest, 0), BN) * BN, end)
    if RIGHT:
        last = tl.maximum(tl.minimum(m0 + highest + 1, NK), 0) // BN * BN
    elif not EVEN_K:
        last = NK // BN * BN
    last = tl.minimum(tl.maximum(last, first), end)
    dq = tl.zeros([BM, DP], tl.float32)
    if LEFT:
        dq = _query_loop(dq, q, do, K, V, neg_lse, neg_delta, sk, sv, b, h, hk, m0, begin, first, NQ, NK, qk_scale,
                         lowest, highest, extras, SCORED, D, DP, BM, BN, True, not EVEN_K, LEFT, RIGHT, TMA, EVEN_K)
    dq = _query_loop(dq, q, do, K, V, neg_lse, neg_delta, sk, sv, b, h, hk, m0, first, last, NQ, NK, qk_scale, lowest,
                     highest, extras, SCORED, D, DP, BM, BN, False, False, LEFT, RIGHT, TMA, EVEN_K)
    if LEFT or RIGHT or not EVEN_K:
        dq = _query_loop(dq, q, do, K, V, neg_lse, neg_delta, sk, sv, b, h, hk, m0, last, end, NQ, NK, qk_scale,
                         lowest, highest, extras, SCORED, D, DP, BM, BN, True, not EVEN_K, LEFT, RIGHT, TMA, EVEN_K)
    _store(DQ, dq * scale, bh, m0, NQ, D, BM, DP)


def launches(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, *, left: int, right: int, scale: float, dlse: torch.Tensor | None, tuning: Tuning,
             grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], extra: Any = None,
             delta: torch.Tensor | None = None) -> Iterator[tuple[Any, int, tuple, dict]]:
    """The kernels of one backward, in order, as (kernel, programs, arguments, options); they fill grads (contiguous).

    left, right: the window, -1 unlimited; extra: a scores.Extras or None; delta: where to write -Delta, (B * H, Nq up
    to a multiple of PAD). Nothing is launched here, so a compiler without a device can walk it too.
    """
    (batch, heads, nq, D), (kv_heads, nk) = q.shape, k.shape[1:3]
    dq, dk, dv = grads
    group, shift = heads // kv_heads, nk - nq
    DP, nqp = padded(D), triton.cdiv(nq, PAD) * PAD
    qk_scale = scale * LOG2_E
    seed = tuning.seed and scale != 0 and extra is None  # -LSE / scale
    one_pass, tma = tuning.queries is None, tuning.tma
    stats = torch.empty((batch * heads, nqp), dtype=torch.float32, device=q.device)
    delta = torch.empty_like(stats) if delta is None else delta
    dq_sum = torch.empty((batch * heads, nqp, DP), dtype=torch.float32, device=q.device) if one_pass else stats
    strides = [tuple(x.stride()[:3]) for x in (q, k, v, dout)]
    mask = dict(LEFT=left >= 0, RIGHT=right >= 0, SCORED=extra is not None)
    bounds = (shift - left if left >= 0 else 0, shift + right if right >= 0 else 0)

    def options(p: Pass) -> dict[str, Any]:
        asked = dict(num_warps=p.num_warps, num_stages=p.num_stages, enable_fp_fusion=True)  # off by default from 3.10
        return {} if INTERPRETED else asked | ({} if p.maxnreg is None else {"maxnreg": p.maxnreg})

    def operands(bm: int, bn: int) -> list[Any]:
        if not tma:
            return [q, k, v, dout]
        return [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, DP])
                for x, rows in zip((q, k, v, dout), (bm, bn, bn, bm))]

    small = 32 if DP > 128 else 64
    yield (_prepare, batch * heads * (nqp // small),
           (out, dout, lse, lse if dlse is None else dlse, stats, delta, dq_sum, tuple(out.stride()[:3]), strides[3],
            heads, nq, nqp, -1.0 / scale if seed else -LOG2_E),
           dict(D=D, DP=DP, BM=small, HAS_DLSE=dlse is not None, ZERO=one_pass, num_warps=4))

    bm, bn = tuning.keys[:2]
    atomic = (2 if tma else 1) if one_pass else 0
    target = TensorDescriptor(dq_sum, list(dq_sum.shape), list(dq_sum.stride()), [1, bm, DP]) if atomic == 2 else dq_sum
    yield (_key_pass, batch * kv_heads * triton.cdiv(nk, bn),
           (*operands(bm, bn), stats, delta, dk, dv, target, *strides, kv_heads, nq, nk, nqp, scale, qk_scale, *bounds,
            extra),
           dict(GROUP=group, D=D, DP=DP, BM=bm, BN=bn, **mask, ATOMIC=atomic, TMA=tma, EVEN_Q=nq % bm == 0,
                EVEN_K=nk % bn == 0, SEED=seed, **options(tuning.keys)))
    if tuning.queries is None:
        yield (_finish, batch * heads * (nqp // small), (dq_sum, dq, nq, nqp, scale),
               dict(D=D, DP=DP, BM=small, num_warps=4))
    else:
        bm, bn = tuning.queries[:2]
        yield (_query_pass, batch * heads * triton.cdiv(nq, bm),
               (*operands(bm, bn), stats, delta, dq, *strides, heads, nq, nk, nqp, scale, qk_scale, *bounds, extra),
               dict(GROUP=group, D=D, DP=DP, BM=bm, BN=bn, **mask, TMA=tma, EVEN_Q=nq % bm == 0, EVEN_K=nk % bn == 0,
                    SEED=seed, **options(tuning.queries)))


STAGES = {_prepare: "prepare", _key_pass: "keys", _query_pass: "queries", _finish: "finish"}
INTERPRETED = not isinstance(_key_pass, triton.JITFunction)  # decided by TRITON_INTERPRET when this module is imported


def _check(dout: Any, q: torch.Tensor, out: Any, lse: Any, dlse: Any) -> None:
    for name, x, shape, dtype in (("dout", dout, q.shape, q.dtype), ("out", out, q.shape, q.dtype),
                                  ("lse", lse, q.shape[:3], torch.float32), ("dlse", dlse, q.shape[:3], torch.float32)):
        if name == "dlse" and x is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise UnsupportedCall(name, "a torch.Tensor", type(x).__name__)
        for what, expected, got in (("shape", tuple(shape), tuple(x.shape)), ("dtype", dtype, x.dtype),
                                    ("device", q.device, x.device)):
            if expected != got:
                raise UnsupportedCall(name, f"{what} {expected}", f"{got}")


def flash2_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    lse: torch.Tensor, *, causal: bool = False, window: tuple[int, int] = (-1, -1),
                    scale: float | None = None, dlse: torch.Tensor | None = None, deterministic: bool = False,
                    tuning: Tuning | Mapping[str, Any] | None = None,
                    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
                    stage: Callable[[str], contextlib.AbstractContextManager] | None = None,
                    options: Options | None = None, dsinks: torch.Tensor | None = None
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of flash attention: dq like q, dk and dv like k, contiguous.

    dout, q, out: (B, H, Nq, D); k, v: (B, Hk, Nk, D); float16, bfloat16 or float32, D up to 256, any strides (a tensor
    whose last stride is not 1 is copied; the dout of out.sum().backward() is one). lse: (B, H, Nq) float32, natural
    logarithm, -inf for a row that sees no key: such a row has gradient 0. dlse: gradient of lse, or None.
    scale: 1/sqrt(D) by default. window: (left, right) inclusive, -1 unlimited; causal is right = 0, bottom-right.
    deterministic: two passes only, bitwise reproducible. tuning: a Tuning, or names of backward_plan.parameters.
    grads: contiguous tensors to write to. stage: called with "prepare", "keys" and "queries" (one pass: "prepare",
    "keys", "finish"), gives the context each launch runs in. options: of kernels.options.check, in the place of causal
    and window; dsinks: (H,) float32, where to write the gradient of its sinks.
    Raises UnsupportedCall, naming the argument, before anything is launched.
    """
    check_inputs(q, k, v, dtypes=(torch.float16, torch.bfloat16, torch.float32), head_dims=range(1, 257))
    if not (INTERPRETED or q.is_cuda):
        raise UnsupportedCall("q", "a CUDA tensor", f"one on {q.device}",
                              "Set TRITON_INTERPRET=1 before Triton is imported.")
    check_flag("causal", causal)
    check_flag("deterministic", deterministic)
    _check(dout, q, out, lse, dlse)
    scale = resolve_scale(scale, q.shape[3])
    left, right = resolve_window(window, causal)
    options = options or Options(left, right)
    left, right, extra = options.left, options.right, extras(options)
    dout, q, k, v, out = (x if x.stride(3) == 1 else x.contiguous() for x in (dout, q, k, v, out))
    lse = lse.contiguous()
    dlse = None if dlse is None else dlse.contiguous()
    if grads is None:
        grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        for x in grads:
            x.zero_()
        if dsinks is not None:
            dsinks.zero_()
        return grads
    cc = None if INTERPRETED or not q.is_cuda else torch.cuda.get_device_capability(q.device)
    tuning = choose((q, k, v, dout), masked=left >= 0 or right >= 0, cc=cc, tuning=tuning, scored=extra is not None,
                    left=left >= 0)
    if deterministic and tuning.queries is None:
        raise UnsupportedCall("tuning", "two passes, as deterministic=True asks", "one pass with atomics",
                              "Give tuning.queries.")
    if tuning.tma:
        for name, x in (("q", q), ("k", k), ("v", v), ("dout", dout)):
            if (obstacle := tma_obstacle(name, x)) is not None:
                raise UnsupportedCall("tuning", "tensors a TMA descriptor can hold", obstacle, "Use tma=False.")
    (batch, heads, nq), delta = lse.shape, None
    if dsinks is not None:
        delta = torch.empty((batch * heads, triton.cdiv(nq, PAD) * PAD), dtype=torch.float32, device=q.device)
    try:
        with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
            for kernel, programs, args, build in launches(dout, q, k, v, out, lse, left=left, right=right,
                                                            scale=scale, dlse=dlse, tuning=tuning, grads=grads,
                                                            extra=extra, delta=delta):
                with stage(STAGES[kernel]) if stage is not None else contextlib.nullcontext():
                    kernel[(programs,)](*args, **build)
    except OutOfResources as error:
        raise UnsupportedCall("tuning", "blocks that fit the device", f"{tuning} ({error})",
                              "Use smaller blocks or fewer stages.") from error
    if delta is not None and dsinks is not None and options.sinks is not None:
        p = torch.exp(options.sinks[:, None] - lse).masked_fill_(lse == float("-inf"), 0.0)
        dsinks.copy_((p * delta[:, :nq].reshape(lse.shape)).sum((0, 2)))
    return grads
