"""dQ of the deterministic Hopper backward (sm_90) in Gluon, after FlashAttention-2 and 3: a program a block of queries.

A producer streams blocks of keys and values through a ring; two or three consumer warpgroups of 64 queries each hold dQ
in registers, S = Q K' and dP = dO V', and dS is a register operand of dQ += dS K. kernels.hopper_backward has the other
gradients and the statistics.
"""

from triton.experimental.gluon.language.nvidia.hopper.tma import tensor_descriptor
from triton.language.core import _aggregate as aggregate

from kernels.gluon_names import (
    constexpr_function,
    gl,
    gluon,
    mbarrier,
    tma_load,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from kernels.hopper_backward import copies, store_tile
from kernels.hopper_backward_sums import await_kernel_before, block_of_program


@aggregate
class QueryWork:
    """Everything that the partitions of query_kernel share. D: padded head size; BN: keys a block."""

    D: gl.constexpr
    HEAD: gl.constexpr
    BN: gl.constexpr
    QUERIES: gl.constexpr
    STAGES: gl.constexpr
    GROUP: gl.constexpr
    LEFT: gl.constexpr
    RIGHT: gl.constexpr
    TAIL: gl.constexpr
    q_desc: tensor_descriptor
    k_desc: tensor_descriptor
    v_desc: tensor_descriptor
    do_desc: tensor_descriptor
    dq_desc: tensor_descriptor
    TERMS: gl.tensor
    H: gl.tensor
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
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor

    @constexpr_function
    def __init__(self, D, HEAD, BN, QUERIES, STAGES, GROUP, LEFT, RIGHT, TAIL, descriptors, terms, numbers, tiles,
                 barriers):
        self.D, self.HEAD, self.BN = gl.constexpr(D), gl.constexpr(HEAD), gl.constexpr(BN)
        self.QUERIES, self.STAGES, self.GROUP = gl.constexpr(QUERIES), gl.constexpr(STAGES), gl.constexpr(GROUP)
        self.LEFT, self.RIGHT, self.TAIL = gl.constexpr(LEFT), gl.constexpr(RIGHT), gl.constexpr(TAIL)
        self.q_desc, self.k_desc, self.v_desc, self.do_desc, self.dq_desc = descriptors
        self.TERMS = terms
        (self.H, self.NQ, self.NK, self.NQP, self.scale, self.qk_scale, self.lowest, self.highest,
         self.together) = numbers
        self.q, self.do, self.k, self.v = tiles
        self.q_full, self.do_full, self.k_full, self.v_full, self.free = barriers


@gluon.jit
def _query_tile(w):
    """(query head counted over the batch, first query, [first, last) blocks of keys); the last queries come first,
    since under a causal mask they see most."""
    blocks = gl.cdiv(w.NQ, w.QUERIES)
    if w.LEFT or w.RIGHT:
        bh, block = block_of_program(blocks, w.together)
    else:
        bh, block = gl.program_id(0) // blocks, gl.program_id(0) % blocks
    bh = gl.num_programs(0) // blocks - 1 - bh  # the last heads first: the kernel before ends with them
    m0 = (blocks - 1 - block) * w.QUERIES
    first = w.NK * 0
    last = gl.cdiv(w.NK, w.BN)
    if w.RIGHT:
        last = gl.minimum(last, gl.cdiv(gl.maximum(m0 + w.QUERIES + w.highest, 0), w.BN))
    if w.LEFT:
        first = gl.minimum(gl.maximum(m0 + w.lowest, 0) // w.BN, last)
    return bh, m0, first, last


@gluon.jit
def _load_keys(w):
    bh, m0, first, last = _query_tile(w)
    b, h = bh // w.H, bh % w.H
    for c in gl.static_range(w.QUERIES // 64):
        mbarrier.expect(w.q_full.index(c), w.q_desc.block_type.nbytes)
        tma_load(w.q_desc, [b, h, m0 + c * 64, 0], w.q_full.index(c), w.q.index(c))
    for i in range(0, last - first):
        s = i % w.STAGES
        row = (last - 1 - i) * w.BN
        mbarrier.wait(w.free.index(s), ((i // w.STAGES) & 1) ^ 1)
        mbarrier.expect(w.k_full.index(s), w.k_desc.block_type.nbytes)
        tma_load(w.k_desc, [b, h // w.GROUP, row, 0], w.k_full.index(s), w.k.index(s))
        if i == 0:
            for c in gl.static_range(w.QUERIES // 64):
                mbarrier.expect(w.do_full.index(c), w.do_desc.block_type.nbytes)
                tma_load(w.do_desc, [b, h, m0 + c * 64, 0], w.do_full.index(c), w.do.index(c))
        mbarrier.expect(w.v_full.index(s), w.v_desc.block_type.nbytes)
        tma_load(w.v_desc, [b, h // w.GROUP, row, 0], w.v_full.index(s), w.v.index(s))


@gluon.jit
def _query_step(w, q, do, i, n0, row, lse, delta, dq, layout: gl.constexpr, p_layout: gl.constexpr):
    s = i % w.STAGES
    phase = (i // w.STAGES) & 1
    k = w.k.index(s).reshape([w.BN, w.D])
    v = w.v.index(s).reshape([w.BN, w.D])
    zero = gl.zeros([64, w.BN], gl.float32, layout)
    mbarrier.wait(w.k_full.index(s), phase)
    s_t = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(w.v_full.index(s), phase)
    dp_t = warpgroup_mma(do, v.permute((1, 0)), zero, use_acc=False, is_async=True)
    x = warpgroup_mma_wait(1, deps=(s_t, ))
    p = gl.exp2(x * w.qk_scale + lse[:, None])
    if w.LEFT or w.RIGHT or w.TAIL:
        masked = n0 + w.BN > w.NK
        if w.RIGHT:
            masked = masked | (n0 + w.BN - 1 > row + w.highest)
        if w.LEFT:
            masked = masked | (n0 < row + 63 + w.lowest)
        if masked:
            # so written, each element compares one of two registers with a constant
            c = gl.arange(0, w.BN, layout=gl.SliceLayout(0, layout))
            r = row - n0 + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
            if w.RIGHT:
                p = gl.where((r + w.highest)[:, None] - (c & 6)[None, :] >= (c - (c & 6))[None, :], p, 0.0)
            if w.LEFT:
                p = gl.where((r + w.lowest)[:, None] - (c & 6)[None, :] <= (c - (c & 6))[None, :], p, 0.0)
            if w.TAIL:
                p = gl.where((w.NK - n0 - (c & 6) > c - (c & 6))[None, :], p, 0.0)
    dp = warpgroup_mma_wait(0, deps=(dp_t, ))
    ds = gl.convert_layout((p * (dp + delta[:, None])).to(q.dtype), p_layout)
    dq_t = warpgroup_mma(ds, k, dq, is_async=True)
    dq = warpgroup_mma_wait(0, deps=(dq_t, ))
    mbarrier.arrive(w.free.index(s), count=1)
    return dq


@gluon.jit
def _sum_of_terms(at, inside):
    """A statistic from what `prepare` split it into; exact."""
    high, middle = gl.load(at, mask=inside, other=0.0), gl.load(at + 1, mask=inside, other=0.0)
    return high.to(gl.float32) + middle.to(gl.float32) + gl.load(at + 2, mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def _work_queries(C: gl.constexpr, w):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.BN, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    bh, m0, first, last = _query_tile(w)
    row = m0 + C * 64
    at = bh.to(gl.int64) * w.NQP + row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    lse = _sum_of_terms(w.TERMS + at * 16, row < w.NQP) * w.qk_scale
    rows = (gl.num_programs(0) // gl.cdiv(w.NQ, w.QUERIES)).to(gl.int64) * w.NQP
    delta = _sum_of_terms(w.TERMS + (rows + at) * 16, row < w.NQP)
    dq = gl.zeros([64, w.D], gl.float32, o_layout)
    q = w.q.index(C).reshape([64, w.D])
    do = w.do.index(C).reshape([64, w.D])
    mbarrier.wait(w.q_full.index(C), 0)
    mbarrier.wait(w.do_full.index(C), 0, pred=last > first)
    for i in range(0, last - first):
        dq = _query_step(w, q, do, i, (last - 1 - i) * w.BN, row, lse, delta, dq, layout, p_layout)
    store_tile(w.dq_desc, [bh // w.H, bh % w.H, row, 0], dq * w.scale, w.q.index(C))  # Q is read no more
    tma_store_wait(0)
    if gl.program_id(0) == gl.num_programs(0) - 1:
        await_kernel_before()  # so that this kernel does not end before the one of dK and dV, beside which it starts


@gluon.jit
def _first_queries(w):
    _work_queries(0, w)


@gluon.jit
def _second_queries(w):
    _work_queries(1, w)


@gluon.jit
def _third_queries(w):
    _work_queries(2, w)


@gluon.jit(do_not_specialize=["H", "NQ", "NK", "NQP", "lowest", "highest", "together"])
def query_kernel(q_desc, k_desc, v_desc, do_desc, dq_desc, TERMS, H, NQ, NK, NQP, scale, qk_scale, lowest,
                 highest, together, HEAD: gl.constexpr, BN: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr,
                 GROUP: gl.constexpr, LEFT: gl.constexpr, RIGHT: gl.constexpr, TAIL: gl.constexpr):
    """DQ (B, H, NQ, HEAD), one program a block of QUERIES queries, 64 a consumer; arguments as key_kernel takes them.

    TAIL: whether BN does not divide NK."""
    D: gl.constexpr = k_desc.block_type.shape[3]
    q = gl.allocate_shared_memory(q_desc.dtype, copies(QUERIES // 64, q_desc.block_type.shape), q_desc.layout)
    do = gl.allocate_shared_memory(q_desc.dtype, copies(QUERIES // 64, do_desc.block_type.shape), do_desc.layout)
    k = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, k_desc.block_type.shape), k_desc.layout)
    v = gl.allocate_shared_memory(q_desc.dtype, copies(STAGES, v_desc.block_type.shape), v_desc.layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [QUERIES // 64, 1], bar)
    do_full = gl.allocate_shared_memory(gl.int64, [QUERIES // 64, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    for i in gl.static_range(QUERIES // 64):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(do_full.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(free.index(i), count=QUERIES // 64)
    w = QueryWork(D, HEAD, BN, QUERIES, STAGES, GROUP, LEFT, RIGHT, TAIL, (q_desc, k_desc, v_desc, do_desc, dq_desc),
                  TERMS, (H, NQ, NK, NQP, scale, qk_scale, lowest, highest, together),
                  (q, do, k, v), (q_full, do_full, k_full, v_full, free))
    if QUERIES == 128:
        gl.warp_specialize([(_load_keys, (w, )), (_first_queries, (w, )), (_second_queries, (w, ))], [4, 4], [240, 240])
    else:
        gl.warp_specialize([(_load_keys, (w, )), (_first_queries, (w, )), (_second_queries, (w, )),
                            (_third_queries, (w, ))], [4, 4, 4], [160, 160, 160])
