"""FlashAttention backward for Hopper (sm_90) in Triton's Gluon dialect: TMA, warp specialisation, wgmma.

The mathematics is that of kernels.flash2_backward. One tile is 128 keys of a key head, or 192: a producer streams
the blocks of queries, dO and row statistics through a ring; two or three consumer warpgroups of 64 keys each hold dK
and dV in registers and work on transposed blocks, S' = K Q' and dP' = V dO', so that P' and dS' are register operands
of dV += P' dO and dK += dS' Q. dQ = dS K needs the dS of both consumers, which pass it through shared memory; each
makes one half of it and adds it to a float32 workspace. The statistics -LSE / scale and -Delta are the values that the
accumulators of S and dP start from: no subtraction, 32 registers fewer at head size 128. The deterministic variant has
no dQ here: kernels.hopper_backward_queries makes it (7 products for 5).

kernels.hopper_backward_plan chooses, launches and records what each choice gave.
"""

import triton
import triton.language as tl
from triton.experimental.gluon.language.nvidia.hopper.tma import tensor_descriptor
from triton.language.core import _aggregate as aggregate

from kernels.gluon_names import (
    constexpr_function,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    named_sync,
    tma_load,
    tma_reduce_add,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ATOMIC, REDUCE = gl.constexpr(1), gl.constexpr(2)  # dQ leaves by red.global.add.v4 from registers, or by TMA reduction


@constexpr_function
def copies(n, shape):
    return [n, *shape]


@constexpr_function
def _red_code(n):
    """PTX that adds the n float32 values of each of 128 threads to global memory, 16 bytes a thread at a time."""
    code = (f"{{ .reg .u64 a; .reg .u32 t; mov.u32 t, %tid.x; and.b32 t, t, 127; mad.wide.u32 a, t, 16, ${2 * n}; ")
    for i in range(0, n, 4):
        values = ", ".join(f"${n + i + e}" for e in range(4))
        code += f"red.global.add.v4.f32 [a+{i * 512}], {{{values}}}; "
    return code + "mov.b32 $0, 0; }"


@constexpr_function
def _red_operands(n):
    return ",".join(["=r"] * n + ["f"] * n + ["l"] * n)


@gluon.jit
def _red(x, ptr, n: gl.constexpr):
    """Add x, n values a thread, to the 128 n values at ptr, in the order of the registers: `finish` puts it right."""
    x, at = gl.broadcast(x, gl.full([1, 1], 0, gl.int64, x.type.layout) + ptr.to(gl.int64, bitcast=True))
    gl.inline_asm_elementwise(_red_code(n), _red_operands(n), [x, at], dtype=gl.int32, is_pure=False, pack=n)


@gluon.jit
def _arrive(number):
    """Count this consumer's 128 threads, of 256, at named barrier `number`, which a register holds."""
    gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r,~{memory}", [gl.to_tensor(number)],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _sync(number):
    """The other side of `_arrive`: wait for the 128 threads of the other consumer."""
    gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r,~{memory}", [gl.to_tensor(number)],
                              dtype=gl.int32, is_pure=False, pack=1)


