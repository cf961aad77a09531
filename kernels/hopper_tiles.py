"""What the Hopper forward reads and writes of a tile: its place, its blocks, its results, and the layouts of a
warpgroup's registers; device functions of kernels.hopper and kernels.hopper_repair."""

from __future__ import annotations

import math

from kernels.gluon_names import (
    constexpr_function,
    fence_async_shared,
    gl,
    gluon,
    partition_barrier,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
)
from kernels.hopper_plan import HEAD_BITS, ROW_BITS
from kernels.hopper_softmax import INFINITY

LN_2 = gl.constexpr(math.log(2.0))
ROW_FIELD, HEAD_FIELD, ROW_SHIFT, HEAD_SHIFT = (
    gl.constexpr(n) for n in ((1 << ROW_BITS) - 1, (1 << HEAD_BITS) - 1, ROW_BITS, ROW_BITS + HEAD_BITS))


# Layouts, of a warpgroup: scores and output as the tensor cores leave them; P and Q as operands in registers.
@constexpr_function
def _accumulator(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@constexpr_function
def _operand(columns):
    return gl.DotOperandLayout(operand_index=0, parent=_accumulator(columns), k_width=2)


@constexpr_function
def _pair_code(half):
    return f"cvt.rn.{'f16' if half else 'bf16'}x2.f32 $0, $2, $1;"


@gluon.jit
def _rounded(p, dtype: gl.constexpr, P: gl.constexpr):
    """P (64, BN) as it goes from step to step: rounded, an operand, or two columns as one int32."""
    if P.paired:
        pairs = gl.reshape(gl.convert_layout(p, _accumulator(P.block_n)), [64, P.block_n // 2, 2])
        return gl.inline_asm_elementwise(_pair_code(P.half), "=r,f,f", gl.split(pairs), dtype=gl.int32, is_pure=True,
                                         pack=1)
    else:
        return gl.convert_layout(p.to(dtype), _operand(P.head_dim))


@gluon.jit
def _add_values(p, v, acc, P: gl.constexpr):
    """acc (64, D) + P V, under way; P as `_rounded` leaves it."""
    if P.paired:
        low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [p], dtype=(gl.int16, gl.int16),
                                              is_pure=True, pack=1)
        p = gl.reshape(gl.join(low, high), [64, P.block_n]).to(v.dtype, bitcast=True)
    return warpgroup_mma(gl.convert_layout(p, _operand(P.head_dim)), v.reshape([P.block_n, P.head_dim]), acc,
                         is_async=True)


@gluon.jit
def _tile(word, P: gl.constexpr):
    """First row, head and batch of a tile."""
    row = (word & ROW_FIELD).to(gl.int32) * P.block_m
    return row, ((word >> ROW_SHIFT) & HEAD_FIELD).to(gl.int32), (word >> HEAD_SHIFT).to(gl.int32)


@gluon.jit
def _sequence(number, call, P: gl.constexpr):
    """Of a batch element or packed sequence: queries, keys, the window, the batch of its descriptors' coordinates, and
    its first query and key there."""
    _, _, _, _, nq, nk, lowest, highest, _, places = call
    if P.packed:
        cu_q, cu_k, _ = places
        first_q, first_k = gl.load(cu_q + number), gl.load(cu_k + number)
        nq = gl.load(cu_q + number + 1) - first_q
        nk = gl.load(cu_k + number + 1) - first_k
        return nq, nk, lowest + nk - nq, highest + nk - nq, 0, first_q, first_k
    else:
        return nq, nk, lowest, highest, number, 0, 0


@gluon.jit
def _blocks(row, nq, nk, lowest, highest, P: gl.constexpr):
    """First and one past the last key block of a tile, as hopper_plan.block_range."""
    first = 0
    end = nk
    if P.causal:
        end = gl.minimum(nk, gl.minimum(row + P.block_m, nq) + highest)
    if P.left:
        first = gl.maximum(0, row + lowest) // P.block_n
    if P.causal or P.packed:
        return first, gl.maximum((end + P.block_n - 1) // P.block_n, first + 1)
    else:
        return first, (end + P.block_n - 1) // P.block_n


@gluon.jit
def _store_lse(lse, total, m, place, row, nq, ROWS: gl.constexpr, P: gl.constexpr):
    """The natural logarithm of the row sums; +inf marks a row for _repair."""
    total = gl.convert_layout(total, ROWS)
    logarithm = (gl.convert_layout(gl.max(m, 1), ROWS) + gl.log2(total)) * LN_2
    if P.fixed:
        logarithm = gl.where(total < P.largest, logarithm, INFINITY)
    rows = row + gl.arange(0, 64, layout=ROWS)
    gl.store(lse + place + rows, logarithm, mask=rows < nq)


@gluon.jit
def _clear(v, kept, BN: gl.constexpr, D: gl.constexpr):
    """Rows of a block of values from `kept` on are another sequence's: 0 like their P, since NaN times 0 is NaN.

    Each consumer does it for itself, and writes what the others do."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    for start in gl.static_range(0, BN, 32):
        part = v.slice(start, 32)
        values = part.load(LAYOUT)
        rows = start + gl.arange(0, 32, layout=gl.SliceLayout(1, LAYOUT))[:, None]
        part.store(gl.where(rows < kept, values, gl.zeros_like(values)))
    fence_async_shared()
    partition_barrier()


@gluon.jit
def _store_output(o_out, batch, head, row, nq, first_q, acc, total, buffer, call, D: gl.constexpr, P: gl.constexpr):
    """acc divided by the row sums: through shared memory, where rows beyond the tensor are clipped; the end of a packed
    sequence, which another may follow, from registers."""
    divisor = gl.where(total == 0.0, 1.0, total)  # a row without keys is 0
    acc = acc * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, _accumulator(D)))[:, None]
    if P.packed:
        if row + 64 > nq:
            places = call[9]
            rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, _accumulator(D)))[:, None]
            columns = gl.arange(0, D, layout=gl.SliceLayout(0, _accumulator(D)))[None, :]
            at = ((first_q + rows).to(gl.int64) * call[3] + head) * D + columns
            gl.store(places[2] + at, acc.to(buffer.dtype), mask=(rows < nq) & (columns < D))
        else:
            _store_block(o_out, batch, head, first_q + row, acc, buffer, D)
    else:
        _store_block(o_out, batch, head, row, acc, buffer, D)


@gluon.jit
def _store_block(o_out, batch, head, row, acc, buffer, D: gl.constexpr):
    tma_store_wait(0)
    buffer.reshape([64, D]).store(acc.to(buffer.dtype))
    fence_async_shared()
    tma_store(o_out, [batch, head, row, 0], buffer)


@gluon.jit
def _place(head, number, first_q, call, P: gl.constexpr):
    """Where the LSE of a tile's head begins: (B, H, Nq), or (H, tokens) of packed sequences."""
    if P.packed:
        return head.to(gl.int64) * call[4] + first_q
    else:
        return (number * call[3] + head).to(gl.int64) * call[4]


@gluon.jit
def _scores(q, k, D: gl.constexpr, BN: gl.constexpr, KEYS: gl.constexpr):
    """Q·Kᵀ of the first KEYS keys of a block, under way."""
    k = k.reshape([BN, D])
    if KEYS != BN:
        k = k.slice(0, KEYS)
    zero = gl.zeros([64, KEYS], gl.float32, _accumulator(KEYS))
    return warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
