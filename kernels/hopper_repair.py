"""Tiles of the Hopper forward done again, with a maximum for each block; a device function of kernels.hopper.

There the maximum of a row's first block stays. Where later scores are so much larger that P may have overflowed, the
row's sum is made infinite or NaN (hopper_softmax._raise), and so is its LSE, by which its tile is found here. That is
rare: one block at a time, and nothing runs under anything else.
"""

from __future__ import annotations

from kernels.gluon_names import (
    gl,
    gluon,
    mbarrier,
    partition_barrier,
    tma_load,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from kernels.hopper_softmax import INFINITY, _lanes, _masked, _rescale, _weights
from kernels.hopper_tiles import (
    LN_2,
    _accumulator,
    _blocks,
    _clear,
    _operand,
    _place,
    _scores,
    _sequence,
    _store_output,
    _tile,
)


@gluon.jit
def _repair(C: gl.constexpr, tensors, barriers, buffers, call, P: gl.constexpr):
    """This consumer's tiles with a row at LSE = +inf or NaN once more, with a maximum for each block, one at a time."""
    q_in, k_in, v_in, o_out = tensors
    lse, table, width, scale_log2 = call[0], call[1], call[2], call[8]
    q_ring, k_ring, v_ring, o_ring = buffers
    D: gl.constexpr = P.head_dim
    BN: gl.constexpr = P.block_n
    ROWS: gl.constexpr = gl.SliceLayout(1, _accumulator(BN))
    loaded = barriers[6].index(C)
    q, k, v = q_ring.index(C), k_ring.index(C), v_ring.index(C)
    loads = 0
    tile = 0
    table += gl.program_id(0) * width
    word = gl.load(table)
    while word >= 0:
        row, head, number = _tile(word, P)
        nq, nk, lowest, highest, batch, first_q, first_k = _sequence(number, call, P)
        first, end = _blocks(row, nq, nk, lowest, highest, P)
        row += C * 64
        place = _place(head, number, first_q, call, P)
        rows = row + gl.arange(0, 64, layout=ROWS)
        known = gl.load(lse + place + rows, mask=rows < nq, other=0.0)
        if gl.max((known < INFINITY).to(gl.int32) ^ 1, 0) > 0:
            zero = gl.zeros([64, BN], gl.float32, _accumulator(BN))
            sums = gl.sum(_lanes(zero, BN), 1)
            m = sums - INFINITY
            acc = gl.zeros([64, D], gl.float32, _accumulator(D))
            for block in range(end - first):
                column = (end - 1 - block) * BN
                partition_barrier()  # the last block has been read
                mbarrier.expect(loaded, q_in.block_type.nbytes + k_in.block_type.nbytes + v_in.block_type.nbytes)
                tma_load(q_in, [batch, head, first_q + row, 0], loaded, q)
                tma_load(k_in, [batch, head // P.group, first_k + column, 0], loaded, k)
                tma_load(v_in, [batch, head // P.group, first_k + column, 0], loaded, v)
                mbarrier.wait(loaded, loads & 1)
                loads += 1
                if P.packed:  # noqa: SIM102  the second is a tensor
                    if column + BN > nk:
                        _clear(v.reshape([BN, D]), nk - column, BN, D)
                s = _scores(q.reshape([64, D]), k, D, BN, BN)
                s = warpgroup_mma_wait(0, deps=(s, ))
                s = _masked(s, column, row, nk, lowest, highest, P, BN, _accumulator(BN), False)
                p, m, sums, alpha = _weights(s, m, sums, scale_log2, BN, False, True)
                pv = gl.convert_layout(p.to(q_in.dtype), _operand(D))
                acc = warpgroup_mma(pv, v.reshape([BN, D]), _rescale(acc, alpha, D), is_async=True)
                acc = warpgroup_mma_wait(0, deps=(acc, ))
            total = gl.sum(sums, 1)
            logarithm = (gl.convert_layout(gl.max(m, 1), ROWS) + gl.log2(gl.convert_layout(total, ROWS))) * LN_2
            gl.store(lse + place + rows, logarithm, mask=rows < nq)
            _store_output(o_out, batch, head, row, nq, first_q, acc, total, o_ring.index(C), call, D, P)
        tile += 1
        word = gl.load(table + tile)
    tma_store_wait(0)