# ---- dK and dV, and dQ by sums in global memory ---------------------------------------------------------------------
@aggregate
class KeyWork:
    """Everything that the partitions of key_kernel share. D: padded head size; BM: queries a block."""

    D: gl.constexpr
    HEAD: gl.constexpr
    BM: gl.constexpr
    KEYS: gl.constexpr
    STAGES: gl.constexpr
    GROUP: gl.constexpr
    LEFT: gl.constexpr
    RIGHT: gl.constexpr
    TAIL: gl.constexpr
    DQ: gl.constexpr
    SCHEDULE: gl.constexpr
    SPREAD: gl.constexpr
    q_desc: tensor_descriptor
    k_desc: tensor_descriptor
    v_desc: tensor_descriptor
    do_desc: tensor_descriptor
    dq_desc: tensor_descriptor
    STATS: gl.tensor
    DELTA: gl.tensor
    DK: gl.tensor
    DV: gl.tensor
    DQ_SUM: gl.tensor
    HK: gl.tensor
    NQ: gl.tensor
    NK: gl.tensor
    NQP: gl.tensor
    scale: gl.tensor
    qk_scale: gl.tensor
    lowest: gl.tensor
    highest: gl.tensor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    kv_full: gl.shared_memory_descriptor
    kv_free: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor

    @constexpr_function
    def __init__(self, D, HEAD, BM, KEYS, STAGES, GROUP, LEFT, RIGHT, TAIL, DQ, SCHEDULE, SPREAD, descriptors,
                 pointers, numbers, tiles, barriers):
        self.D, self.HEAD = gl.constexpr(D), gl.constexpr(HEAD)
        self.BM, self.KEYS = gl.constexpr(BM), gl.constexpr(KEYS)
        self.STAGES, self.GROUP = gl.constexpr(STAGES), gl.constexpr(GROUP)
        self.LEFT, self.RIGHT, self.TAIL = gl.constexpr(LEFT), gl.constexpr(RIGHT), gl.constexpr(TAIL)
        self.DQ, self.SCHEDULE, self.SPREAD = gl.constexpr(DQ), gl.constexpr(SCHEDULE), gl.constexpr(SPREAD)
        self.q_desc, self.k_desc, self.v_desc, self.do_desc, self.dq_desc = descriptors
        self.STATS, self.DELTA, self.DK, self.DV, self.DQ_SUM = pointers
        self.HK, self.NQ, self.NK, self.NQP, self.scale, self.qk_scale, self.lowest, self.highest = numbers
        self.q, self.do, self.k, self.v, self.lse, self.delta, self.ds, self.dq = tiles
        self.kv_full, self.kv_free, self.q_full, self.do_full, self.free = barriers


@gluon.jit
def _tile_of(w, tile):
    """(key head counted over the batch, first key) of a tile; under a causal mask the longest of a head come first."""
    blocks = gl.cdiv(w.NK, w.KEYS)
    return tile // blocks, tile % blocks * w.KEYS


@gluon.jit
def _query_blocks(w, n0):
    """[first, last) blocks of queries that see a key of the tile."""
    first = w.NQ * 0
    last = gl.cdiv(w.NQ, w.BM)
    if w.RIGHT:
        first = gl.maximum(n0 - w.highest, 0) // w.BM
    if w.LEFT:
        last = gl.maximum(gl.minimum(last, gl.cdiv(gl.maximum(n0 + w.KEYS - w.lowest, 0), w.BM)), first)
    return first, last


