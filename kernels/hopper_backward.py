"""The attention backward for Hopper (sm_90) in Gluon: dK and dV, and dQ in the same pass.

The mathematics is that of FlashAttention-2 (Dao 2023, arXiv 2307.08691), as in kernels.flash2_backward; asynchronous
copies and products by FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608). A tile is 128 keys of a key head, or 192:
a producer streams the blocks of queries, dO and row statistics through a ring; two or three consumer warpgroups of 64
keys each hold dK and dV in registers and work on transposed blocks, S' = K Q' and dP' = V dO', so that P' and dS' are
register operands of dV += P' dO and dK += dS' Q. dQ = dS K needs the dS of both consumers, which pass it through shared
memory; each makes one half of it and adds it to a float32 workspace, in whatever order the programs come. The
statistics -LSE / scale and -Delta are the values that the accumulators of S and dP start from: no subtraction, 32
registers fewer at head size 128. What limits is how fast shared memory delivers, so they are not loaded either, by each
thread for itself, but are a product, ones (64, 16) by terms (16, queries); and dQ is written 16 bytes a thread, in the
order of the registers. Without dQ here, kernels.hopper_backward_queries makes it (7 products for 5).

kernels.hopper_backward_sums has what comes before and after; kernels.hopper_backward_plan chooses, launches and records
what each choice gave.
"""

from triton.experimental.gluon.language.nvidia.hopper.tma import tensor_descriptor
from triton.language.core import _aggregate as aggregate

