"""What the Hopper backward does beside its products: sums in global memory, and the kernels before and after.

`prepare` makes the statistics of each query and empties the float32 workspace of dQ, `finish` turns the workspace into
dQ. The device functions wait and count by PTX.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.gluon_names import gl, gluon


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
@triton.jit
def _store_terms(TERMS, x, at):
    """Each x as a row of three bfloat16 terms, whose sum is x in all 24 bits of float32, and 13 zeros."""
    high = x.to(tl.bfloat16)
    infinite = tl.abs(high.to(tl.float32)) == float("inf")
    rest = tl.where(infinite, 0.0, x) - tl.where(infinite, 0.0, high.to(tl.float32))
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    c = tl.arange(0, 16)[None, :]
    row = tl.where(c == 0, high[:, None], tl.where(c == 1, middle[:, None], tl.where(c == 2, low[:, None], 0.0)))
    tl.store(TERMS + at[:, None] * 16 + c, row)


@triton.jit(do_not_specialize=["H", "NQ", "NQP"])
def prepare(OUT, DO, LSE, DLSE, TERMS, DQ_SUM, ob, oh, on, db, dh, dn, H, NQ, NQP,
            stat_scale, HEAD: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HAS_DLSE: tl.constexpr,
            ZERO: tl.constexpr):
    """Per query LSE times stat_scale and dLSE - rowsum(dO * O), as TERMS (2, B H NQP, 16); DQ_SUM = 0 if ZERO.

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
    _store_terms(TERMS, tl.where(dead, float("-inf"), lse * stat_scale), at)
    _store_terms(TERMS, tl.where(dead, 0.0, delta), at + tl.num_programs(0).to(tl.int64) * ROWS)
    if ZERO:
        tl.store(DQ_SUM + at[:, None] * D + c[None, :], tl.zeros([ROWS, D], tl.float32))


@triton.jit(do_not_specialize=["NQ", "NQP"])
def finish(DQ_SUM, DQ, NQ, NQP, scale, HEAD: tl.constexpr, D: tl.constexpr, EARLY: tl.constexpr = False):
    """DQ (B, H, NQ, HEAD) = scale times DQ_SUM, products of 64 by 64 as the registers of 128 threads held them; at D
    128 two are the halves of a row. EARLY: launched before the sums are done."""
    if EARLY:
        gdc_wait()
    blocks = NQP // 64
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # the last heads first: their sums are in the L2
    bh = (program // blocks).to(tl.int64)
    row = program % blocks * 64
    r = tl.arange(0, 64)[:, None]
    c = tl.arange(0, D)[None, :]
    thread = r // 16 * 32 + r % 8 * 4 + c % 8 // 2
    place = (c // 8 * 128 + thread) * 4 + r // 8 % 2 * 2 + c % 2  # of eight columns, thread, value
    # the copy takes shared memory for rows of 128 bytes whose pieces of 16 are swapped by the number of the row
    x = tl.load(DQ_SUM + (bh * NQP + row) * D + (place ^ thread // 8 % 8 * 4))
    ok = (row + r < NQ) & (c < HEAD)
    tl.store(DQ + (bh * NQ + row + r) * HEAD + c, (x * scale).to(DQ.dtype.element_ty), mask=ok)
