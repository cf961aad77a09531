"""Attention forward for Hopper (sm_90) with float8 e4m3 inputs, in Triton's Gluon dialect.

Two kernels. `transpose` writes V as (B·Hk, D, Nk), keys innermost: float8 matrix products of Hopper (QGMMA) read both
operands along the summed dimension, and P·V sums over keys. `forward` is persistent and warp-specialised: one producer
warp streams blocks of K and transposed V by TMA into rings; two or three consumer warpgroups of 64 query rows each
keep P in registers and pass a turn, so that one's matrix products run under another's softmax.

The order of keys inside a group of 16 is free as long as P's columns and V's rows agree. `transpose` stores key
8g + 2t + e at place 4t + 2g + e (g, e in 0..1, t in 0..3): a thread then holds its scores, as the first product leaves
them, where the second wants its 8-bit operand, and P needs no exchange between threads.
"""

from __future__ import annotations

from kernels.gluon_names import (
    constexpr_function,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    named_arrive,
    named_sync,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)  # query rows of a consumer
LOG2_E, LN_2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)
# P = 2^(score - m) is at most 2^8.5 = 362 of e4m3's 448: m is a row maximum minus OFFSET, and O is rescaled
# only when a maximum grew by more than SLACK.
OFFSET, SLACK = gl.constexpr(6.0), gl.constexpr(2.5)
FLOOR = gl.constexpr(-1.0e38)  # of m, below every score: a row that has seen no key yet has P = 0, not NaN
SCALE_ROWS = gl.constexpr(128)  # rows that share a scale
TURN = gl.constexpr(10)  # first of the named barriers