from kernels.gluon_names import (
    constexpr_function,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    partition_barrier,
    reinterpret,
    tma_load,
    tma_reduce_add,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from kernels.hopper_backward_sums import (
    arrive,
    await_kernel_before,
    block_of_program,
    release_kernel_after,
    sync,
)


@constexpr_function
def copies(n, shape):
    return [n, *shape]


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
    BUFFERS: gl.constexpr
    q_desc: tensor_descriptor
    k_desc: tensor_descriptor
    v_desc: tensor_descriptor
    do_desc: tensor_descriptor
    dq_desc: tensor_descriptor
    dk_desc: tensor_descriptor
    dv_desc: tensor_descriptor
    term_desc: tensor_descriptor
    HK: gl.tensor
    NQ: gl.tensor
    NK: gl.tensor
    NQP: gl.tensor
    scale: gl.tensor
    qk_scale: gl.tensor
    lowest: gl.tensor
    highest: gl.tensor
    together: gl.tensor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    terms: gl.shared_memory_descriptor
    ones: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    kv_free: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor

    @constexpr_function
    def __init__(self, D, HEAD, BM, KEYS, STAGES, GROUP, LEFT, RIGHT, TAIL, DQ, BUFFERS, descriptors, numbers, tiles,
                 barriers):
        self.D, self.HEAD = gl.constexpr(D), gl.constexpr(HEAD)
        self.BM, self.KEYS = gl.constexpr(BM), gl.constexpr(KEYS)
        self.STAGES, self.GROUP = gl.constexpr(STAGES), gl.constexpr(GROUP)
        self.LEFT, self.RIGHT, self.TAIL = gl.constexpr(LEFT), gl.constexpr(RIGHT), gl.constexpr(TAIL)
        self.DQ, self.BUFFERS = gl.constexpr(DQ), gl.constexpr(BUFFERS)
        (self.q_desc, self.k_desc, self.v_desc, self.do_desc, self.dq_desc, self.dk_desc,
         self.dv_desc, self.term_desc) = descriptors
        (self.HK, self.NQ, self.NK, self.NQP, self.scale, self.qk_scale, self.lowest, self.highest,
         self.together) = numbers
        self.q, self.do, self.k, self.v, self.terms, self.ones, self.ds, self.dq = tiles
        self.k_full, self.v_full, self.kv_free, self.q_full, self.do_full, self.free = barriers


@gluon.jit
def _tile_of(w, turn):
    """(key head counted over the batch, first key) of a program's tile number `turn`; under a causal mask the first
    keys see most."""
    blocks = gl.cdiv(w.NK, w.KEYS)
    if w.LEFT or w.RIGHT:
        bhk, block = block_of_program(blocks, w.together)
    else:
        tile = gl.program_id(0) + turn * gl.num_programs(0)
        bhk, block = tile // blocks, tile % blocks
    return bhk, block * w.KEYS


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
def _following(w, j, bh, first, last):
    """The block after block j of query head bh, and after the last of them the first of the next head of the group."""
    j += 1
    if w.GROUP > 1:
        through = (j == last).to(gl.int32)
        j -= through * (last - first)
        bh += through
    return j, bh


@gluon.jit
def _turns(w):
    """How many tiles this program has."""
    if w.BUFFERS > 1:
        return gl.cdiv(w.together - gl.program_id(0), gl.num_programs(0))
    else:
        return 1


@gluon.jit
def _load(w):
    at = w.NQ * 0
    for turn in range(0, _turns(w)):
        at = _load_tile(w, turn, at)


@gluon.jit
def _load_tile(w, turn, begun):
    """A tile's keys and values, and its blocks, the first of which comes as number `begun` of this program."""
    bhk, n0 = _tile_of(w, turn)
    first, last = _query_blocks(w, n0)
    b, hk = bhk // w.HK, bhk % w.HK
    rows: gl.constexpr = w.k_desc.block_type.shape[2]
    parts: gl.constexpr = w.KEYS // rows
    buffer = turn % w.BUFFERS
    if w.BUFFERS > 1:
        mbarrier.wait(w.kv_free.index(buffer), ((turn // w.BUFFERS) & 1) ^ 1)
    mbarrier.expect(w.k_full.index(buffer), parts * w.k_desc.block_type.nbytes)
    for c in gl.static_range(parts):
        tma_load(w.k_desc, [b, hk, n0 + c * rows, 0], w.k_full.index(buffer), w.k.index(buffer * parts + c))
    j, bh = first, bhk * w.GROUP
    n = w.GROUP * (last - first)
    if n == 0:
        await_kernel_before()
    for it in range(begun, begun + n):
        s = it % w.STAGES
        mbarrier.wait(w.free.index(s), ((it // w.STAGES) & 1) ^ 1)
        mbarrier.expect(w.q_full.index(s), w.q_desc.block_type.nbytes + w.term_desc.block_type.nbytes)
        tma_load(w.q_desc, [b, bh - b * w.HK * w.GROUP, j * w.BM, 0], w.q_full.index(s), w.q.index(s))
        if it == begun:
            mbarrier.expect(w.v_full.index(buffer), parts * w.v_desc.block_type.nbytes)
            for c in gl.static_range(parts):
                tma_load(w.v_desc, [b, hk, n0 + c * rows, 0], w.v_full.index(buffer), w.v.index(buffer * parts + c))
            await_kernel_before()  # the statistics, and an empty workspace
            release_kernel_after()
        tma_load(w.term_desc, [0, bh * w.NQP + j * w.BM, 0], w.q_full.index(s), w.terms.index(s))
        mbarrier.expect(w.do_full.index(s), w.do_desc.block_type.nbytes)
        tma_load(w.do_desc, [b, bh - b * w.HK * w.GROUP, j * w.BM, 0], w.do_full.index(s), w.do.index(s))
        j, bh = _following(w, j, bh, first, last)
    return begun + n


@gluon.jit
def _own(C: gl.constexpr, w, tile, it, buffer):
    """The 64 rows of K or V that are this consumer's, in the step that comes as number `it`.

    it >> 30 is 0, which the compiler cannot know: it would keep 16 registers of addresses over the loop."""
    if w.k_desc.block_type.shape[2] == 64:
        return tile.index(buffer * (w.KEYS // 64) + C + (it >> 30)).reshape([64, w.D])
    else:
        return tile.index(it >> 30).reshape([w.KEYS, w.D]).slice(C * 64, 64)


@gluon.jit
def _statistic(WHICH: gl.constexpr, w, s, layout: gl.constexpr):
    """Start -LSE / scale (WHICH 0) or -Delta (1) of each query of stage s, the accumulator of a product by queries."""
    terms = w.terms.index(s).reshape([2 * w.BM, 16]).slice(WHICH * w.BM, w.BM).permute((1, 0))
    return warpgroup_mma(w.ones, terms, gl.zeros([64, w.BM], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def _scores(C: gl.constexpr, w, it, buffer, layout: gl.constexpr):
    """Start S' = K Q' - LSE / scale of the block that comes as number `it`: two products."""
    s = it % w.STAGES
    q = w.q.index(s).reshape([w.BM, w.D]).permute((1, 0))
    return warpgroup_mma(_own(C, w, w.k, it, buffer), q, _statistic(0, w, s, layout), is_async=True)


@gluon.jit
def _weight_gradients(C: gl.constexpr, w, it, buffer, layout: gl.constexpr):
    """Start dP' = V dO' - Delta: two products."""
    s = it % w.STAGES
    do = w.do.index(s).reshape([w.BM, w.D]).permute((1, 0))
    return warpgroup_mma(_own(C, w, w.v, it, buffer), do, _statistic(1, w, s, layout), is_async=True)


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
def _by_register(x):
    """(64, 64) of a product as (8, 128, 4): four registers of each of 128 threads, eight times. So a thread writes 16
    bytes beside its neighbour's; as (64, 64) it would write 8, two threads at a time to the same banks."""
    x = gl.reshape(x, [4, 2, 8, 8, 4, 2])  # rows: warp, half, lane / 4; columns: group, lane % 4, of two
    return gl.reshape(gl.permute(x, (3, 0, 2, 4, 1, 5)), [8, 128, 4])


@gluon.jit
def _add_dq(C: gl.constexpr, w, dq, bh, j):
    """Add this consumer's half of a block to the workspace."""
    tma_store_wait(0)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    reinterpret(w.dq, gl.float32, [2, 8, 128, 4], plain).index(C).store(_by_register(dq))
    fence_async_shared()
    tma_reduce_add(w.dq_desc, [(bh * w.NQP + j * w.BM) * (w.D // 32) + C * 128, 0], w.dq.index(C))


@gluon.jit
def store_tile(desc, at, x, tile):
    """Start to write 64 rows to a tensor, clipped at its end, in its type, through shared memory: straight from the
    registers of a product it would be 64 writes of 4 bytes a thread at head size 128."""
    tile.store(x.to(desc.dtype).reshape(tile.shape))
    fence_async_shared()
    tma_store(desc, at, tile)


@gluon.jit
def _plain_step(C: gl.constexpr, w, it, buffer, j, n0, until, since, dk, dv, layout: gl.constexpr,
                p_layout: gl.constexpr):
    """One block of queries without dQ."""
    s = it % w.STAGES
    phase = (it // w.STAGES) & 1
    q = w.q.index(s).reshape([w.BM, w.D])
    do = w.do.index(s).reshape([w.BM, w.D])
    mbarrier.wait(w.q_full.index(s), phase)
    x_t = _scores(C, w, it, buffer, layout)
    mbarrier.wait(w.do_full.index(s), phase)
    dp_t = _weight_gradients(C, w, it, buffer, layout)
    x = _weights(C, w, warpgroup_mma_wait(2, deps=(x_t, )), n0, j, until, since, layout)
    dv_t = warpgroup_mma(gl.convert_layout(x.to(q.dtype), p_layout), do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp_t, ))
    dk_t = warpgroup_mma(gl.convert_layout((x * dp).to(q.dtype), p_layout), q, dk, is_async=True)
    dk, dv = warpgroup_mma_wait(0, deps=(dk_t, dv_t))
    mbarrier.arrive(w.free.index(s), count=1)
    return dk, dv


@gluon.jit
def _step(C: gl.constexpr, w, it, j, bh, jn, more, n0, until, since, x, dk, dv, layout: gl.constexpr,
          p_layout: gl.constexpr):
    """One block of queries with dQ, whose P is x, made in the step before; the next P is made under dQ. The consumers
    may be almost a block apart."""
    s = it % w.STAGES
    sn = (it + 1) % w.STAGES
    next_phase = ((it + 1) // w.STAGES) & 1
    b = it & 1
    q = w.q.index(s).reshape([w.BM, w.D])
    do = w.do.index(s).reshape([w.BM, w.D])
    dp_t = _weight_gradients(C, w, it, 0, layout)
    dv_t = warpgroup_mma(gl.convert_layout(x.to(q.dtype), p_layout), do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp_t, ))
    ds = (x * dp).to(q.dtype)
    w.ds.index(b).slice(C * 64, 64).store(ds)
    fence_async_shared()
    arrive(10 + 2 * b + 1 - C)  # two barriers a consumer: it may arrive again before the other has waited
    dk_t = warpgroup_mma(gl.convert_layout(ds, p_layout), q, dk, is_async=True)
    mbarrier.wait(w.q_full.index(sn), next_phase, pred=more)
    x_t = _scores(C, w, it + 1, 0, layout)  # after the last block: of stale memory, unused
    dk, dv = warpgroup_mma_wait(2, deps=(dk_t, dv_t))
    mbarrier.arrive(w.free.index(s), count=1)
    sync(10 + 2 * b + C)
    dq_t = _dq(C, w, b)
    x = _weights(C, w, warpgroup_mma_wait(1, deps=(x_t, )), n0, jn, until, since, layout)
    mbarrier.wait(w.do_full.index(sn), next_phase, pred=more)
    dq = warpgroup_mma_wait(0, deps=(dq_t, ))
    _add_dq(C, w, dq, bh, j)
    return x, dk, dv


@gluon.jit
def _work(C: gl.constexpr, w):
    at = w.NQ * 0
    for turn in range(0, _turns(w)):
        at = _work_tile(C, w, turn, at)


@gluon.jit
def _work_tile(C: gl.constexpr, w, turn, begun):
    """This consumer's 64 keys of a tile, whose first block comes as number `begun` of this program."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.BM, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    bhk, n0 = _tile_of(w, turn)
    first, last = _query_blocks(w, n0)
    buffer = turn % w.BUFFERS
    phase = turn // w.BUFFERS & 1
    until, since = w.NQ * 0, w.NQ
    if w.RIGHT:
        until = gl.cdiv(gl.maximum(n0 + w.KEYS - 1 - w.highest, 0), w.BM)
    if w.LEFT:
        since = gl.maximum(n0 - w.lowest + 1, 0) // w.BM
    if w.TAIL:
        until += (n0 + w.KEYS > w.NK).to(gl.int32) * w.NQ
    dk = gl.zeros([64, w.D], gl.float32, o_layout)
    dv = gl.zeros([64, w.D], gl.float32, o_layout)
    mbarrier.wait(w.k_full.index(buffer), phase)
    n = w.GROUP * (last - first)
    j, bh = first, bhk * w.GROUP
    if w.DQ:
        mbarrier.wait(w.q_full.index(0), 0, pred=n > 0)
        x_t = _scores(C, w, n0 * 0, 0, layout)
        mbarrier.wait(w.v_full.index(0), 0, pred=n > 0)
        mbarrier.wait(w.do_full.index(0), 0, pred=n > 0)
        x = _weights(C, w, warpgroup_mma_wait(0, deps=(x_t, )), n0, j, until, since, layout)
        for it in range(0, n):
            jn, bhn = _following(w, j, bh, first, last)
            x, dk, dv = _step(C, w, it, j, bh, jn, it + 1 < n, n0, until, since, x, dk, dv, layout, p_layout)
            j, bh = jn, bhn
    else:
        mbarrier.wait(w.v_full.index(buffer), phase, pred=n > 0)
        for it in range(begun, begun + n):
            dk, dv = _plain_step(C, w, it, buffer, j, n0, until, since, dk, dv, layout, p_layout)
            j, bh = _following(w, j, bh, first, last)
    # Where the tiles go: V is read no more by either consumer, nor is what held this consumer's dQ, or else its K.
    at = [bhk // w.HK, bhk % w.HK, n0 + C * 64, 0]
    one: gl.constexpr = w.dk_desc.block_type.shape
    own = buffer * (w.KEYS // 64) + C
    free_v = reinterpret(w.v, w.v_desc.dtype, copies(w.BUFFERS * w.KEYS // 64, one), w.dv_desc.layout)
    store_tile(w.dv_desc, at, dv, free_v.index(own))
    if w.DQ:
        tma_store_wait(1)
        half: gl.constexpr = 128 // w.D
        tiles = reinterpret(w.dq, w.k_desc.dtype, copies(2 * half, one), w.dk_desc.layout)
        store_tile(w.dk_desc, at, dk * w.scale, tiles.index(C * half))
    else:
        tiles = reinterpret(w.k, w.k_desc.dtype, copies(w.BUFFERS * w.KEYS // 64, one), w.dk_desc.layout)
        store_tile(w.dk_desc, at, dk * w.scale, tiles.index(own))
    tma_store_wait(0)
    if w.BUFFERS > 1:
        partition_barrier()
        mbarrier.arrive(w.kv_free.index(buffer), count=1)
    return begun + n


@gluon.jit
def _first_consumer(w):
    _work(0, w)


@gluon.jit
def _second_consumer(w):
    _work(1, w)


@gluon.jit
def _third_consumer(w):
    _work(2, w)


@gluon.jit(do_not_specialize=["HK", "NQ", "NK", "NQP", "lowest", "highest", "together"])
def key_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, term_desc, HK, NQ, NK, NQP, scale, qk_scale,
               lowest, highest, together, HEAD: gl.constexpr, BM: gl.constexpr, KEYS: gl.constexpr,
               STAGES: gl.constexpr, GROUP: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, TAIL: gl.constexpr,
               DQ: gl.constexpr, BUFFERS: gl.constexpr):
    """dK and dV (B, Hk, Nk, HEAD), summed over the query heads of a group, and with DQ dQ added to the workspace that
    `finish` reads. term_desc: the terms of `prepare`. Query i sees key j where i + lowest <= j <= i + highest.

    One program a tile of KEYS keys, 64 a consumer: 128, or without dQ also 192; under a mask the tiles of `together`
    heads take turns. TAIL: whether KEYS does not divide NK.
    The descriptors of dK and dV have blocks of 64 rows, those of K and V of 128 with DQ, which takes BM D = 8192, of 64
    without. BUFFERS 2, without a mask and without dQ: `together` is the number of tiles, a
    program goes on to those after its first, and their keys are loaded under the one before."""
    D: gl.constexpr = k_desc.block_type.shape[3]
    q = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, q_desc.block_type.shape), q_desc.layout)
    do = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, do_desc.block_type.shape), do_desc.layout)
    parts: gl.constexpr = KEYS // k_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(q_desc.dtype, copies(BUFFERS * parts, k_desc.block_type.shape), k_desc.layout)
    v = gl.allocate_shared_memory(q_desc.dtype, copies(BUFFERS * parts, v_desc.block_type.shape), v_desc.layout)
    terms = gl.allocate_shared_memory(gl.bfloat16, copies(STAGES, term_desc.block_type.shape), term_desc.layout)
    flat: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 16], gl.bfloat16)
    ones = gl.allocate_shared_memory(gl.bfloat16, [64, 16], flat)
    ones.store(gl.full([64, 16], 1.0, gl.bfloat16, gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])))
    fence_async_shared()
    if DQ:
        ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BM], q_desc.dtype)
        ds = gl.allocate_shared_memory(q_desc.dtype, [2, KEYS, BM], ds_layout)
        dq = gl.allocate_shared_memory(gl.float32, copies(2, dq_desc.block_type.shape), dq_desc.layout)
    else:
        ds, dq = ones, ones
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    k_full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], bar)
    kv_free = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], bar)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    for i in gl.static_range(BUFFERS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(kv_free.index(i), count=KEYS // 64)
    for i in gl.static_range(STAGES):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
        mbarrier.init(free.index(i), count=KEYS // 64)
    w = KeyWork(D, HEAD, BM, KEYS, STAGES, GROUP, LEFT, RIGHT, TAIL, DQ, BUFFERS,
                (q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, term_desc),
                (HK, NQ, NK, NQP, scale, qk_scale, lowest, highest, together),
                (q, do, k, v, terms, ones, ds, dq), (k_full, v_full, kv_free, q_full, do_full, free))
    if KEYS == 128:
        gl.warp_specialize([(_load, (w, )), (_first_consumer, (w, )), (_second_consumer, (w, ))], [4, 4], [240, 240])
    else:
        gl.warp_specialize([(_load, (w, )), (_first_consumer, (w, )), (_second_consumer, (w, )),
                            (_third_consumer, (w, ))], [4, 4, 4], [160, 160, 160])
