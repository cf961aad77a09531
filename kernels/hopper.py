"""The attention forward for Hopper (sm_90) in Gluon: softmax(Q K' scale) V and its logarithm, float16 or bfloat16.

After FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608): asynchronous copies by a warp of their own, warpgroups that
take turns, and the softmax of a block under the products of others. A program is one warp that loads and two or three
warpgroups of 64 query rows that compute. The loading warp streams blocks of keys and values by TMA into two rings of
shared memory. A computing warpgroup keeps its scores, P and its output in registers; in each step (`_step`) it issues
the scores of the next block and P V of this one, then takes the softmax of the scores while the tensor cores serve the
others, which take turns (named barriers). Programs stay: each walks a list of tiles, (batch, head, query rows), block
by block from the last visible key to the first. The maximum of a row's first block stays for all (`fixed`), which saves
a maximum and a rescaling a block; rows for which that was too low are found by their sums and done again (`_repair`):
beyond 2^72, or where float16 is rounded before it is looked at (`narrow`) beyond 65,504.

Names: q (B, H, Nq, D), k and v (B, Hk, Nk, D), out like q, lse (B, H, Nq) float32, natural logarithm; m, a row's
maximum, counts powers of two, as scores times scale_log2 do. kernels.hopper_softmax has the softmax, hopper_repair the
rows that are done again, hopper_tiles what is read and written of a tile, hopper_plan the choice of a form P for a call
and what each choice gave, hopper_varlen the tiles of packed sequences, gluon_names the names of Gluon.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from kernels.gluon_names import (
    DTYPES,
    NAMED_BARRIERS,
    TensorDescriptor,
    gl,
    gluon,
    mbarrier,
    named_arrive,
    named_sync,
    tma_load,
    tma_store_wait,
    warpgroup_mma_wait,
)
from kernels.hopper_plan import Config, group_of, tile_lists
from kernels.hopper_repair import _repair
from kernels.hopper_softmax import INFINITY, _lanes, _masked, _raise, _rescale, _weights
from kernels.hopper_tiles import (
    _accumulator,
    _add_values,
    _blocks,
    _clear,
    _place,
    _rounded,
    _scores,
    _sequence,
    _store_lse,
    _store_output,
    _tile,
)

LOG2_E = math.log2(math.e)
TURN = gl.constexpr(NAMED_BARRIERS[0])


# ---- turns of the computing warpgroups -------------------------------------------------------------------------
@gluon.jit
def _take_turn(C: gl.constexpr, P: gl.constexpr):
    if P.turns:
        named_sync(TURN + C, 256)


@gluon.jit
def _pass_turn(C: gl.constexpr, P: gl.constexpr):
    if P.turns:
        named_arrive(TURN + (C + 1) % P.consumers, 256)


# ---- the loading warp ------------------------------------------------------------------------------------------
@gluon.jit
def _load_block(descriptor, batch, head, row, full, free, ring, count, STAGES: gl.constexpr):
    stage = count % STAGES
    mbarrier.wait(free.index(stage), ((count // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(stage), descriptor.block_type.nbytes)
    tma_load(descriptor, [batch, head, row, 0], full.index(stage), ring.index(stage))


@gluon.jit
def _loader(tensors, barriers, buffers, call, P: gl.constexpr):
    q_in, k_in, v_in, _ = tensors
    table, width = call[1], call[2]
    q_full, q_free, k_full, k_free, v_full, v_free, _ = barriers
    q_ring, k_ring, v_ring, _ = buffers
    BN: gl.constexpr = P.block_n
    CONSUMERS: gl.constexpr = P.consumers
    count = 0
    tile = 0
    table += gl.program_id(0) * width
    word = gl.load(table)
    while word >= 0:
        following = gl.load(table + tile + 1)
        row, head, batch = _tile(word, P)
        nq, nk, lowest, highest, batch, first_q, first_k = _sequence(batch, call, P)
        kv_head = head // P.group
        first, end = _blocks(row, nq, nk, lowest, highest, P)
        # K before Q, whose buffer may still be in use; then K one block ahead of V: the order of use
        _load_block(k_in, batch, kv_head, first_k + (end - 1) * BN, k_full, k_free, k_ring, count, P.stages)
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_free.index(c), (tile & 1) ^ 1)
            mbarrier.expect(q_full.index(c), q_in.block_type.nbytes)
            tma_load(q_in, [batch, head, first_q + row + c * 64, 0], q_full.index(c), q_ring.index(c))
        for block in range(1, end - first):
            column = first_k + (end - 1 - block) * BN
            _load_block(k_in, batch, kv_head, column, k_full, k_free, k_ring, count + 1, P.stages)
            _load_block(v_in, batch, kv_head, column + BN, v_full, v_free, v_ring, count, P.stages)
            count += 1
        _load_block(v_in, batch, kv_head, first_k + first * BN, v_full, v_free, v_ring, count, P.stages)
        count += 1
        tile += 1
        word = following


# ---- the computing warpgroups ----------------------------------------------------------------------------------
@gluon.jit
def _registers(q, P: gl.constexpr):
    """Q (64, D) as a register operand."""
    return q.reshape([64, P.head_dim]).load(gl.DotOperandLayout(0, _accumulator(P.block_n), 2))


@gluon.jit
def _step(C: gl.constexpr, q, rings, count, more, pv, acc, m, sums, column, row, nk, lowest, highest, scale_log2,
          MASKED: gl.constexpr, P: gl.constexpr):
    """Scores of the next block, P V of this one, softmax of the next. more: whether a block follows the next."""
    k_ring, v_ring, k_full, k_free, v_full, v_free = rings
    D: gl.constexpr = P.head_dim
    BN: gl.constexpr = P.block_n
    ST: gl.constexpr = P.stages
    FIXED: gl.constexpr = P.fixed and not (MASKED and P.edge)  # else the first block has shown each row a key
    k_stage = (count + 1) % ST
    v_stage = count % ST
    _take_turn(C, P)
    s = _scores(q, k_ring.index(k_stage), D, BN, BN)
    mbarrier.wait(v_full.index(v_stage), (count // ST) & 1)
    acc = _add_values(pv, v_ring.index(v_stage), acc, P)
    _pass_turn(C, P)
    if FIXED and not P.late:
        sums, m, alpha = _raise(sums, m, P)
    if P.overlap:
        s = warpgroup_mma_wait(1, deps=(s, ))
    else:
        s, acc = warpgroup_mma_wait(0, deps=(s, acc))
    mbarrier.arrive(k_free.index(k_stage), count=1)
    if MASKED:
        s = _masked(s, column, row, nk, lowest, highest, P, BN, _accumulator(BN), not P.edge)
    if FIXED:
        p, m, sums, _ = _weights(s, m, sums, scale_log2, BN, True, False)
    else:
        if P.fixed and P.left:  # a sum that tells of an overflow may not be scaled down
            sums = gl.where(sums < P.largest, sums, INFINITY)
        p, m, sums, alpha = _weights(s, m, sums, scale_log2, BN, False, MASKED)
    if FIXED and P.late:
        sums, m, alpha = _raise(sums, m, P)
        p = _rescale(p, alpha, BN)
    pv = _rounded(p, v_ring.dtype, P)
    # this wait ends a basic block, so that ptxas cannot lift the next wgmma wait above the softmax
    mbarrier.wait(k_full.index((count + 2) % ST), ((count + 2) // ST) & 1, pred=more)
    acc = warpgroup_mma_wait(0, deps=(acc, ))
    mbarrier.arrive(v_free.index(v_stage), count=1)
    return pv, _rescale(acc, alpha, D), m, sums


@gluon.jit
def _beside_nothing(p, BN: gl.constexpr):
    """P (64, BN) of a block of which p (64, BN / 2) is the first half, the rest 0: p * 0, since a constant operand
    makes ptxas wait after every wgmma of the loop."""
    p = gl.permute(gl.join(p, p * 0.0), (0, 2, 1))
    return gl.convert_layout(gl.reshape(p, [64, BN]), _accumulator(BN))


@gluon.jit
def _with_next(fm, q, rings, count, blocks, seen, scale_log2, P: gl.constexpr):
    """The maxima of the first block with those of the next where the first has less than half of its keys (seen): few
    are no measure for the others, and float16 ends soon."""
    k_ring, _, k_full, _, _, _ = rings
    BN: gl.constexpr = P.block_n
    if (seen < BN // 2) & (blocks > 1):
        stage = (count + 1) % P.stages
        mbarrier.wait(k_full.index(stage), ((count + 1) // P.stages) & 1)
        s = _scores(q, k_ring.index(stage), P.head_dim, BN, BN)
        s = warpgroup_mma_wait(0, deps=(s, ))
        fm = gl.maximum(fm, gl.convert_layout(gl.max(s, 1) * scale_log2, fm.type.layout))
    return fm


@gluon.jit
def _consumer(C: gl.constexpr, tensors, barriers, buffers, call, P: gl.constexpr):
    """64 rows of each tile, from row 64 C on: first block, steps, last product, results. What could be functions of
    their own stands here where ptxas orders it otherwise."""
    q_in, _, _, o_out = tensors
    lse, table, width, scale_log2 = call[0], call[1], call[2], call[8]
    q_full, q_free, k_full, k_free, v_full, v_free, _ = barriers
    q_ring, k_ring, v_ring, o_ring = buffers
    rings = (k_ring, v_ring, k_full, k_free, v_full, v_free)
    D: gl.constexpr = P.head_dim
    BN: gl.constexpr = P.block_n
    ST: gl.constexpr = P.stages
    # two consumers that share every block: rows 0 to 63 see half of the block on the diagonal
    BF: gl.constexpr = BN // 2 if P.ahead and P.causal and not P.edge and C == 0 else BN
    ROWS: gl.constexpr = gl.SliceLayout(1, _accumulator(BN))
    FIRST: gl.constexpr = _accumulator(BF)
    count = 0
    tile = 0
    lost = gl.sum(gl.sum(_lanes(gl.zeros([64, BN], gl.float32, _accumulator(BN)), BN), 1), 1)  # rows of any tile
    table += gl.program_id(0) * width
    if P.consumers - 1 == C:
        _pass_turn(C, P)  # the first consumer begins
    word = gl.load(table)
    if P.ahead:  # a program without tiles, of packed sequences, is sent nothing: it may not wait
        mbarrier.wait(q_full.index(C), 0, pred=word >= 0)
        q = _registers(q_ring.index(C), P)
        mbarrier.arrive(q_free.index(C), count=1)
        mbarrier.wait(k_full.index(0), 0, pred=word >= 0)
        f = _scores(gl.convert_layout(q, gl.DotOperandLayout(0, FIRST, 2)), k_ring.index(0), D, BN, BF)
        f = warpgroup_mma_wait(0, deps=(f, ))
        mbarrier.arrive(k_free.index(0), count=1, pred=word >= 0)
    else:
        q = q_ring.index(C).reshape([64, D])
    while word >= 0:
        following = gl.load(table + tile + 1)
        row, head, number = _tile(word, P)
        nq, nk, lowest, highest, batch, first_q, first_k = _sequence(number, call, P)  # noqa: RUF059
        first, end = _blocks(row, nq, nk, lowest, highest, P)
        row += C * 64
        if not P.ahead:
            blocks = end - first
            if P.causal and not P.edge:  # the consumers' diagonals may lie in different blocks
                end = gl.minimum(end, (row + 64 + highest + BN - 1) // BN)
            if not P.edge:  # no rows: one block is enough
                end = gl.where(row < nq, end, first + 1)
            for _block in range(end - first, blocks):  # blocks of the other consumers: hand them on
                stage = count % ST
                mbarrier.wait(k_full.index(stage), (count // ST) & 1)
                mbarrier.arrive(k_free.index(stage), count=1)
                mbarrier.wait(v_full.index(stage), (count // ST) & 1)
                mbarrier.arrive(v_free.index(stage), count=1)
                _take_turn(C, P)
                _pass_turn(C, P)
                count += 1
            mbarrier.wait(q_full.index(C), tile & 1)
            stage = count % ST
            mbarrier.wait(k_full.index(stage), (count // ST) & 1)
            f = _scores(q, k_ring.index(stage), D, BN, BF)
            f = warpgroup_mma_wait(0, deps=(f, ))
            mbarrier.arrive(k_free.index(stage), count=1)
        blocks = end - first
        column = (end - 1) * BN
        # the first block: P, sums and the maximum that stays
        f = _masked(f, column, row, nk, lowest, highest, P, BF, FIRST, False)
        fm = gl.max(f, 1) * scale_log2
        if P.narrow and not P.causal and not P.left:
            fm = _with_next(fm, q, rings, count, blocks, nk - column, scale_log2, P)
        used = fm
        if P.edge:
            used = gl.where(fm == -INFINITY, 0.0, fm)
        elif P.left:  # rows behind the last
            fm = gl.where(fm == -INFINITY, 0.0, fm)
            used = fm
        p = gl.exp2(f * scale_log2 - used[:, None])
        if BF != BN:
            p = _beside_nothing(p, BN)
        sums = gl.sum(_lanes(p, BN), 1)
        m = gl.convert_layout(fm, gl.SliceLayout(1, sums.type.layout))[:, None] + gl.zeros_like(sums)
        acc = gl.zeros([64, D], gl.float32, _accumulator(D))
        pv = _rounded(p, q_in.dtype, P)
        if P.packed:  # noqa: SIM102  the second is a tensor
            if column + BN > nk:  # decided when it runs
                mbarrier.wait(v_full.index(count % ST), (count // ST) & 1)
                _clear(v_ring.index(count % ST).reshape([BN, D]), nk - column, BN, D)
        mbarrier.wait(k_full.index((count + 1) % ST), ((count + 1) // ST) & 1, pred=blocks > 1)
        # the steps; blocks that a side of the window may cross: those down to the first row's last key, and those from
        # the last row's first key
        clean = 1
        left = blocks
        if P.causal and P.edge:
            clean = gl.minimum(gl.maximum(end - gl.maximum(row - C * 64 + highest, 0) // BN, 1), blocks)
        if P.left:
            last = row + 63 + lowest
            left = gl.maximum(blocks - gl.maximum((last + BN - 1) // BN - first, 0), clean)
        if P.causal and P.edge:
            for j in range(1, clean):
                pv, acc, m, sums = _step(C, q, rings, count, j + 1 < blocks, pv, acc, m, sums, column - j * BN, row, nk,
                                         lowest, highest, scale_log2, True, P)
                count += 1
        for j in range(clean, left):
            pv, acc, m, sums = _step(C, q, rings, count, j + 1 < blocks, pv, acc, m, sums, 0, row, nk, lowest, highest,
                                     scale_log2, False, P)
            count += 1
        if P.left:
            for j in range(left, blocks):
                pv, acc, m, sums = _step(C, q, rings, count, j + 1 < blocks, pv, acc, m, sums, column - j * BN, row, nk,
                                         lowest, highest, scale_log2, True, P)
                count += 1
        if not P.ahead and not P.shared_output:
            mbarrier.arrive(q_free.index(C), count=1)  # the next Q loads under the rest of this tile
        # the last product, under it the next tile's first scores; then the results
        stage = count % ST
        mbarrier.wait(v_full.index(stage), (count // ST) & 1)
        acc = _add_values(pv, v_ring.index(stage), acc, P)
        count += 1
        tile += 1
        k_stage = count % ST
        more = following >= 0
        if P.ahead:  # first scores of the next tile (after the last one: of stale shared memory, unused)
            mbarrier.wait(q_full.index(C), tile & 1, pred=more)
            mbarrier.wait(k_full.index(k_stage), (count // ST) & 1, pred=more)
            q = _registers(q_ring.index(C), P)
            mbarrier.arrive(q_free.index(C), count=1)
            f = _scores(gl.convert_layout(q, gl.DotOperandLayout(0, FIRST, 2)), k_ring.index(k_stage), D, BN, BF)
        total = gl.sum(sums, 1)
        _store_lse(lse, total, m, _place(head, number, first_q, call, P), row, nq, ROWS, P)
        if P.fixed:
            lost = gl.where(total < P.largest, lost, 1.0)
        if P.ahead:
            acc = warpgroup_mma_wait(1, deps=(acc, ))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc, ))
        mbarrier.arrive(v_free.index(stage), count=1)
        _store_output(o_out, batch, head, row, nq, first_q, acc, total, o_ring.index(C), call, D, P)
        if P.shared_output:
            tma_store_wait(0)
            mbarrier.arrive(q_free.index(C), count=1)
        word = following
        if P.ahead:
            f = warpgroup_mma_wait(0, deps=(f, ))
            mbarrier.arrive(k_free.index(k_stage), count=1, pred=more)
    tma_store_wait(0)
    if P.fixed:
        named_sync(TURN + 3, 128 * P.consumers)  # the rings are free: each consumer has stage C of both
        if gl.max(lost, 0) > 0:
            _repair(C, tensors, barriers, buffers, call, P)


@gluon.jit
def _consumer0(tensors, barriers, buffers, call, P: gl.constexpr):
    _consumer(0, tensors, barriers, buffers, call, P)


@gluon.jit
def _consumer1(tensors, barriers, buffers, call, P: gl.constexpr):
    _consumer(1, tensors, barriers, buffers, call, P)


@gluon.jit
def _consumer2(tensors, barriers, buffers, call, P: gl.constexpr):
    _consumer(2, tensors, barriers, buffers, call, P)


@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@gluon.jit(do_not_specialize=["width", "heads", "nq", "nk", "lowest", "highest"])
def _forward(q_in, k_in, v_in, o_out, lse, table, width, heads, nq, nk, lowest, highest, scale_log2, cu_q, cu_k, out,
             P: gl.constexpr):
    """q_in, o_out: descriptors of (1, 1, 64, D) blocks of (B, H, Nq, D); k_in, v_in: of (1, 1, BN, D) blocks of
    (B, Hk, Nk, D). lse: (B, H, Nq) float32. table: words (programs, width). lowest, highest: query i sees keys
    i + lowest to i + highest, where P has those sides.

    P.packed: B is 1 and the tokens are those of all sequences, from cu_q and cu_k on; a word's batch is a sequence;
    nq: all queries; lowest, highest: likewise of a sequence with as many queries as keys; out: the tensor of o_out."""
    CONSUMERS: gl.constexpr = P.consumers
    ST: gl.constexpr = P.stages
    q_ring = gl.allocate_shared_memory(q_in.dtype, [CONSUMERS, 1, 1, 64, P.head_dim], q_in.layout)
    k_ring = gl.allocate_shared_memory(k_in.dtype, [ST, 1, 1, P.block_n, P.head_dim], k_in.layout)
    v_ring = gl.allocate_shared_memory(v_in.dtype, [ST, 1, 1, P.block_n, P.head_dim], v_in.layout)
    if P.shared_output:
        o_ring = q_ring
    else:
        o_ring = gl.allocate_shared_memory(o_out.dtype, [CONSUMERS, 1, 1, 64, P.head_dim], o_out.layout)
    q_full, q_free = _barriers(CONSUMERS, 1), _barriers(CONSUMERS, 1)
    k_full, k_free = _barriers(ST, 1), _barriers(ST, CONSUMERS)
    v_full, v_free = _barriers(ST, 1), _barriers(ST, CONSUMERS)
    tensors = (q_in, k_in, v_in, o_out)
    barriers = (q_full, q_free, k_full, k_free, v_full, v_free, _barriers(CONSUMERS, 1))
    buffers = (q_ring, k_ring, v_ring, o_ring)
    call = (lse, table, width, heads, nq, nk, lowest, highest, scale_log2, (cu_q, cu_k, out))
    if CONSUMERS == 2:  # registers: 3 x 168 = 240 + 240 + 24
        gl.warp_specialize([(_consumer0, (tensors, barriers, buffers, call, P)),
                            (_consumer1, (tensors, barriers, buffers, call, P)),
                            (_loader, (tensors, barriers, buffers, call, P))], [4, 1], [240, 24])
    else:  # 4 x 128 = 3 x 160 + 32
        gl.warp_specialize([(_consumer0, (tensors, barriers, buffers, call, P)),
                            (_consumer1, (tensors, barriers, buffers, call, P)),
                            (_consumer2, (tensors, barriers, buffers, call, P)),
                            (_loader, (tensors, barriers, buffers, call, P))], [4, 4, 1], [160, 160, 24])


def _descriptor(tensor: torch.Tensor, rows: int, head_dim: int) -> TensorDescriptor:
    block = [1, 1, rows, head_dim]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


@lru_cache(maxsize=64)
def _table(device: torch.device, *tiles: Any) -> torch.Tensor:
    """The words of each program's tiles, of hopper_plan.tile_lists: (programs, longest + 1) int64, each row ended by
    -1."""
    lists, _ = tile_lists(*tiles)
    width = max(map(len, lists)) + 1
    return torch.tensor([words + [-1] * (width - len(words)) for words in lists], dtype=torch.int64, device=device)


def tiles_of(q: torch.Tensor, k: torch.Tensor, config: Config, left: int, right: int, processors: int,
             device: torch.device) -> torch.Tensor:
    """The table of a plain call, on ``device``; of q (B, H, Nq, D) and k (B, Hk, Nk, D) only shapes and type count."""
    (batch, heads, nq, _), nk = q.shape, k.shape[2]
    lowest, highest = nk - nq - left if left >= 0 else None, nk - nq + right if right >= 0 else None
    tiles = -(-nq // config.block_m) * batch * heads
    return _table(device, batch, heads, nq, nk, config.block_m, config.block_n, lowest, highest,
                  group_of(q, k, config), min(processors, tiles))


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, config: Config, *,
           scale: float, left: int = -1, right: int = -1, processors: int = 132
           ) -> tuple[tuple[int], list[Any], dict[str, Any]]:
    """Grid, arguments and options of the launch on checked tensors; left, right: the window, -1 unlimited."""
    heads, nq, nk = q.shape[1], q.shape[2], k.shape[2]
    table = tiles_of(q, k, config, left, right, processors, q.device)
    arguments = [*_descriptors(q, k, v, out, config), lse, table, table.shape[1], heads, nq, nk,
                 nk - nq - left if left >= 0 else 0, nk - nq + right if right >= 0 else 0, scale * LOG2_E, table, table,
                 out, config]
    return (table.shape[0],), arguments, _options(config)


def packed_launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                  cu_q: torch.Tensor, cu_k: torch.Tensor, table: torch.Tensor, config: Config, *, scale: float,
                  left: int, right: int) -> tuple[tuple[int], list[Any], dict[str, Any]]:
    """As `launch`, of packed sequences as (1, H, tokens, D), out contiguous as (tokens, H, D); lse (H, tokens); table:
    kernels.hopper_varlen.tile_table."""
    arguments = [*_descriptors(q, k, v, out, config), lse, table, table.shape[1], q.shape[1], q.shape[2], k.shape[2],
                 -left, right, scale * LOG2_E, cu_q, cu_k, out, config]
    return (table.shape[0],), arguments, _options(config)


def _descriptors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: Config) -> list[Any]:
    return [_descriptor(x, rows, config.head_dim)
            for x, rows in ((q, 64), (k, config.block_n), (v, config.block_n), (out, 64))]


def _options(config: Config) -> dict[str, Any]:
    return {"num_warps": 4, "maxnreg": 168 if config.consumers == 2 else 128, "enable_fp_fusion": True}


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: Config, *, scale: float, left: int = -1,
            right: int = -1, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), as hopper_plan.supports lets them through -> out like q, contiguous or
    as given, and lse (B, H, Nq) float32. left, right: the window, -1 unlimited; causal is right 0."""
    out = q.new_empty(q.shape) if out is None else out
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(-math.inf)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    grid, arguments, options = launch(q, k, v, out, lse, config, scale=scale, left=left, right=right,
                                      processors=processors)
    with torch.cuda.device(q.device):
        _forward[grid](*arguments, **options)
    return out, lse