# ---- V with its keys innermost -----------------------------------------------------------------------------------
@gluon.jit
def transpose(v, out, v_batch, v_head, v_row, kv_heads, nk, padded_nk, HEAD_DIM: gl.constexpr, KEYS: gl.constexpr):
    """v: float8 (B, Hk, Nk, D) as bytes -> out (B·Hk, D, padded_nk), zeros after nk; KEYS keys a program."""
    source: gl.constexpr = gl.BlockedLayout([16, 16], [512 // HEAD_DIM, HEAD_DIM // 16], [gl.num_warps(), 1], [1, 0])
    target: gl.constexpr = gl.BlockedLayout([16, 16], [HEAD_DIM // 16, 512 // HEAD_DIM], [1, gl.num_warps()], [1, 0])
    start = gl.program_id(0) * KEYS
    head = gl.program_id(1)
    keys = start + gl.arange(0, KEYS, gl.SliceLayout(1, source))
    columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, source))
    corner = v + (head // kv_heads).to(gl.int64) * v_batch + (head % kv_heads).to(gl.int64) * v_head
    tile = gl.load(corner + keys.to(gl.int64)[:, None] * v_row + columns[None, :], mask=(keys < nk)[:, None], other=0)
    tile = gl.permute(gl.reshape(tile, [KEYS // 16, 2, 4, 2, HEAD_DIM]), (4, 0, 2, 1, 3))
    tile = gl.convert_layout(gl.reshape(tile, [HEAD_DIM, KEYS]), target)
    rows = gl.arange(0, HEAD_DIM, gl.SliceLayout(1, target))
    places = start + gl.arange(0, KEYS, gl.SliceLayout(0, target))
    corner = out + head.to(gl.int64) * HEAD_DIM * padded_nk
    gl.store(corner + rows.to(gl.int64)[:, None] * padded_nk + places[None, :], tile,
             mask=(places < padded_nk)[None, :])


# ---- tiles -------------------------------------------------------------------------------------------------------
@gluon.jit
def _tile(tile, nq, heads, GROUP: gl.constexpr, BLOCK_M: gl.constexpr):
    """First row, batch, query head and key head of a tile; the last rows of a head come first."""
    blocks = gl.cdiv(nq, BLOCK_M)
    batch_head = tile // blocks
    batch = batch_head // heads
    head = batch_head - batch * heads
    return (blocks - 1 - (tile - batch_head * blocks)) * BLOCK_M, batch, head, head // GROUP


@gluon.jit
def _key_blocks(end, nq, nk, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """Blocks of keys that query rows before `end` see."""
    if CAUSAL:
        return gl.cdiv(gl.maximum(gl.minimum(gl.minimum(end, nq) + nk - nq, nk), 0), BLOCK_N)
    else:
        return gl.cdiv(nk, BLOCK_N)


# ---- the producer ------------------------------------------------------------------------------------------------
@gluon.jit
def _fill(source, coordinates, full, empty, ring, step, STAGES: gl.constexpr):
    stage = step % STAGES
    mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(stage), source.block_type.nbytes)
    tma_load(source, coordinates, full.index(stage), ring.index(stage))


@gluon.jit
def _produce(sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS: gl.constexpr,
             GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
             BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr):
    """Load what the consumers ask for, in the order of use: K runs one block ahead of V."""
    q_source, k_source, v_source, _ = sources
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    q_ring, k_ring, v_ring, _, _ = rings
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    mine = tiles + gl.program_id(0) * width
    step = 0
    turn = 0
    tile = gl.load(mine)
    while tile < count:
        row, batch, head, kv_head = _tile(tile, nq, heads, GROUP, BLOCK_M)
        kv_all = batch * (heads // GROUP) + kv_head
        blocks = gl.maximum(_key_blocks(row + BLOCK_M, nq, nk, CAUSAL, BLOCK_N), 1)
        last = (blocks - 1) * BLOCK_N
        _fill(k_source, [batch, kv_head, last, 0], k_full, k_empty, k_ring, step, STAGES)
        for consumer in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(consumer), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(consumer), q_source.block_type.nbytes)
            tma_load(q_source, [batch, head, row + consumer * ROWS, 0], q_full.index(consumer), q_ring.index(consumer))
        for j in range(1, blocks):
            _fill(k_source, [batch, kv_head, last - j * BLOCK_N, 0], k_full, k_empty, k_ring, step + 1, STAGES)
            _fill(v_source, [kv_all, 0, last - (j - 1) * BLOCK_N], v_full, v_empty, v_ring, step, STAGES)
            step += 1
        _fill(v_source, [kv_all, 0, 0], v_full, v_empty, v_ring, step, STAGES)
        step += 1
        turn += 1
        tile = gl.load(mine + turn)


# ---- the consumers -----------------------------------------------------------------------------------------------
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
def _rescale(acc, alpha):
    """acc (64, D) times alpha (64,)."""
    SIZE: gl.constexpr = acc.shape[1] // 2  # a thread's share
    if SIZE <= 64:
        acc, alpha = gl.broadcast(acc, gl.expand_dims(alpha, 1))
        return gl.inline_asm_elementwise(_rescale_code(SIZE), _rescale_registers(SIZE), [acc, alpha],
                                         dtype=gl.float32, is_pure=False, pack=SIZE)
    else:
        return acc * alpha[:, None]


@gluon.jit
def _masked(s, row, column, nq, nk, CAUSAL: gl.constexpr):
    """Scores (64, BLOCK_N) whose first row and column are given; -inf where the key is not seen."""
    BLOCK_N: gl.constexpr = s.shape[1]
    columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s.type.layout))
    if CAUSAL:
        rows = row + nk - nq + gl.arange(0, ROWS, gl.SliceLayout(1, s.type.layout))
        rows = gl.minimum(rows, nk - 1)
        return gl.where(columns[None, :] <= rows[:, None], s, float("-inf"))
    else:
        return gl.where((columns < nk)[None, :], s, float("-inf"))


@gluon.jit
def _lane_sums(p):
    """Row sums of (64, BLOCK_N) inside a thread, (64, 8): the lanes are added once a tile."""
    BLOCKS: gl.constexpr = p.shape[1] // 8
    return gl.sum(gl.reshape(p, [ROWS, BLOCKS, 8]), 1)


ROUND = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;"
    " mov.b32 $0, {low, high}; }")
# 2^x in e4m3 by its bits, 8 (x + 7) rounded: linear between powers of two. Operands: four scores, slope, shift.
LINEAR_POWER = gl.constexpr(
    "{ .reg .f32 x<4>; .reg .b32 low, high; " + " ".join(
        f"fma.rn.sat.f32 x{i}, ${1 + i}, $5, $6; fma.rn.f32 x{i}, x{i}, 0f43000000, 0f4B400000;" for i in range(4))
    + " prmt.b32 low, x0, x1, 0x0040; prmt.b32 high, x2, x3, 0x0040; prmt.b32 $0, low, high, 0x5410; }")
LINEAR_SHIFT = gl.constexpr((56 - 0.34) / 128)  # the line is above 2^x by 4 % on average


@gluon.jit
def _quarters(x):
    """(64, BLOCK_N) as four (64, BLOCK_N / 4), columns in the order of `transpose`: a renaming of registers."""
    QUARTER: gl.constexpr = x.shape[1] // 4
    GROUPS: gl.constexpr = x.shape[1] // 16
    x = gl.permute(gl.reshape(x, [ROWS, GROUPS, 2, 4, 2]), (0, 1, 3, 4, 2))
    a, b = gl.split(gl.reshape(x, [ROWS, QUARTER, 2, 2]))
    x0, x1 = gl.split(a)
    x2, x3 = gl.split(b)
    return x0, x1, x2, x3


@gluon.jit
def _operand(words, layout: gl.constexpr):
    """Words (64, BLOCK_N / 4) of four e4m3 each as the second product's operand (64, BLOCK_N)."""
    BLOCK_N: gl.constexpr = words.shape[1] * 4
    pairs = gl.join(words, words)
    fours = gl.reshape(gl.join(pairs, pairs), [ROWS, BLOCK_N])
    fours = gl.convert_layout(fours, layout, assert_trivial=True)  # in whose order a thread's columns are neighbours
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [fours], dtype=gl.float8e4nv, is_pure=True,
                                     pack=4)


@gluon.jit
def _powers(s, unit, m, LINEAR: gl.constexpr):
    """P = 2^(s·unit - m) before rounding and its row sums (64, 8); with LINEAR the scores, and `_ones` makes the sums."""
    if LINEAR:
        return s, 0.0
    else:
        p = gl.exp2(s * unit - m[:, None])
        return p, _lane_sums(p)


@gluon.jit
def _words(p, unit, m, LINEAR: gl.constexpr):
    """P (64, BLOCK_N), with LINEAR the scores, as e4m3, four to a word: Triton carries a byte from one iteration to the
    next in a register of its own. After the wait for the product that reads the last P: a write before it makes ptxas
    serialise the products."""
    p0, p1, p2, p3 = _quarters(p)
    if LINEAR:
        slope, p0 = gl.broadcast(gl.to_tensor(unit) * 0.0625, p0)
        shift, p0 = gl.broadcast((LINEAR_SHIFT - _like_rows(m, p0) * 0.0625)[:, None], p0)
        return gl.inline_asm_elementwise(LINEAR_POWER, "=r,f,f,f,f,f,f", [p0, p1, p2, p3, slope, shift],
                                         dtype=gl.int32, is_pure=False, pack=1)
    else:
        return gl.inline_asm_elementwise(ROUND, "=r,f,f,f,f", [p0, p1, p2, p3], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _like_rows(x, y):
    """x (64,) in the layout of the rows of y (64, n)."""
    return gl.convert_layout(x, gl.SliceLayout(1, y.type.layout))


@gluon.jit
def _take_turn(CONSUMER: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        named_sync(TURN + CONSUMER, 256)


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        named_arrive(TURN + (CONSUMER + 1) % CONSUMERS, 256)


@gluon.jit
def _skip(barriers, step, STAGES: gl.constexpr):
    """Hand on a block that this consumer does not need."""
    _, _, k_full, k_empty, v_full, v_empty = barriers
    stage = step % STAGES
    mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
    mbarrier.arrive(k_empty.index(stage), count=1)
    mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
    mbarrier.arrive(v_empty.index(stage), count=1)


@gluon.jit
def _scores(q, k_ring, stage, layout: gl.constexpr):
    BLOCK_N: gl.constexpr = k_ring.shape[3]
    D: gl.constexpr = k_ring.shape[4]
    k = k_ring.index(stage).reshape([BLOCK_N, D]).permute((1, 0))
    return warpgroup_mma(q, k, gl.zeros([ROWS, BLOCK_N], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _values(p, v_ring, stage, acc):
    D: gl.constexpr = v_ring.shape[2]
    BLOCK_N: gl.constexpr = v_ring.shape[3]
    return warpgroup_mma(p, v_ring.index(stage).reshape([D, BLOCK_N]).permute((1, 0)), acc, is_async=True)


@gluon.jit
def _ones(p, ones, l):
    """l (64, 8) and the row sums of P as rounded, by a product with 1."""
    p = gl.convert_layout(p, gl.DotOperandLayout(0, l.type.layout, 4), assert_trivial=True)
    return warpgroup_mma(p, ones.permute((1, 0)), l, is_async=True)


@gluon.jit
def _after_values(barriers, stage, token, l_token, LINEAR: gl.constexpr):
    """Wait for P·V, and with LINEAR for the row sums, and hand its V back."""
    if LINEAR:
        acc, l = warpgroup_mma_wait(0, deps=(token, l_token))
    else:
        acc = warpgroup_mma_wait(0, deps=(token,))
        l = l_token
    mbarrier.arrive(barriers[5].index(stage), count=1)
    return acc, l


@gluon.jit
def _step(q, barriers, rings, step, more, p, acc, m, l, unit, v_factor, row, column, nq, nk, CONSUMER: gl.constexpr,
          CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_SCALES: gl.constexpr,
          LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, s_layout: gl.constexpr):
    """Scores of the next block, P·V of this one, softmax of the next. unit: from its scores to powers of two.
    v_factor: the scale of this block's values over the next one's. column: the next block's first."""
    _, _, k_full, k_empty, v_full, v_empty = barriers
    _, k_ring, v_ring, ones, _ = rings
    BLOCK_N: gl.constexpr = k_ring.shape[3]
    k_stage = (step + 1) % STAGES
    v_stage = step % STAGES
    operand = _operand(p, gl.DotOperandLayout(0, acc.type.layout, 4))
    _take_turn(CONSUMER, TURNS)
    if ORDER != 2:
        s_token = _scores(q, k_ring, k_stage, s_layout)
    mbarrier.wait(v_full.index(v_stage), (step // STAGES) & 1)
    token = _values(operand, v_ring, v_stage, acc)
    l_token = _ones(operand, ones, l) if LINEAR else l
    if ORDER == 2:
        acc, l = _after_values(barriers, v_stage, token, l_token, LINEAR)
        s_token = _scores(q, k_ring, k_stage, s_layout)
    _pass_turn(CONSUMER, CONSUMERS, TURNS)
    s = warpgroup_mma_wait(0 if ORDER == 2 else 2 if LINEAR else 1, deps=(s_token,))
    mbarrier.arrive(k_empty.index(k_stage), count=1)
    if CAUSAL == 2:  # the diagonal may cross two blocks
        if column + BLOCK_N > row + nk - nq + 1:
            s = _masked(s, row, column, nq, nk, CAUSAL)
    top = gl.max(s, 1) * unit - OFFSET
    new = gl.where(top > m + SLACK, top, m)
    alpha = gl.exp2(m - new)
    if ORDER == 1:
        acc, l = _after_values(barriers, v_stage, token, l_token, LINEAR)
    p, sums = _powers(s, unit, new, LINEAR)
    # this wait ends a basic block, so that ptxas cannot lift the wait for P·V above the softmax
    following = (step + 2) % STAGES
    mbarrier.wait(k_full.index(following), ((step + 2) // STAGES) & 1, pred=more)
    if ORDER == 0:
        acc, l = _after_values(barriers, v_stage, token, l_token, LINEAR)
    p = _words(p, unit, new, LINEAR)
    acc = _rescale(acc, _like_rows(alpha * v_factor if BLOCK_SCALES else alpha, acc))
    l = l * _like_rows(alpha, l)[:, None]
    if not LINEAR:
        l += sums
    return p, acc, new, l


@gluon.jit
def _consume(CONSUMER: gl.constexpr, sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count,
             CONSUMERS: gl.constexpr, GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
             CAUSAL: gl.constexpr, BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, Q_REGISTERS: gl.constexpr):
    """64 rows of each tile: out and LSE. Blocks of keys from the last one seen backwards."""
    q_source, _, _, o_source = sources
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    q_ring, k_ring, v_ring, ones, o_ring = rings
    q_scale, q_head, q_block, k_scale, k_head, k_block, v_scale, v_head, v_block = scales
    BLOCK_M: gl.constexpr = CONSUMERS * ROWS
    D: gl.constexpr = q_source.block_type.shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    l_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 32])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    mine = tiles + gl.program_id(0) * width
    step = 0
    turn = 0
    if CONSUMER == CONSUMERS - 1:
        _pass_turn(CONSUMER, CONSUMERS, TURNS)  # consumer 0 goes first
    tile = gl.load(mine)
    while tile < count:
        row, batch, head, kv_head = _tile(tile, nq, heads, GROUP, BLOCK_M)
        kv_all = batch * (heads // GROUP) + kv_head
        head += batch * heads
        all_blocks = gl.maximum(_key_blocks(row + BLOCK_M, nq, nk, CAUSAL, BLOCK_N), 1)
        row += CONSUMER * ROWS
        blocks = gl.where(row < nq, _key_blocks(row + ROWS, nq, nk, CAUSAL, BLOCK_N), 0)
        q_unit = scale * LOG2_E * gl.load(q_scale + head * q_head + row // SCALE_ROWS * q_block,
                                          mask=row < nq, other=0.0)
        k_scales = k_scale + kv_all * k_head
        v_scales = v_scale + kv_all * v_head
        for left in range(blocks, all_blocks):
            _skip(barriers, step, STAGES)
            if left > 0:
                _take_turn(CONSUMER, TURNS)
                _pass_turn(CONSUMER, CONSUMERS, TURNS)
            step += 1
        mbarrier.wait(q_full.index(CONSUMER), turn & 1)
        rows = row + gl.arange(0, ROWS, row_layout)
        acc = gl.zeros([ROWS, D], gl.float32, o_layout)
        if blocks == 0:
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)
            gl.store(lse + head.to(gl.int64) * nq + rows, float("-inf"), mask=rows < nq)
        else:
            q = q_ring.index(CONSUMER).reshape([ROWS, D])
            if Q_REGISTERS:
                q = q.load(gl.DotOperandLayout(0, s_layout, 4))
                mbarrier.arrive(q_empty.index(CONSUMER), count=1)
            stage = step % STAGES
            column = (blocks - 1) * BLOCK_N
            unit = q_unit * gl.load(k_scales + column // SCALE_ROWS * k_block)
            mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
            s = warpgroup_mma_wait(0, deps=(_scores(q, k_ring, stage, s_layout),))
            mbarrier.arrive(k_empty.index(stage), count=1)
            s = _masked(s, row, column, nq, nk, CAUSAL)
            m = gl.maximum(gl.max(s, 1) * unit - OFFSET, FLOOR)
            p, l = _powers(s, unit, m, LINEAR)
            if LINEAR:
                l = gl.zeros([ROWS, 8], gl.float32, l_layout)
            p = _words(p, unit, m, LINEAR)
            mbarrier.wait(k_full.index((step + 1) % STAGES), ((step + 1) // STAGES) & 1, pred=blocks > 1)
            v_factor = 1.0
            for j in range(1, blocks):
                column -= BLOCK_N
                if BLOCK_SCALES:
                    unit = q_unit * gl.load(k_scales + column // SCALE_ROWS * k_block)
                    place = v_scales + column // SCALE_ROWS * v_block
                    v_factor = gl.load(place + v_block) / gl.load(place)
                p, acc, m, l = _step(q, barriers, rings, step, j + 1 < blocks, p, acc, m, l, unit, v_factor, row,
                                     column, nq, nk, CONSUMER, CONSUMERS, STAGES, CAUSAL, BLOCK_SCALES, LINEAR,
                                     ORDER, TURNS, s_layout)
                step += 1
            if not Q_REGISTERS:
                mbarrier.arrive(q_empty.index(CONSUMER), count=1)  # the next Q loads under the rest of this tile
            stage = step % STAGES
            mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
            operand = _operand(p, gl.DotOperandLayout(0, o_layout, 4))
            token = _values(operand, v_ring, stage, acc)
            l_token = _ones(operand, ones, l) if LINEAR else l
            acc, l = _after_values(barriers, stage, token, l_token, LINEAR)
            total = gl.convert_layout(gl.max(l, 1) if LINEAR else gl.sum(l, 1), row_layout)
            step += 1
            gl.store(lse + head.to(gl.int64) * nq + rows, (m + gl.log2(total)) * LN_2, mask=rows < nq)
            # a row that saw no key has total 0: 0 / 1
            factor = gl.load(v_scales) / gl.where(total > 0.0, total, 1.0)
            acc = acc * _like_rows(factor, acc)[:, None]
        tma_store_wait(0)
        staged = o_ring.index(CONSUMER)
        staged.reshape([ROWS, D]).store(acc.to(gl.bfloat16))
        fence_async_shared()
        tma_store(o_source, [head, row, 0], staged)
        turn += 1
        tile = gl.load(mine + turn)
    tma_store_wait(0)


@gluon.jit
def _first(sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS: gl.constexpr,
           GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
           BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, Q_REGISTERS: gl.constexpr):
    _consume(0, sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP, BLOCK_N,
             STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)


@gluon.jit
def _second(sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS: gl.constexpr,
            GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
            BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, Q_REGISTERS: gl.constexpr):
    _consume(1, sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP, BLOCK_N,
             STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)


@gluon.jit
def _third(sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS: gl.constexpr,
           GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
           BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, Q_REGISTERS: gl.constexpr):
    _consume(2, sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP, BLOCK_N,
             STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)


@gluon.jit
def _pairs(STAGES: gl.constexpr, EMPTY: gl.constexpr):
    """Barriers of a ring: full, which the TMA completes, and empty, at which EMPTY consumers arrive."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=EMPTY)
    return full, empty


@gluon.jit
def _ring(source, COUNT: gl.constexpr):
    return gl.allocate_shared_memory(source.dtype, [COUNT] + source.block_type.shape, source.layout)


@gluon.jit(do_not_specialize=["width", "count", "heads", "nq", "nk"])
def forward(q_source, k_source, v_source, o_source, scales, lse, tiles, width, scale, heads, nq, nk, count,
            CONSUMERS: gl.constexpr, GROUP: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
            CAUSAL: gl.constexpr, BLOCK_SCALES: gl.constexpr, LINEAR: gl.constexpr, ORDER: gl.constexpr, TURNS: gl.constexpr, Q_REGISTERS: gl.constexpr):
    """Descriptors: q (B, H, Nq, D), k (B, Hk, Nk, D), v of `transpose`, out (B·H, Nq, D) bfloat16.

    scales: (pointer, step of a head, step of a block of 128 rows) of q, k and v, one after the other. lse (B·H, Nq).
    tiles (programs, width): a list of tiles a program, ended by one of at least `count`. CAUSAL: 0, 1, or 2 where
    nk - nq is not a multiple of 64. BLOCK_SCALES: k or v has a scale a block."""
    q_ring, o_ring = _ring(q_source, CONSUMERS), _ring(o_source, CONSUMERS)
    k_ring, v_ring = _ring(k_source, STAGES), _ring(v_source, STAGES)
    q_full, q_empty = _pairs(CONSUMERS, 1)
    k_full, k_empty = _pairs(STAGES, CONSUMERS)
    v_full, v_empty = _pairs(STAGES, CONSUMERS)
    sources = (q_source, k_source, v_source, o_source)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    if LINEAR:
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, BLOCK_N], gl.float8e4nv)
        one = gl.full([8, BLOCK_N], 1.0, gl.float32, gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))
        ones = gl.allocate_shared_memory(gl.float8e4nv, [8, BLOCK_N], layout, one.to(gl.float8e4nv))
        fence_async_shared()
    else:
        ones = q_ring
    rings = (q_ring, k_ring, v_ring, ones, o_ring)
    if CONSUMERS == 2:  # registers of a thread: 3·168 = 240 + 240 + 24
        gl.warp_specialize([
            (_first, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                      BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)),
            (_second, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                       BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)),
            (_produce, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                        BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR))], [4, 1], [240, 24])
    else:  # 4·128 = 3·160 + 32
        gl.warp_specialize([
            (_first, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                      BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)),
            (_second, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                       BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)),
            (_third, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                      BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR, ORDER, TURNS, Q_REGISTERS)),
            (_produce, (sources, barriers, rings, scales, lse, tiles, width, scale, heads, nq, nk, count, CONSUMERS, GROUP,
                        BLOCK_N, STAGES, CAUSAL, BLOCK_SCALES, LINEAR))], [4, 4, 1], [160, 160, 24])
