"""The attention forward for Hopper (sm_90) with float8 e4m3 inputs, in Gluon, after FlashAttention-3 (Shah et al. 2024,
arXiv 2407.08608). Q (B, H, Nq, D), K and V (B, Hk, Nk, D), Hk dividing H; out bfloat16, the natural-log LSE float32.

Two kernels. `transpose` writes V as (B·Hk, D, Nk), keys innermost: float8 matrix products of Hopper (QGMMA) read both
operands along the summed dimension, and P·V sums over keys. `forward` is persistent and warp-specialised: one warp
loads blocks of K and turned V by TMA into rings; two or three consumer warpgroups of 64 query rows each keep P in
registers and pass a turn, so that one's matrix products run under another's softmax.

The order of keys inside a group of 16 is free as long as P's columns and V's rows agree. `transpose` stores key
8g + 2t + e at place 4t + 2g + e (g, e in 0..1, t in 0..3): a thread then holds its scores, as the first product leaves
them, where the second wants its 8-bit operand, and P needs no exchange between threads.

What each measured choice gave stands in kernels.hopper_fp8_plan. Names of Gluon: kernels.gluon_names.
"""

from __future__ import annotations

import math

from kernels.gluon_names import (
    constexpr_function,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from kernels.hopper import _pass_turn, _take_turn
from kernels.hopper_plan import HEAD_BITS, ROW_BITS

ROWS = gl.constexpr(64)  # query rows of a consumer
SCALE_ROWS = gl.constexpr(128)  # rows that share a scale
LOG2_E, LN_2 = gl.constexpr(math.log2(math.e)), gl.constexpr(math.log(2))
# P = 2^(score - m) is at most 2^(TOP + SLACK) = 431 of e4m3's 448. m is a row's maximum less TOP: it follows that
# maximum, and O is rescaled, only when it grew by more than SLACK. TOP is whole, so that P of a maximum has no error.
TOP, SLACK = gl.constexpr(6.0), gl.constexpr(2.75)
FLOOR = gl.constexpr(-1.0e38)  # of m, below every score: a row that has seen no key yet has P = 0, not NaN
ROW_FIELD, HEAD_FIELD, ROW_SHIFT, HEAD_SHIFT = (
    gl.constexpr(n) for n in ((1 << ROW_BITS) - 1, (1 << HEAD_BITS) - 1, ROW_BITS, ROW_BITS + HEAD_BITS))


@gluon.jit
def _wait_for_turned_v():
    """Wait for the end of the kernel before this one, under which it may have started."""
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.b32 $0, 0;", "=r,~{memory}", [], dtype=gl.int32, is_pure=False,
                              pack=1)


# ---- V with its keys innermost -----------------------------------------------------------------------------------
@constexpr_function
def _turned(head_dim, keys):
    """(D, KEYS) with 16 keys of 16 columns a thread, keys first; lanes run along the columns, then along the keys."""
    down = [[step, 0] for step in (16, 32, 64, 128) if step < head_dim]
    along = [[0, step] for step in (16, 32, 64) if step < keys]
    registers = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]
    return gl.DistributedLinearLayout(registers, (down + along)[:5], (down + along)[5:], [], [head_dim, keys])


