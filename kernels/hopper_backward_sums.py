"""What the Hopper backward does beside its products: sums in global memory, and the kernels before and after.

`prepare` makes the statistics of each query and empties the float32 workspace of dQ, `finish` turns the workspace into
dQ. The device functions are PTX for a partition of 128 threads of kernels.hopper_backward.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.gluon_names import constexpr_function, gl, gluon

ATOMIC, REDUCE = gl.constexpr(1), gl.constexpr(2)  # dQ leaves by red.global.add.v4 from registers, or by TMA reduction


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
def red(x, ptr, n: gl.constexpr):
    """Add x, n values a thread, to the 128 n values at ptr, in the order of the registers: `finish` puts it right."""
    x, at = gl.broadcast(x, gl.full([1, 1], 0, gl.int64, x.type.layout) + ptr.to(gl.int64, bitcast=True))
    gl.inline_asm_elementwise(_red_code(n), _red_operands(n), [x, at], dtype=gl.int32, is_pure=False, pack=n)


@gluon.jit
def arrive(number):
    """Count this consumer's 128 threads, of 256, at named barrier `number`, which a register holds."""
    gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r,~{memory}", [gl.to_tensor(number)],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def sync(number):
    """The other side of `arrive`: wait for the 128 threads of the other consumer."""
    gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r,~{memory}", [gl.to_tensor(number)],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def await_kernel_before():
    """Until the kernel before this one is done and what it wrote is seen; kernels here are launched without waiting."""
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.b32 $0, 0;", "=r,~{memory}", [], dtype=gl.int32, is_pure=False,
                              pack=1)


@gluon.jit
def release_kernel_after():
    """The kernel after this one may start once every program of this one has come here, or has ended."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; mov.b32 $0, 0;", "=r,~{memory}", [], dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def block_of_program(blocks, together):
    """(head, block) of a program where blocks come longest first: `together` heads take turns at each block.

    A head alone would end each time with few programs at work; the last heads are a full group, the first the rest."""
    program = gl.program_id(0)
    heads = gl.num_programs(0) // blocks
    few = heads % together
    rest = program - few * blocks
    group = gl.maximum(rest, 0) // (together * blocks)
    first = gl.where(rest < 0, 0, few + group * together)
    size = gl.where(rest < 0, few, together)
    rest = gl.where(rest < 0, program, rest - group * together * blocks)
    return first + rest % size, rest // size


# ---- before and after ------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["H", "NQ", "NQP"])
def prepare(OUT, DO, LSE, DLSE, STATS, DELTA, DQ_SUM, ob, oh, on, db, dh, dn, H, NQ, NQP,
            stat_scale, HEAD: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HAS_DLSE: tl.constexpr,
            ZERO: tl.constexpr):
    """Per query STATS = LSE times stat_scale and DELTA = dLSE - rowsum(dO * O), each (B H, NQP); DQ_SUM = 0 if ZERO.

    A row without keys, and the padding, get -inf, which makes their P zero. OUT, DO: strides of batch, head, token."""
    blocks = NQP // ROWS
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # the first heads last: their sums start in the L2
    bh = program // blocks
    rows = program % blocks * ROWS + tl.arange(0, ROWS)
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
           ATOMIC_ORDER: tl.constexpr, EARLY: tl.constexpr = False):
    """DQ (B, H, NQ, HEAD) = scale times DQ_SUM. ATOMIC_ORDER: each half of a block of BM queries (half of its columns,
    or at BM 128 of its queries) lies in the order of a consumer's registers: groups of 8 columns, thread, 4 values.
    EARLY: launched before the kernel that sums is done."""
    if EARLY:
        gdc_wait()
    blocks = NQP // 64
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # the last heads first: their sums are in the L2
    bh = (program // blocks).to(tl.int64)
    row = program % blocks * 64
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
