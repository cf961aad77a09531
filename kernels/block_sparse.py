"""Attention that a block mask thins out, forward and backward: of the blocks of ``size`` queries by ``size`` keys only
the kept ones are read and computed.

`block_lists` turns a mask into two lists: for each block of queries the kept blocks of keys, for each block of keys the
kept blocks of queries. A program walks its list, so that a skipped block costs nothing; the tiles are those of flash2,
read through pointers. The lists are sorted and padded to one length, so that nothing waits for the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.api import DTYPES, HEAD_DIMS, _autocast, _traced, capability
from kernels.checks import check_flag, check_inputs, check_like, resolve_scale
from kernels.errors import UnsupportedCall
from kernels.flash2 import _load, _walk
from kernels.flash2_backward import PAD, _key_loop, _prepare, _query_loop, _row, _store, _tile
from kernels.launch import backward_tuning, on_device, parameters, pointer_tuning
from kernels.plan import Tuning, padded
from kernels.scores import LOG2_E
from kernels.varlen import TABLE, close_rows


@dataclass(frozen=True)
class BlockLists:
    """A block mask (B or 1, H or 1, query blocks, key blocks) as int32 lists, all contiguous.

    columns (b, h, query blocks, key blocks): the kept blocks of keys first, rising; column_counts (b, h, query blocks):
    how many; rows and row_counts the same for blocks of keys.
    """

    columns: torch.Tensor
    column_counts: torch.Tensor
    rows: torch.Tensor
    row_counts: torch.Tensor
    size: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.columns, self.column_counts, self.rows, self.row_counts


def block_lists(mask: torch.Tensor, size: int) -> BlockLists:
    """mask: bool, True where a block is kept. Worth keeping where many calls share a mask."""
    def listed(kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.sort(kept.to(torch.int8), dim=-1, descending=True, stable=True).indices
        return places.int().contiguous(), kept.sum(-1, dtype=torch.int32).contiguous()

    return BlockLists(*listed(mask), *listed(mask.transpose(2, 3)), size)


@triton.jit
def _list(lists, counts, batch, head, block, stride_b, stride_h, LENGTH):
    """(first element of one block's list, how many); strides in blocks, 0 where all batches or heads share a mask."""
    place = batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h + block
    return lists + place * LENGTH, tl.load(counts + place)


@triton.jit(do_not_specialize=["heads", "nq", "nk", "length", "mask_b", "mask_h"])
def _forward(q, k, v, out, lse, columns, counts, scale_log2, stride_qb, stride_qh, stride_qn, stride_kb, stride_kh,
             stride_kn, stride_vb, stride_vh, stride_vn, mask_b, mask_h, length, heads, nq, nk, GROUP: tl.constexpr,
             HEAD_DIM: tl.constexpr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
             BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, SIGN: tl.constexpr):
    """BLOCK_M queries of one head; SIZE is a multiple of BLOCK_M and BLOCK_N. out and lse are contiguous."""
    blocks = tl.cdiv(nq, BLOCK_M)
    program = tl.program_id(0)
    batch_head = program // blocks
    start_m = (blocks - 1 - program % blocks) * BLOCK_M
    batch, head = batch_head // heads, batch_head % heads
    kv_head = head // GROUP
    q += batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k += batch.to(tl.int64) * stride_kb + kv_head.to(tl.int64) * stride_kh
    v += batch.to(tl.int64) * stride_vb + kv_head.to(tl.int64) * stride_vh
    q_tile = _load(q, batch, head, start_m, stride_qn, nq, HEAD_DIM, BLOCK_M, BLOCK_D, "pointer", True)
    if SIGN != 1:
        q_tile = (q_tile * SIGN).to(q_tile.dtype)
    rows = start_m + tl.arange(0, BLOCK_M)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    shift = nk - nq
    end, full_end = nk, nk
    if CAUSAL:
        end = tl.minimum(start_m + BLOCK_M + shift, nk)
        full_end = tl.minimum(start_m + shift + 1, nk)
    kept, count = _list(columns, counts, batch, head, start_m // SIZE, mask_b, mask_h, length)
    for i in range(count):
        low = tl.load(kept + i) * SIZE
        if low + SIZE <= full_end:
            acc, l_i, m_i = _walk(acc, l_i, m_i, q_tile, k, v, batch, head, kv_head, low, low + SIZE, start_m, rows,
                                  stride_kn, stride_vn, nq, nk, shift, shift, scale_log2, None, False, HEAD_DIM,
                                  BLOCK_M, BLOCK_N, BLOCK_D, "pointer", False, CAUSAL, False)
        else:
            acc, l_i, m_i = _walk(acc, l_i, m_i, q_tile, k, v, batch, head, kv_head, low, tl.minimum(low + SIZE, end),
                                  start_m, rows, stride_kn, stride_vn, nq, nk, shift, shift, scale_log2, None, False,
                                  HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, "pointer", False, CAUSAL, True)
    o, logarithm = close_rows(acc, l_i, m_i, head, None, False)
    tl.store(lse + batch_head.to(tl.int64) * nq + rows, logarithm, mask=rows < nq)
    _store(out, o, batch_head, start_m, nq, HEAD_DIM, BLOCK_M, BLOCK_D)


@triton.jit(do_not_specialize=["HK", "NQ", "NK", "length", "mask_b", "mask_h"])
def _key_pass(Q, K, V, DO, STATS, DELTA, DK, DV, lists, counts, sq, sk, sv, sdo, mask_b, mask_h, length, HK, NQ, NK,
              NQP, scale, qk_scale, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """dK and dV of one block of keys, summed over its query heads and their kept blocks of queries in float32."""
    blocks = tl.cdiv(NK, BN)
    bhk = tl.program_id(0) // blocks
    n0 = (tl.program_id(0) % blocks) * BN
    b, hk = bhk // HK, bhk % HK
    k = _tile(K, sk, b, hk, n0, NK, D, BN, DP, False, False)
    v = _tile(V, sv, b, hk, n0, NK, D, BN, DP, False, False)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, DP], tl.float32)
    shift = NK - NQ
    for g in range(GROUP):
        h = hk * GROUP + g
        kept, count = _list(lists, counts, b, h, n0 // SIZE, mask_b, mask_h, length)
        for i in range(count):
            low = tl.load(kept + i) * SIZE
            end = tl.minimum(low + SIZE, NQ)
            if CAUSAL:
                low = tl.maximum(low, (n0 - shift) // BM * BM)  # queries before see no key of this block
            dk, dv = _key_loop(dk, dv, k, v, Q, DO, STATS, DELTA, STATS, sq, sdo, b, h, bhk * GROUP + g, n0, low, end,
                               NQ, NK, NQP, qk_scale, shift, shift, None, False, D, DP, BM, BN, CAUSAL, False, CAUSAL,
                               0, False, False, False, False)
    _store(DK, dk * scale, bhk, n0, NK, D, BN, DP)
    _store(DV, dv, bhk, n0, NK, D, BN, DP)


@triton.jit(do_not_specialize=["H", "NQ", "NK", "length", "mask_b", "mask_h"])
def _query_pass(Q, K, V, DO, STATS, DELTA, DQ, lists, counts, sq, sk, sv, sdo, mask_b, mask_h, length, H, NQ, NK, NQP,
                scale, qk_scale, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """dQ of one block of queries, over its kept blocks of keys."""
    blocks = tl.cdiv(NQ, BM)
    bh = tl.program_id(0) // blocks
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = bh // H, bh % H
    q = _tile(Q, sq, b, h, m0, NQ, D, BM, DP, False, False)
    do = _tile(DO, sdo, b, h, m0, NQ, D, BM, DP, False, False)
    neg_lse = _row(STATS, bh, m0, NQP, BM)
    neg_delta = _row(DELTA, bh, m0, NQP, BM)
    dq = tl.zeros([BM, DP], tl.float32)
    shift, end = NK - NQ, NK
    if CAUSAL:
        end = tl.minimum(NK, m0 + BM + shift)
    kept, count = _list(lists, counts, b, h, m0 // SIZE, mask_b, mask_h, length)
    for i in range(count):
        low = tl.load(kept + i) * SIZE
        dq = _query_loop(dq, q, do, K, V, neg_lse, neg_delta, sk, sv, b, h, h // GROUP, m0, low,
                         tl.minimum(low + SIZE, end), NQ, NK, qk_scale, shift, shift, None, False, D, DP, BM, BN,
                         CAUSAL, True, False, CAUSAL, False, False)
    _store(DQ, dq * scale, bh, m0, NQ, D, BM, DP)


INTERPRETED = not isinstance(_forward, triton.JITFunction)  # decided by TRITON_INTERPRET when this module is imported


def _mask_strides(lists: torch.Tensor) -> tuple[int, int, int]:
    """Of contiguous lists (b, h, blocks, length), in blocks: between batches, between heads, and the length."""
    b, h, blocks, length = lists.shape
    return (h * blocks if b > 1 else 0), (blocks if h > 1 else 0), length


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists, tuning: Tuning, *, causal: bool,
            scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch on checked tensors: q (B, H, Nq, D), k and v (B, Hk, Nk, D) -> out like q, contiguous, lse (B, H, Nq)."""
    (batch, heads, nq, head_dim), (kv_heads, nk) = q.shape, k.shape[1:3]
    out, lse = q.new_empty(q.shape), q.new_empty((batch, heads, nq), dtype=torch.float32)
    if out.numel() == 0 or nk == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    build = {} if INTERPRETED else {"enable_fp_fusion": True}  # the exponent's multiply-add; off by default from 3.10
    with on_device(q, tuning):
        _forward[(triton.cdiv(nq, tuning.block_m) * batch * heads,)](
            q, k, v, out, lse, lists.columns, lists.column_counts, abs(scale) * LOG2_E.value or 1.0, *q.stride()[:3],
            *k.stride()[:3], *v.stride()[:3], *_mask_strides(lists.columns), heads, nq, nk, GROUP=heads // kv_heads,
            HEAD_DIM=head_dim, SIZE=lists.size, BLOCK_M=tuning.block_m, BLOCK_N=tuning.block_n,
            BLOCK_D=padded(head_dim), CAUSAL=causal, SIGN=(scale > 0) - (scale < 0), num_warps=tuning.num_warps,
            num_stages=tuning.num_stages, **build)
    return out, lse


def launches(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, dlse: torch.Tensor | None, lists: BlockLists, grads: tuple[torch.Tensor, ...], *,
             tuning: Any, causal: bool, scale: float
             ) -> Iterator[tuple[str, Any, int, tuple[Any, ...], Mapping[str, Any]]]:
    """The kernels of one backward, in order, as (stage, kernel, programs, arguments, options)."""
    (batch, heads, nq, d), (kv_heads, nk) = q.shape, k.shape[1:3]
    dq, dk, dv = grads
    nqp, dp = triton.cdiv(nq, PAD) * PAD, padded(d)
    stats, delta = q.new_empty((2, batch * heads, nqp), dtype=torch.float32)
    strides = [tuple(x.stride()[:3]) for x in (q, k, v, dout)]
    small, qk_scale = 32 if dp > 128 else 64, scale * LOG2_E.value
    shared = dict(GROUP=heads // kv_heads, D=d, DP=dp, SIZE=lists.size, CAUSAL=causal)

    def build(one: Any) -> dict[str, Any]:
        more = {} if INTERPRETED else {"enable_fp_fusion": True}
        return dict(BM=one.block_m, BN=one.block_n, num_warps=one.num_warps, num_stages=one.num_stages, **more)

    yield ("prepare", _prepare, batch * heads * (nqp // small),
           (out, dout, lse, lse if dlse is None else dlse, stats, delta, stats, tuple(out.stride()[:3]), strides[3],
            heads, nq, nqp, -LOG2_E.value),
           dict(D=d, DP=dp, BM=small, HAS_DLSE=dlse is not None, ZERO=False, num_warps=4))
    yield ("keys", _key_pass, batch * kv_heads * triton.cdiv(nk, tuning.keys.block_n),
           (q, k, v, dout, stats, delta, dk, dv, lists.rows, lists.row_counts, *strides, *_mask_strides(lists.rows),
            kv_heads, nq, nk, nqp, scale, qk_scale), dict(**shared, **build(tuning.keys)))
    yield ("queries", _query_pass, batch * heads * triton.cdiv(nq, tuning.queries.block_m),
           (q, k, v, dout, stats, delta, dq, lists.columns, lists.column_counts, *strides,
            *_mask_strides(lists.columns), heads, nq, nk, nqp, scale, qk_scale),
           dict(**shared, **build(tuning.queries)))


def fit(tuning: Any, size: int) -> Any:
    """Blocks that divide those of the mask: powers of two, so the greatest common divisor is one."""
    if isinstance(tuning, Tuning):
        return replace(tuning, block_m=gcd(tuning.block_m, size), block_n=gcd(tuning.block_n, size))
    keys, queries = (one._replace(block_m=gcd(one.block_m, size), block_n=gcd(one.block_n, size))
                     for one in (tuning.keys, tuning.queries))
    return replace(tuning, keys=keys, queries=queries)


def choose(q: torch.Tensor, size: int, tuning: Mapping[str, Any] | None) -> Tuning:
    """The configuration of a forward; a block that does not divide ``size`` is refused where the caller gave it."""
    chosen = pointer_tuning(TABLE, q, capability(q), tuning)
    for name in ("block_m", "block_n"):
        if tuning and name in tuning and size % tuning[name]:
            raise UnsupportedCall(f"tuning[{name!r}]", f"a divisor of block_size {size}", repr(tuning[name]))
    return fit(chosen, size)


def check(q: Any, k: Any, v: Any, mask: Any, size: Any, *, causal: bool, scale: float | None) -> float:
    """The softmax scale of a call, or UnsupportedCall by name."""
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    check_flag("causal", causal)
    if isinstance(size, bool) or not isinstance(size, int) or size < 16 or size % 16:
        raise UnsupportedCall("block_size", "a multiple of 16", repr(size))
    (batch, heads, nq, _), nk = q.shape, k.shape[2]
    blocks = (triton.cdiv(nq, size), triton.cdiv(nk, size))
    given = mask.columns if isinstance(mask, BlockLists) else mask
    if mask is not None:
        if not isinstance(given, torch.Tensor) or (given is mask and given.dtype != torch.bool):
            raise UnsupportedCall("block_mask", "a bool tensor, True where a block is kept",
                                  str(getattr(mask, "dtype", type(mask).__name__)))
        if given.device != q.device:
            raise UnsupportedCall("block_mask", f"the device of q, {q.device}", f"{given.device}")
        shape = tuple(given.shape)
        if len(shape) != 4 or shape[2:] != blocks or shape[0] not in (1, batch) or shape[1] not in (1, heads):
            raise UnsupportedCall("block_mask", f"shape ({batch} or 1, {heads} or 1, {blocks[0]}, {blocks[1]}), blocks "
                                                f"of {size}", f"{shape}")
    if isinstance(mask, BlockLists) and mask.size != size:
        raise UnsupportedCall("block_size", f"{mask.size} as the lists have", repr(size))
    return resolve_scale(scale, q.shape[3])


def _lists(q: torch.Tensor, k: torch.Tensor, mask: Any, size: int) -> BlockLists:
    if isinstance(mask, BlockLists):
        return mask
    if mask is None:
        shape = (1, 1, triton.cdiv(q.shape[2], size), triton.cdiv(k.shape[2], size))
        mask = torch.ones(shape, dtype=torch.bool, device=q.device)
    return block_lists(mask, size)


def block_sparse_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: Any = None,
                           block_size: int = 128, causal: bool = False, scale: float | None = None,
                           return_lse: bool = False, tuning: Mapping[str, Any] | None = None
                           ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v over the kept blocks, differentiable once.

    q (B, H, Nq, D), k and v (B, Hk, Nk, D), Hk dividing H; float16, bfloat16 or float32; D 1 to 256; any strides with
    unit last stride. block_mask: bool (B or 1, H or 1, ⌈Nq / block_size⌉, ⌈Nk / block_size⌉), True where a block is
    kept, or the BlockLists made of one; None keeps all. block_size: a multiple of 16. causal: bottom-right aligned, on
    top of it. A row that sees no key is 0, its LSE -inf, its gradients 0. Returns out (B, H, Nq, D), contiguous, and
    with return_lse also the natural-log LSE, float32 (B, H, Nq). Gradients reach q, k and v from both, bitwise the same
    from run to run. tuning: any of block_m, block_n (divisors of block_size), num_warps, num_stages.
    """
    q, k, v = _autocast(q, k, v)
    scale = check(q, k, v, block_mask, block_size, causal=causal, scale=scale)
    check_flag("return_lse", return_lse)
    if tuning:
        choose(q, block_size, tuning)
    lists = _lists(q, k, block_mask, block_size)
    numbers = [int(tuning[name]) if tuning and name in tuning else -1 for name in _TUNING]
    call = operator if _traced(q, k, v) else _launch
    out, lse = call(q, k, v, *lists.tensors, block_size, causal, scale, numbers)
    return (out, lse) if return_lse else out


_TUNING = ("block_m", "block_n", "num_warps", "num_stages")
_REST = "Tensor columns, Tensor column_counts, Tensor rows, Tensor row_counts, int size, bool causal, float scale"


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, columns: torch.Tensor, column_counts: torch.Tensor,
            rows: torch.Tensor, row_counts: torch.Tensor, size: int, causal: bool, scale: float, tuning: list[int]
            ) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = choose(q, size, {name: n for name, n in zip(_TUNING, tuning) if n > 0})
    return forward(q, k, v, BlockLists(columns, column_counts, rows, row_counts, size), chosen, causal=causal,
                   scale=scale)


operator = torch.library.custom_op("flashscope::block_sparse", _launch, mutates_args=(), schema=(
    f"(Tensor q, Tensor k, Tensor v, {_REST}, int[] tuning) -> (Tensor, Tensor)"))


@operator.register_fake
def _(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def gradients(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
              lse: torch.Tensor, dlse: torch.Tensor | None, columns: torch.Tensor, column_counts: torch.Tensor,
              rows: torch.Tensor, row_counts: torch.Tensor, size: int, causal: bool, scale: float, *,
              stage: Callable[[str], Any] | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous. stage: called with "prepare", "keys" and "queries", gives the context
    each launch runs in."""
    dout = dout if dout.stride(3) == 1 else dout.contiguous()
    dlse = None if dlse is None else dlse.contiguous()
    grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        return tuple(x.zero_() for x in grads)
    tuning = fit(backward_tuning(q, k, capability(q), scored=False), size)
    with on_device(q, tuning):
        for name, kernel, programs, arguments, build in launches(
                dout, q, k, v, out, lse, dlse, BlockLists(columns, column_counts, rows, row_counts, size), grads,
                tuning=tuning, causal=causal, scale=scale):
            with stage(name) if stage is not None else contextlib.nullcontext():
                kernel[(programs,)](*arguments, **build)
    return grads


backward = torch.library.custom_op("flashscope::block_sparse_backward", gradients, mutates_args=(), schema=(
    f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, {_REST}) -> "
    "(Tensor, Tensor, Tensor)"))


@backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, columns, column_counts, rows, row_counts, ctx.size, ctx.causal, ctx.scale, _ = inputs
    ctx.save_for_backward(q, k, v, *output, columns, column_counts, rows, row_counts)
    ctx.set_materialize_grads(False)  # an LSE that nobody uses has gradient None, not a tensor of zeros


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, *lists = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 11
    dout = torch.zeros_like(out) if dout is None else dout
    return (*backward(dout, q, k, v, out, lse, dlse, *lists, ctx.size, ctx.causal, ctx.scale), *(None,) * 8)


operator.register_autograd(_gradients, setup_context=_save)


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: Any = None, block_size: int = 128,
            causal: bool = False, tuning: Mapping[str, Any] | None = None, **options: Any) -> dict[str, int]:
    """The tuning parameters that a call runs with."""
    check(q, k, v, block_mask, block_size, causal=causal, scale=None)
    return parameters(choose(q, block_size, tuning))


def prepare_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *, block_mask: Any = None,
                     block_size: int = 128, causal: bool = False, scale: float | None = None
                     ) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Run the forward; the backward alone as a call that takes a stage, and its parameters (see kernels.registry)."""
    from kernels import backward_plan

    q, k, v = (x.detach() for x in (q, k, v))
    scale = check(q, k, v, block_mask, block_size, causal=causal, scale=scale)
    check_like("dout", dout, q)
    rest = (*_lists(q, k, block_mask, block_size).tensors, block_size, causal, scale)
    out, lse = _launch(q, k, v, *rest, [])

    def run(stage: Any = None) -> tuple[torch.Tensor, ...]:
        return gradients(dout, q, k, v, out, lse, None, *rest, stage=stage)

    return run, backward_plan.parameters(fit(backward_tuning(q, k, capability(q), scored=False), block_size))