@gluon.jit(do_not_specialize=["kv_heads", "nk"])
def transpose(v, out, stride_b, stride_h, stride_n, kv_heads, nk, padded_nk, HEAD_DIM: gl.constexpr,
              KEYS: gl.constexpr):
    """v: bytes (B, Hk, Nk, D) -> out (B·Hk, D, padded_nk), zeros from nk on; KEYS keys of a head a program.

    A thread holds 16 keys of 16 columns, read and written in pieces of 16 bytes; shared memory takes no part."""
    ACROSS: gl.constexpr = HEAD_DIM // 16
    source: gl.constexpr = gl.BlockedLayout([16, 16], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])
    target: gl.constexpr = _turned(HEAD_DIM, KEYS)
    start = gl.program_id(0) * KEYS
    head = gl.program_id(1)
    keys = start + gl.arange(0, KEYS, gl.SliceLayout(1, source))
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, source))
    v += (head // kv_heads).to(gl.int64) * stride_b + (head % kv_heads).to(gl.int64) * stride_h
    tile = gl.load(v + keys.to(gl.int64)[:, None] * stride_n + columns[None, :], mask=(keys < nk)[:, None], other=0)
    tile = gl.permute(gl.reshape(tile, [KEYS // 16, 2, 4, 2, HEAD_DIM]), (4, 0, 2, 1, 3))
    tile = gl.convert_layout(gl.reshape(tile, [HEAD_DIM, KEYS]), target, assert_trivial=True)
    rows = gl.arange(0, HEAD_DIM, gl.SliceLayout(1, target))
    places = start + gl.arange(0, KEYS, gl.SliceLayout(0, target))
    out += head.to(gl.int64) * HEAD_DIM * padded_nk
    gl.store(out + rows.to(gl.int64)[:, None] * padded_nk + places[None, :], tile)


# ---- tiles -------------------------------------------------------------------------------------------------------
@gluon.jit
def _tile(word, call, C: gl.constexpr):
    """Row, head and batch of a tile, its key head and the latter over the batch."""
    heads, group = call[3], call[4]
    row = (word & ROW_FIELD).to(gl.int32) * (C.consumers * ROWS)
    head = ((word >> ROW_SHIFT) & HEAD_FIELD).to(gl.int32)
    batch = (word >> HEAD_SHIFT).to(gl.int32)
    kv_head = head // group
    return row, head, batch, kv_head, batch * (heads // group) + kv_head


@gluon.jit
def _key_blocks(end, nq, nk, C: gl.constexpr):
    """Blocks of keys that the query rows before `end` see."""
    if C.causal:
        nk = gl.maximum(gl.minimum(gl.minimum(end, nq) + nk - nq, nk), 0)
    return gl.cdiv(nk, C.block_n)


# ---- the loading warp --------------------------------------------------------------------------------------------
@gluon.jit
def _fill(source, coordinates, full, free, ring, step, C: gl.constexpr):
    stage = step % C.stages
    mbarrier.wait(free.index(stage), ((step // C.stages) & 1) ^ 1)
    mbarrier.expect(full.index(stage), source.block_type.nbytes)
    tma_load(source, coordinates, full.index(stage), ring.index(stage))


@gluon.jit
def _load(sources, barriers, rings, scales, call, C: gl.constexpr):
    """Load what the consumers ask for, in the order of use: K runs one block ahead of V."""
    q_source, k_source, v_source, _ = sources
    q_full, q_free, k_full, k_free, v_full, v_free = barriers
    q_ring, k_ring, v_ring, _ = rings
    _, tiles, width, _, _, nq, nk, _ = call
    CONSUMERS: gl.constexpr = C.consumers
    BN: gl.constexpr = C.block_n
    tiles += gl.program_id(0) * width
    step = 0
    turn = 0
    word = gl.load(tiles)
    if C.overlap:
        _wait_for_turned_v()
    while word >= 0:
        row, head, batch, kv_head, kv_all = _tile(word, call, C)
        blocks = gl.maximum(_key_blocks(row + CONSUMERS * ROWS, nq, nk, C), 1)
        last = (blocks - 1) * BN
        _fill(k_source, [batch, kv_head, last, 0], k_full, k_free, k_ring, step, C)  # before Q, which may be in use
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(q_free.index(c), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(c), q_source.block_type.nbytes)
            tma_load(q_source, [batch, head, row + c * ROWS, 0], q_full.index(c), q_ring.index(c))
        for block in range(1, blocks):
            _fill(k_source, [batch, kv_head, last - block * BN, 0], k_full, k_free, k_ring, step + 1, C)
            _fill(v_source, [kv_all, 0, last - (block - 1) * BN], v_full, v_free, v_ring, step, C)
            step += 1
        _fill(v_source, [kv_all, 0, 0], v_full, v_free, v_ring, step, C)
        step += 1
        turn += 1
        word = gl.load(tiles + turn)


# ---- matrix products and softmax of a consumer -------------------------------------------------------------------
@constexpr_function
def _accumulator(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32])


@constexpr_function
def _operand(columns):
    return gl.DotOperandLayout(operand_index=0, parent=_accumulator(columns), k_width=4)


@gluon.jit
def _scores(q, k_ring, stage, C: gl.constexpr):
    BN: gl.constexpr = C.block_n
    k = k_ring.index(stage).reshape([BN, C.head_dim]).permute((1, 0))
    zero = gl.zeros([ROWS, BN], gl.float32, _accumulator(BN))
    return warpgroup_mma(q, k, zero, use_acc=False, is_async=True)


@gluon.jit
def _values(p, v_ring, stage, acc, C: gl.constexpr):
    v = v_ring.index(stage).reshape([C.head_dim, C.block_n]).permute((1, 0))
    return warpgroup_mma(p, v, acc, is_async=True)


@gluon.jit
def _after_values(acc, free, stage):
    """Wait for P·V and hand its V back."""
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(free.index(stage), count=1)
    return acc


@gluon.jit
def _masked(s, row, column, nq, nk, C: gl.constexpr):
    """Scores (64, BLOCK_N), whose first row and column are given, with -inf where the key is not seen."""
    columns = column + gl.arange(0, C.block_n, gl.SliceLayout(0, s.type.layout))
    if C.causal:
        rows = row + nk - nq + gl.arange(0, ROWS, gl.SliceLayout(1, s.type.layout))
        return gl.where(columns[None, :] <= gl.minimum(rows, nk - 1)[:, None], s, float("-inf"))
    else:
        return gl.where((columns < nk)[None, :], s, float("-inf"))


@gluon.jit
def _like_rows(x, y):
    """x (64,) in the layout of the rows of y (64, n)."""
    return gl.convert_layout(x, gl.SliceLayout(1, y.type.layout))


@gluon.jit
def _powers(s, unit, m, C: gl.constexpr):
    """P = 2^(s·unit - m) before rounding, and its row sums inside a thread, (64, 8), whose lanes are added once a
    tile."""
    p = gl.exp2(s * unit - m[:, None])
    return p, gl.sum(gl.reshape(p, [ROWS, C.block_n // 8, 8]), 1)


# four values of P to a word
ROUND = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
    " mov.b32 $0, {low, high}; }")


@gluon.jit
def _words(p, C: gl.constexpr):
    """P (64, BLOCK_N) as e4m3, four to a word (64, BLOCK_N / 4), columns in the order of
    `transpose`: Triton carries a byte from one iteration to the next in a register of its own.

    After the wait for the product that reads the last P: a write before it makes ptxas serialise the products."""
    p = gl.permute(gl.reshape(p, [ROWS, C.block_n // 16, 2, 4, 2]), (0, 1, 3, 4, 2))
    even, odd = gl.split(gl.reshape(p, [ROWS, C.block_n // 4, 2, 2]))
    p0, p1 = gl.split(even)
    p2, p3 = gl.split(odd)
    return gl.inline_asm_elementwise(ROUND, "=r,f,f,f,f", [p0, p1, p2, p3], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _unpacked(words, C: gl.constexpr):
    """Words as P in e4m3 (64, BLOCK_N), an operand in registers: renamed only."""
    pairs = gl.join(words, words)
    fours = gl.reshape(gl.join(pairs, pairs), [ROWS, C.block_n])
    # in this layout's order of registers four neighbours are a word
    fours = gl.convert_layout(fours, _operand(C.head_dim), assert_trivial=True)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [fours], dtype=gl.float8e4nv, is_pure=True,
                                     pack=4)


@constexpr_function
def _rescale_code(n):
    """PTX: a thread's n values of two rows times theirs of alpha, skipped where alpha is 1 in the whole warp."""
    products = " ".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return (f"{{ .reg .pred some; setp.ne.f32 some, ${2 * n}, 0f3F800000; "
            f"setp.ne.or.f32 some, ${2 * n + 2}, 0f3F800000, some; vote.sync.any.pred some, some, 0xffffffff; "
            f"@!some bra DONE; {products} DONE: }}")


@constexpr_function
def _rescale_registers(n):
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


@gluon.jit
def _rescale(acc, alpha, C: gl.constexpr):
    """acc (64, D) times alpha (64,)."""
    SIZE: gl.constexpr = C.head_dim // 2  # a thread's share
    if SIZE <= 64:
        acc, alpha = gl.broadcast(acc, gl.expand_dims(alpha, 1))
        return gl.inline_asm_elementwise(_rescale_code(SIZE), _rescale_registers(SIZE), [acc, alpha],
                                         dtype=gl.float32, is_pure=False, pack=SIZE)
    else:
        return acc * alpha[:, None]


@gluon.jit
def _step(q, barriers, rings, step, more, words, acc, m, total, unit, ratio, row, column, nq, nk, ME: gl.constexpr,
          C: gl.constexpr):
    """Scores of the next block, P·V of this one, softmax of the next. unit: from its scores to powers of two.
    ratio: the scale of this block's values over the next one's. column: the next block's first."""
    _, _, k_full, k_free, v_full, v_free = barriers
    _, k_ring, v_ring, _ = rings
    k_stage = (step + 1) % C.stages
    v_stage = step % C.stages
    p = _unpacked(words, C)
    _take_turn(ME, C)
    if not C.values_first:
        s = _scores(q, k_ring, k_stage, C)
    mbarrier.wait(v_full.index(v_stage), (step // C.stages) & 1)
    acc = _values(p, v_ring, v_stage, acc, C)
    if C.values_first:
        acc = _after_values(acc, v_free, v_stage)
        s = _scores(q, k_ring, k_stage, C)
    _pass_turn(ME, C)
    s = warpgroup_mma_wait(0 if C.values_first else 1, deps=(s,))
    mbarrier.arrive(k_free.index(k_stage), count=1)
    if C.edge:  # noqa: SIM102  one is the compiler's, one the kernel's
        if column + C.block_n > row + nk - nq + 1:
            s = _masked(s, row, column, nq, nk, C)
    top = gl.max(s, 1) * unit - TOP
    new = gl.where(top > m + SLACK, top, m)
    alpha = gl.exp2(m - new)
    s, sums = _powers(s, unit, new, C)
    # this wait ends a basic block, so that ptxas cannot lift the wait for P·V above the softmax
    mbarrier.wait(k_full.index((step + 2) % C.stages), ((step + 2) // C.stages) & 1, pred=more)
    if not C.values_first:
        acc = _after_values(acc, v_free, v_stage)
    words = _words(s, C)
    acc = _rescale(acc, _like_rows(alpha * ratio if C.block_scales else alpha, acc), C)
    total = total * _like_rows(alpha, total)[:, None] + sums
    return words, acc, new, total


# ---- a consumer --------------------------------------------------------------------------------------------------
@gluon.jit
def _skip(barriers, step, more, ME: gl.constexpr, C: gl.constexpr):
    """Hand on a block that this consumer does not see, and its turn where `more` blocks follow."""
    _, _, k_full, k_free, v_full, v_free = barriers
    stage = step % C.stages
    mbarrier.wait(k_full.index(stage), (step // C.stages) & 1)
    mbarrier.arrive(k_free.index(stage), count=1)
    mbarrier.wait(v_full.index(stage), (step // C.stages) & 1)
    mbarrier.arrive(v_free.index(stage), count=1)
    if more:
        _take_turn(ME, C)
        _pass_turn(ME, C)


@gluon.jit
def _consume(ME: gl.constexpr, sources, barriers, rings, scales, call, C: gl.constexpr):
    """64 rows of each tile: out and LSE. Blocks of keys from the last one seen backwards."""
    q_full, q_free, k_full, k_free, v_full, v_free = barriers
    q_ring, k_ring, v_ring, o_ring = rings
    q_scale, q_head, q_block, k_scale, k_head, k_block, v_scale, v_head, v_block = scales
    lse, tiles, width, heads, _, nq, nk, scale = call
    D: gl.constexpr = C.head_dim
    BN: gl.constexpr = C.block_n
    row_layout: gl.constexpr = gl.SliceLayout(1, _accumulator(BN))
    tiles += gl.program_id(0) * width
    step = 0
    turn = 0
    if C.consumers - 1 == ME:
        _pass_turn(ME, C)  # consumer 0 goes first
    word = gl.load(tiles)
    while word >= 0:
        row, head, batch, _, kv_all = _tile(word, call, C)
        all_blocks = gl.maximum(_key_blocks(row + C.consumers * ROWS, nq, nk, C), 1)
        row += ME * ROWS
        blocks = gl.where(row < nq, _key_blocks(row + ROWS, nq, nk, C), 0)
        for left in range(blocks, all_blocks):
            _skip(barriers, step, left > 0, ME, C)
            step += 1
        both = batch * heads + head
        rows = row + gl.arange(0, ROWS, row_layout)
        acc = gl.zeros([ROWS, D], gl.float32, _accumulator(D))
        mbarrier.wait(q_full.index(ME), turn & 1)
        if blocks == 0:
            mbarrier.arrive(q_free.index(ME), count=1)
            gl.store(lse + both.to(gl.int64) * nq + rows, float("-inf"), mask=rows < nq)
        else:
            q = q_ring.index(ME).reshape([ROWS, D])
            if C.q_registers:
                q = q.load(_operand(BN))
                mbarrier.arrive(q_free.index(ME), count=1)
            stage = step % C.stages
            column = (blocks - 1) * BN
            q_unit = scale * LOG2_E * gl.load(q_scale + both * q_head + row // SCALE_ROWS * q_block)
            k_scales = k_scale + kv_all * k_head
            v_scales = v_scale + kv_all * v_head
            unit = q_unit * gl.load(k_scales + column // SCALE_ROWS * k_block)
            ratio = 1.0
            mbarrier.wait(k_full.index(stage), (step // C.stages) & 1)
            s = warpgroup_mma_wait(0, deps=(_scores(q, k_ring, stage, C),))
            mbarrier.arrive(k_free.index(stage), count=1)
            s = _masked(s, row, column, nq, nk, C)
            m = gl.maximum(gl.max(s, 1) * unit - TOP, FLOOR)
            s, total = _powers(s, unit, m, C)
            words = _words(s, C)
            mbarrier.wait(k_full.index((step + 1) % C.stages), ((step + 1) // C.stages) & 1, pred=blocks > 1)
            for block in range(1, blocks):
                column -= BN
                if C.block_scales:
                    unit = q_unit * gl.load(k_scales + column // SCALE_ROWS * k_block)
                    ratio = (gl.load(v_scales + (column + BN) // SCALE_ROWS * v_block)
                             / gl.load(v_scales + column // SCALE_ROWS * v_block))
                words, acc, m, total = _step(q, barriers, rings, step, block + 1 < blocks, words, acc, m, total, unit,
                                             ratio, row, column, nq, nk, ME, C)
                step += 1
            if not C.q_registers:
                mbarrier.arrive(q_free.index(ME), count=1)  # the next Q loads under the rest of this tile
            stage = step % C.stages
            p = _unpacked(words, C)
            mbarrier.wait(v_full.index(stage), (step // C.stages) & 1)
            acc = _values(p, v_ring, stage, acc, C)
            acc = _after_values(acc, v_free, stage)
            step += 1
            total = gl.convert_layout(gl.sum(total, 1), row_layout)
            gl.store(lse + both.to(gl.int64) * nq + rows, (m + gl.log2(total)) * LN_2, mask=rows < nq)
            # a row that saw no key: 0 / 1; acc is in units of the scale of the first block of values
            factor = gl.load(v_scales) / gl.where(total > 0.0, total, 1.0)
            acc = acc * _like_rows(factor, acc)[:, None]
        tma_store_wait(0)
        staged = o_ring.index(ME)
        staged.reshape([ROWS, D]).store(acc.to(gl.bfloat16))
        fence_async_shared()
        tma_store(sources[3], [batch, head, row, 0], staged)
        turn += 1
        word = gl.load(tiles + turn)
    tma_store_wait(0)


@gluon.jit
def _consume0(sources, barriers, rings, scales, call, C: gl.constexpr):
    _consume(0, sources, barriers, rings, scales, call, C)


@gluon.jit
def _consume1(sources, barriers, rings, scales, call, C: gl.constexpr):
    _consume(1, sources, barriers, rings, scales, call, C)


@gluon.jit
def _consume2(sources, barriers, rings, scales, call, C: gl.constexpr):
    _consume(2, sources, barriers, rings, scales, call, C)


# ---- the kernel --------------------------------------------------------------------------------------------------
@gluon.jit
def _barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def _ring(source, COUNT: gl.constexpr):
    return gl.allocate_shared_memory(source.dtype, [COUNT] + source.block_type.shape, source.layout)  # noqa: RUF005


@gluon.jit(do_not_specialize=["q_head", "q_block", "k_head", "k_block", "v_head", "v_block", "width", "heads", "group",
                              "nq", "nk"])
def forward(q_source, k_source, v_source, o_source, q_scale, q_head, q_block, k_scale, k_head, k_block, v_scale, v_head,
            v_block, lse, tiles, width, heads, group, nq, nk, scale, C: gl.constexpr):
    """Descriptors: q and out (B, H, Nq, D) by 64 rows, k (B, Hk, Nk, D) by block_n rows, v of `transpose` by as many
    columns. x_scale, x_head, x_block: scales and their step of a head and of a block of 128 rows. lse (B, H, Nq)
    float32. tiles: words (programs, width) of kernels.hopper_plan. C: kernels.hopper_fp8_plan.Config."""
    CONSUMERS: gl.constexpr = C.consumers
    STAGES: gl.constexpr = C.stages
    q_ring, o_ring = _ring(q_source, CONSUMERS), _ring(o_source, CONSUMERS)
    k_ring, v_ring = _ring(k_source, STAGES), _ring(v_source, STAGES)
    barriers = (_barriers(CONSUMERS, 1), _barriers(CONSUMERS, 1), _barriers(STAGES, 1), _barriers(STAGES, CONSUMERS),
                _barriers(STAGES, 1), _barriers(STAGES, CONSUMERS))
    sources = (q_source, k_source, v_source, o_source)
    rings = (q_ring, k_ring, v_ring, o_ring)
    scales = (q_scale, q_head, q_block, k_scale, k_head, k_block, v_scale, v_head, v_block)
    call = (lse, tiles, width, heads, group, nq, nk, scale)
    if CONSUMERS == 2:  # registers of a thread: 3·168 = 240 + 240 + 24
        gl.warp_specialize([(_consume0, (sources, barriers, rings, scales, call, C)),
                            (_consume1, (sources, barriers, rings, scales, call, C)),
                            (_load, (sources, barriers, rings, scales, call, C))], [4, 1], [240, 24])
    else:  # 4·128 = 3·160 + 32
        gl.warp_specialize([(_consume0, (sources, barriers, rings, scales, call, C)),
                            (_consume1, (sources, barriers, rings, scales, call, C)),
                            (_consume2, (sources, barriers, rings, scales, call, C)),
                            (_load, (sources, barriers, rings, scales, call, C))], [4, 4, 1], [160, 160, 24])