@gluon.jit
def _start(w, n0, first, last):
    """The block to begin with. SPREAD: the tiles of a head begin at blocks far from each other, so that those which
    run at the same time add to different rows of dQ."""
    if w.SPREAD:
        return first + (n0 // w.KEYS) * (last - first) // gl.cdiv(w.NK, w.KEYS)
    else:
        return first


@gluon.jit
def _following(w, j, bh, start, first, last):
    """The block after block j of query head bh, in a ring; after a round, those of the next head of the group."""
    j += 1
    if w.SPREAD or w.GROUP > 1:
        j -= (j == last).to(gl.int32) * (last - first)
    if w.GROUP > 1:
        bh += (j == start).to(gl.int32)
    return j, bh


@gluon.jit
def _load_tile(w, tile, it, count):
    bhk, n0 = _tile_of(w, tile)
    first, last = _query_blocks(w, n0)
    b, hk = bhk // w.HK, bhk % w.HK
    mbarrier.wait(w.kv_free, (count & 1) ^ 1)
    rows: gl.constexpr = w.k_desc.block_type.shape[2]
    mbarrier.expect(w.kv_full.index(0), w.KEYS // rows * w.k_desc.block_type.nbytes)
    for c in gl.static_range(w.KEYS // rows):
        tma_load(w.k_desc, [b, hk, n0 + c * rows, 0], w.kv_full.index(0), w.k.index(c))
    mbarrier.expect(w.kv_full.index(1), w.KEYS // rows * w.v_desc.block_type.nbytes)
    for c in gl.static_range(w.KEYS // rows):
        tma_load(w.v_desc, [b, hk, n0 + c * rows, 0], w.kv_full.index(1), w.v.index(c))
    cols = gl.arange(0, w.BM, layout=gl.BlockedLayout([1], [32], [4], [0]))
    start = _start(w, n0, first, last)
    j, bh = start, bhk * w.GROUP
    for _ in range(0, w.GROUP * (last - first)):
        s = it % w.STAGES
        mbarrier.wait(w.free.index(s), ((it // w.STAGES) & 1) ^ 1)
        mbarrier.expect(w.q_full.index(s), w.q_desc.block_type.nbytes)
        tma_load(w.q_desc, [b, bh - b * w.HK * w.GROUP, j * w.BM, 0], w.q_full.index(s), w.q.index(s))
        at = bh.to(gl.int64) * w.NQP + j * w.BM
        lse = gl.load(w.STATS + at + cols)
        delta = gl.load(w.DELTA + at + cols)
        mbarrier.expect(w.do_full.index(s), w.do_desc.block_type.nbytes)
        tma_load(w.do_desc, [b, bh - b * w.HK * w.GROUP, j * w.BM, 0], w.do_full.index(s), w.do.index(s))
        w.lse.index(s).store(lse)
        w.delta.index(s).store(delta)
        mbarrier.arrive(w.q_full.index(s), count=1)
        it += 1
        j, bh = _following(w, j, bh, start, first, last)
    return it


@gluon.jit
def _load(w):
    _load_tile(w, gl.program_id(0), gl.program_id(0) * 0, 0)


@gluon.jit
def _own(C: gl.constexpr, w, tile, it):
    """The 64 rows of K or V that are this consumer's, in the step that comes as number `it`.

    it >> 30 is 0, which the compiler cannot know: it would keep 16 registers of addresses over the loop."""
    if w.k_desc.block_type.shape[2] == 64:
        return tile.index(C + (it >> 30)).reshape([64, w.D])
    else:
        return tile.index(it >> 30).reshape([w.KEYS, w.D]).slice(C * 64, 64)


@gluon.jit
def _statistic(x, BM: gl.constexpr, layout: gl.constexpr):
    """A value a query, as the accumulator that a product of keys by queries starts from."""
    x = gl.expand_dims(x.load(gl.SliceLayout(0, layout)), 0)
    return gl.broadcast(x, gl.zeros([64, BM], gl.float32, layout))[0]


@gluon.jit
def _scores(C: gl.constexpr, w, it, layout: gl.constexpr):
    """Start S' = K Q' - LSE / scale of the block that comes as number `it`."""
    s = it % w.STAGES
    q = w.q.index(s).reshape([w.BM, w.D]).permute((1, 0))
    return warpgroup_mma(_own(C, w, w.k, it), q, _statistic(w.lse.index(s), w.BM, layout), is_async=True)


@gluon.jit
def _weight_gradients(C: gl.constexpr, w, it, layout: gl.constexpr):
    """Start dP' = V dO' - Delta."""
    s = it % w.STAGES
    do = w.do.index(s).reshape([w.BM, w.D]).permute((1, 0))
    return warpgroup_mma(_own(C, w, w.v, it), do, _statistic(w.delta.index(s), w.BM, layout), is_async=True)


@gluon.jit
def _weights(C: gl.constexpr, w, s, n0, j, until, since, layout: gl.constexpr):
    """P' of a block of scores; only blocks below `until` or from `since` on hold pairs that do not see each other."""
    p = gl.exp2(s * w.qk_scale)
    if w.LEFT or w.RIGHT or w.TAIL:  # noqa: SIM102  decided when it is compiled
        if (j < until) | (j >= since):
            # so written, each element compares one of two registers with a constant; as key <= query it spills
            c = gl.arange(0, w.BM, layout=gl.SliceLayout(0, layout))
            key = n0 + C * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
            if w.RIGHT:
                p = gl.where((key - j * w.BM - w.highest)[:, None] - (c & 6)[None, :] <= (c - (c & 6))[None, :], p, 0.0)
            if w.LEFT:
                p = gl.where((key - j * w.BM - w.lowest)[:, None] - (c & 6)[None, :] >= (c - (c & 6))[None, :], p, 0.0)
            if w.TAIL:
                p = gl.where((key < w.NK)[:, None], p, 0.0)
    return p


@gluon.jit
def _dq(C: gl.constexpr, w, b):
    """Start this consumer's half of dQ = dS K: half of the columns (64 queries a block) or of the queries (128)."""
    k = w.k.index(0).reshape([w.KEYS, w.D])
    ds = w.ds.index(b)
    if w.BM == 64:
        half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.D // 2, 16])
        zero = gl.zeros([64, w.D // 2], gl.float32, half)
        k = k.slice(C * (w.D // 2), w.D // 2, 1)
        return warpgroup_mma(ds.permute((1, 0)), k, zero, use_acc=False, is_async=True)
    else:
        whole: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.D, 16])
        zero = gl.zeros([64, w.D], gl.float32, whole)
        return warpgroup_mma(ds.slice(C * 64, 64, 1).permute((1, 0)), k, zero, use_acc=False, is_async=True)


@gluon.jit
def _add_dq(C: gl.constexpr, w, dq, bh, j):
    row = bh * w.NQP + j * w.BM
    if w.DQ == ATOMIC:
        _red(dq, w.DQ_SUM + row.to(gl.int64) * w.D + C * (w.BM * w.D // 2), w.BM * w.D // 256)
    else:
        tma_store_wait(0)
        w.dq.index(C).store(dq)
        fence_async_shared()
        if w.BM == 64:
            tma_reduce_add(w.dq_desc, [row, C * (w.D // 2)], w.dq.index(C))
        else:
            tma_reduce_add(w.dq_desc, [row + C * 64, 0], w.dq.index(C))


@gluon.jit
def store_rows(X, x, rows, HEAD: gl.constexpr, D: gl.constexpr):
    """Write the first `rows` of x's 64 rows to a contiguous matrix of HEAD columns, in its own type."""
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, x.type.layout))
    c = gl.arange(0, D, layout=gl.SliceLayout(0, x.type.layout))
    offsets = r[:, None] * HEAD + c[None, :]
    ok = gl.broadcast((r < rows)[:, None], offsets)[0]
    if HEAD != D:
        ok = ok & (c < HEAD)[None, :]
    gl.store(X + offsets, x.to(X.dtype.element_ty), mask=ok)


@gluon.jit
def _step(C: gl.constexpr, w, it, j, bh, jn, more, n0, until, since, x, dk, dv, layout: gl.constexpr,
          p_layout: gl.constexpr):
    """One block of queries. x: its scores (SCHEDULE 1 and 2) or its P (3), made in the step before."""
    s = it % w.STAGES
    phase = (it // w.STAGES) & 1
    sn = (it + 1) % w.STAGES
    next_phase = ((it + 1) // w.STAGES) & 1
    b = it & 1
    q = w.q.index(s).reshape([w.BM, w.D])
    do = w.do.index(s).reshape([w.BM, w.D])
    if w.SCHEDULE == 0:
        mbarrier.wait(w.q_full.index(s), phase)
        x_t = _scores(C, w, it, layout)
        mbarrier.wait(w.do_full.index(s), phase)
        dp_t = _weight_gradients(C, w, it, layout)
        x = warpgroup_mma_wait(1, deps=(x_t, ))
    else:
        dp_t = _weight_gradients(C, w, it, layout)
        if w.SCHEDULE < 3:
            mbarrier.wait(w.do_full.index(s), phase)  # complete: it ends a basic block, so dP starts before exp2
    if w.SCHEDULE < 3:
        x = _weights(C, w, x, n0, j, until, since, layout)
    dv_t = warpgroup_mma(gl.convert_layout(x.to(q.dtype), p_layout), do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp_t, ))
    ds = (x * dp).to(q.dtype)
    if w.DQ > 0:
        w.ds.index(b).slice(C * 64, 64).store(ds)
        fence_async_shared()
    if w.SCHEDULE == 0:
        dk_t = warpgroup_mma(gl.convert_layout(ds, p_layout), q, dk, is_async=True)
        if w.DQ > 0:
            named_sync(10, 256)
            dq_t = _dq(C, w, b)
            dq, dk, dv = warpgroup_mma_wait(0, deps=(dq_t, dk_t, dv_t))
            mbarrier.arrive(w.free.index(s), count=1)
            _add_dq(C, w, dq, bh, j)
        else:
            dk, dv = warpgroup_mma_wait(0, deps=(dk_t, dv_t))
            mbarrier.arrive(w.free.index(s), count=1)
    elif w.SCHEDULE == 1:  # dQ leaves under dK, which reads dS from shared memory: its registers are free
        dv = warpgroup_mma_wait(0, deps=(dv_t, ))
        named_sync(10, 256)
        dq_t = _dq(C, w, b)
        dk_t = warpgroup_mma(w.ds.index(b).slice(C * 64, 64), q, dk, is_async=True)
        dq = warpgroup_mma_wait(1, deps=(dq_t, ))
        _add_dq(C, w, dq, bh, j)
        mbarrier.wait(w.q_full.index(sn), next_phase, pred=more)
        x_t = _scores(C, w, it + 1, layout)  # after the last block: of stale memory, unused
        dk = warpgroup_mma_wait(1, deps=(dk_t, ))
        mbarrier.arrive(w.free.index(s), count=1)
    elif w.SCHEDULE == 2:  # dQ leaves under the next scores
        dk_t = warpgroup_mma(gl.convert_layout(ds, p_layout), q, dk, is_async=True)
        dv = warpgroup_mma_wait(1, deps=(dv_t, ))
        named_sync(10, 256)
        dq_t = _dq(C, w, b)
        dk = warpgroup_mma_wait(1, deps=(dk_t, ))
        mbarrier.wait(w.q_full.index(sn), next_phase, pred=more)
        x_t = _scores(C, w, it + 1, layout)
        dq = warpgroup_mma_wait(1, deps=(dq_t, ))
        mbarrier.arrive(w.free.index(s), count=1)
        _add_dq(C, w, dq, bh, j)
    if w.SCHEDULE == 1 or w.SCHEDULE == 2:
        mbarrier.wait(w.do_full.index(sn), next_phase, pred=more)
        x = warpgroup_mma_wait(0, deps=(x_t, ))
    elif w.SCHEDULE == 3:  # the next P is made under dQ; the consumers may be almost a block apart
        if w.DQ > 0:
            _arrive(10 + 2 * b + 1 - C)  # two barriers a consumer: it may arrive again before the other has waited
        dk_t = warpgroup_mma(gl.convert_layout(ds, p_layout), q, dk, is_async=True)
        mbarrier.wait(w.q_full.index(sn), next_phase, pred=more)
        x_t = _scores(C, w, it + 1, layout)
        dk, dv = warpgroup_mma_wait(1, deps=(dk_t, dv_t))
        mbarrier.arrive(w.free.index(s), count=1)
        if w.DQ > 0:
            _sync(10 + 2 * b + C)
            dq_t = _dq(C, w, b)
            x_t = warpgroup_mma_wait(1, deps=(x_t, ))
        else:
            x_t = warpgroup_mma_wait(0, deps=(x_t, ))
        x = _weights(C, w, x_t, n0, jn, until, since, layout)
        mbarrier.wait(w.do_full.index(sn), next_phase, pred=more)
        if w.DQ > 0:
            dq = warpgroup_mma_wait(0, deps=(dq_t, ))
            _add_dq(C, w, dq, bh, j)
    return x, dk, dv


@gluon.jit
def _work_tile(C: gl.constexpr, w, tile, it, count):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.BM, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    bhk, n0 = _tile_of(w, tile)
    first, last = _query_blocks(w, n0)
    until, since = w.NQ * 0, w.NQ
    if w.RIGHT:
        until = gl.cdiv(gl.maximum(n0 + w.KEYS - 1 - w.highest, 0), w.BM)
    if w.LEFT:
        since = gl.maximum(n0 - w.lowest + 1, 0) // w.BM
    if w.TAIL:
        until += (n0 + w.KEYS > w.NK).to(gl.int32) * w.NQ
    dk = gl.zeros([64, w.D], gl.float32, o_layout)
    dv = gl.zeros([64, w.D], gl.float32, o_layout)
    mbarrier.wait(w.kv_full.index(0), count & 1)
    mbarrier.wait(w.kv_full.index(1), count & 1)
    n = w.GROUP * (last - first)
    start = _start(w, n0, first, last)
    j, bh = start, bhk * w.GROUP
    x = gl.zeros([64, w.BM], gl.float32, layout)
    if w.SCHEDULE > 0:
        s = it % w.STAGES
        phase = (it // w.STAGES) & 1
        mbarrier.wait(w.q_full.index(s), phase, pred=n > 0)
        x_t = _scores(C, w, it, layout)
        mbarrier.wait(w.do_full.index(s), phase, pred=n > 0)
        x = warpgroup_mma_wait(0, deps=(x_t, ))
        if w.SCHEDULE == 3:
            x = _weights(C, w, x, n0, j, until, since, layout)
    for i in range(0, n):
        jn, bhn = _following(w, j, bh, start, first, last)
        x, dk, dv = _step(C, w, it, j, bh, jn, i + 1 < n, n0, until, since, x, dk, dv, layout, p_layout)
        j, bh = jn, bhn
        it += 1
    mbarrier.arrive(w.kv_free, count=1)
    row = n0 + C * 64
    base = (bhk.to(gl.int64) * w.NK + row) * w.HEAD
    store_rows(w.DV + base, dv, w.NK - row, w.HEAD, w.D)
    store_rows(w.DK + base, dk * w.scale, w.NK - row, w.HEAD, w.D)
    return it


@gluon.jit
def _work(C: gl.constexpr, w):
    _work_tile(C, w, gl.program_id(0), gl.program_id(0) * 0, 0)
    if w.DQ == REDUCE:
        tma_store_wait(0)


@gluon.jit
def _first_consumer(w):
    _work(0, w)


@gluon.jit
def _second_consumer(w):
    _work(1, w)


@gluon.jit
def _third_consumer(w):
    _work(2, w)


@gluon.jit(do_not_specialize=["HK", "NQ", "NK", "NQP", "lowest", "highest"])
def key_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, STATS, DELTA, DK, DV, DQ_SUM, HK, NQ, NK, NQP, scale, qk_scale,
               lowest, highest, HEAD: gl.constexpr, BM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
               GROUP: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, TAIL: gl.constexpr, DQ: gl.constexpr,
               SCHEDULE: gl.constexpr, SPREAD: gl.constexpr):
    """dK and dV (B, Hk, Nk, HEAD), summed over the query heads of a group, and dQ added to DQ_SUM (B H, NQP, D) where
    DQ asks for it. STATS, DELTA: of `prepare`. Query i sees key j where i + lowest <= j <= i + highest.

    One program a tile of KEYS keys, 64 a consumer: 128, or without dQ also 192. TAIL: whether KEYS does not divide NK.
    The descriptors of K and V have blocks of 128 rows with dQ, of 64 without."""
    D: gl.constexpr = k_desc.block_type.shape[3]
    q = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, q_desc.block_type.shape), q_desc.layout)
    do = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, do_desc.block_type.shape), do_desc.layout)
    parts: gl.constexpr = KEYS // k_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(q_desc.dtype, copies(parts, k_desc.block_type.shape), k_desc.layout)
    v = gl.allocate_shared_memory(q_desc.dtype, copies(parts, v_desc.block_type.shape), v_desc.layout)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, BM], plain)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, BM], plain)
    if DQ > 0:
        ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BM], q_desc.dtype)
        ds = gl.allocate_shared_memory(q_desc.dtype, [2, KEYS, BM], ds_layout)
    else:
        ds = lse
    if DQ == REDUCE:
        dq = gl.allocate_shared_memory(gl.float32, copies(2, dq_desc.block_type.shape), dq_desc.layout)
    else:
        dq = lse
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    kv_free = gl.allocate_shared_memory(gl.int64, [1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    mbarrier.init(kv_free, count=KEYS // 64)
    for i in gl.static_range(2):
        mbarrier.init(kv_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=2)  # the copy of Q, and the statistics
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(free.index(i), count=KEYS // 64)
    w = KeyWork(D, HEAD, BM, KEYS, STAGES, GROUP, LEFT, RIGHT, TAIL, DQ, SCHEDULE, SPREAD,
                (q_desc, k_desc, v_desc, do_desc, dq_desc), (STATS, DELTA, DK, DV, DQ_SUM),
                (HK, NQ, NK, NQP, scale, qk_scale, lowest, highest), (q, do, k, v, lse, delta, ds, dq),
                (kv_full, kv_free, q_full, do_full, free))
    if KEYS == 128:
        gl.warp_specialize([(_load, (w, )), (_first_consumer, (w, )), (_second_consumer, (w, ))], [4, 4], [240, 240])
    else:
        gl.warp_specialize([(_load, (w, )), (_first_consumer, (w, )), (_second_consumer, (w, )),
                            (_third_consumer, (w, ))], [4, 4, 4], [160, 160, 160])


# ---- before and after ------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["H", "NQ", "NQP"])
def prepare(OUT, DO, LSE, DLSE, STATS, DELTA, DQ_SUM, ob, oh, on, db, dh, dn, H, NQ, NQP, stat_scale,
            HEAD: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HAS_DLSE: tl.constexpr, ZERO: tl.constexpr):
    """Per query STATS = LSE times stat_scale and DELTA = dLSE - rowsum(dO * O), each (B H, NQP); DQ_SUM = 0 if ZERO.

    A row without keys, and the padding, get -inf, which makes their P zero. OUT, DO: strides of batch, head, token."""
    blocks = NQP // ROWS
    bh = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    c = tl.arange(0, D)
    inside = (rows < NQ)[:, None] & (c < HEAD)[None, :]
    r = rows.to(tl.int64)[:, None]
    o = tl.load(OUT + b * ob + h * oh + r * on + c[None, :], mask=inside, other=0.0).to(tl.float32)
    do = tl.load(DO + b * db + h * dh + r * dn + c[None, :], mask=inside, other=0.0).to(tl.float32)
    at = bh.to(tl.int64) * NQ + rows
    lse = tl.load(LSE + at, mask=rows < NQ, other=float("-inf"))
    delta = -tl.sum(o * do, 1)
    if HAS_DLSE:
        delta += tl.load(DLSE + at, mask=rows < NQ, other=0.0)
    dead = lse == float("-inf")
    at = bh.to(tl.int64) * NQP + rows
    tl.store(STATS + at, tl.where(dead, float("-inf"), lse * stat_scale))
    tl.store(DELTA + at, tl.where(dead, 0.0, delta))
    if ZERO:
        tl.store(DQ_SUM + at[:, None] * D + c[None, :], tl.zeros([ROWS, D], tl.float32))


@triton.jit(do_not_specialize=["NQ", "NQP"])
def finish(DQ_SUM, DQ, NQ, NQP, scale, HEAD: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
           ATOMIC_ORDER: tl.constexpr):
    """DQ (B, H, NQ, HEAD) = scale times DQ_SUM. ATOMIC_ORDER: each half of a block of BM queries (half of its columns,
    or at BM 128 of its queries) lies in the order of a consumer's registers: groups of 8 columns, thread, 4 values."""
    blocks = NQP // 64
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    row = tl.program_id(0) % blocks * 64
    r = tl.arange(0, 64)[:, None]
    c = tl.arange(0, D)[None, :]
    if ATOMIC_ORDER:
        HALF: tl.constexpr = D // 2 if BM == 64 else D
        cc = c % HALF
        thread = r // 16 * 32 + r % 8 * 4 + cc % 8 // 2
        index = ((c // HALF * (HALF // 8) + cc // 8) * 128 + thread) * 4 + r // 8 % 2 * 2 + cc % 2
    else:
        index = r * D + c
    x = tl.load(DQ_SUM + (bh * NQP + row) * D + index)
    ok = (row + r < NQ) & (c < HEAD)
    tl.store(DQ + (bh * NQ + row + r) * HEAD + c, (x * scale).to(DQ.dtype.element_ty), mask=ok)
