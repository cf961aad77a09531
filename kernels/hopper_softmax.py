"""The softmax of the Hopper forward, on a warpgroup's registers; device functions of kernels.hopper.

m, sums and alpha of a row are (64, 8): its part in each of four lanes, so that nothing is exchanged in the loop.
"""

from __future__ import annotations

from kernels.gluon_names import constexpr_function, gl, gluon

INFINITY = gl.constexpr(float("inf"))


@gluon.jit
def _masked(s, column, row, nk, lowest, highest, P: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr,
            LEFT_ONLY: gl.constexpr):
    """Scores with the hidden ones at -inf. LEFT_ONLY: the block ends before the right side and the last key."""
    c = gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
    r = row - column + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    lane = (c & 6)[None, :]  # so written, each element compares one of two registers with a constant
    place = c[None, :] - lane
    if not LEFT_ONLY:
        if P.causal:
            last = r + highest
            if P.edge:
                last = gl.minimum(last, nk - 1 - column)
            s = gl.where(last[:, None] - lane >= place, s, -INFINITY)
        else:
            s = gl.where(nk - 1 - column - lane >= place, s, -INFINITY)
    if P.left:
        s = gl.where((r + lowest)[:, None] - lane <= place, s, -INFINITY)
    return s


@gluon.jit
def _lanes(s, N: gl.constexpr):
    """(64, N) as (64, N / 8, 8): the middle axis lies inside a thread."""
    return gl.reshape(s, [64, N // 8, 8])


@gluon.jit
def _row_maximum(s, scale_log2, like):
    """A row's maximum in each of its lanes, (64, 8)."""
    m = gl.max(s, 1) * scale_log2
    return gl.convert_layout(m, gl.SliceLayout(1, like.type.layout))[:, None] + gl.zeros_like(like)


@constexpr_function
def _raise_code(largest):
    """PTX for a thread's four sums, $0 to $3 (two rows, two columns), and m, $4 to $7; alpha is $8 to $11.

    Where a row's sum has passed 2^8, m rises by k, the whole number with 2^k <= sum, and alpha = 2^-k: exact. In a warp
    without such a row alpha is 1. A sum beyond `largest` becomes infinite: P, none of which is larger than the sums
    with it, may have overflowed where it was rounded, so _repair does the row again.
    """
    ones = " ".join(f"mov.f32 ${8 + i}, 0f3F800000;" for i in range(4))
    code = (f"{{ .reg .pred over, any, lost; .reg .f32 a, b, f, k; {ones} max.f32 a, $0, $1; max.f32 b, $2, $3; "
            "max.f32 f, a, b; setp.gt.f32 over, f, 0f43800000; vote.sync.any.pred any, over, 0xffffffff; "
            "@!any bra DONE; ")
    for row, most in ((0, "a"), (2, "b")):
        for lane in (1, 2):
            code += f"shfl.sync.bfly.b32 f, {most}, {lane}, 31, 0xffffffff; max.f32 {most}, {most}, f; "
        code += (f"lg2.approx.f32 k, {most}; cvt.rmi.f32.f32 k, k; max.f32 k, k, 0f00000000; neg.f32 f, k; "
                 f"ex2.approx.f32 f, f; setp.gt.f32 lost, {most}, {largest}; ")
        for i in (row, row + 1):
            code += (f"mov.f32 ${8 + i}, f; add.f32 ${4 + i}, ${4 + i}, k; mul.f32 ${i}, ${i}, f; "
                     f"selp.f32 ${i}, 0f7F800000, ${i}, lost; ")
    return code + "DONE: }"


@gluon.jit
def _raise(sums, m, P: gl.constexpr):
    """l and m with m raised where it has fallen far behind, and alpha, by which the output must follow."""
    CONSTRAINTS: gl.constexpr = "=f,=f,=f,=f,=f,=f,=f,=f,=&f,=&f,=&f,=&f,0,1,2,3,4,5,6,7"
    return gl.inline_asm_elementwise(_raise_code(P.largest), CONSTRAINTS, [sums, m],
                                     dtype=(gl.float32, gl.float32, gl.float32), is_pure=False, pack=4)


@constexpr_function
def _rescale_code(n):
    """PTX that multiplies a thread's n accumulators, of two rows, by alpha unless that is 1 in the whole warp."""
    code = (f"{{ .reg .pred q, r; setp.ne.f32 q, ${2 * n}, 0f3F800000; setp.ne.or.f32 q, ${2 * n + 2}, 0f3F800000, q; "
            "vote.sync.any.pred r, q, 0xffffffff; @!r bra DONE; ")
    return code + " ".join(f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n)) + " DONE: }"


@constexpr_function
def _rescale_constraints(n):
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


@gluon.jit
def _rescale(acc, alpha, D: gl.constexpr):
    """acc (64, D) times alpha (64, 8)."""
    N: gl.constexpr = 64 if D > 128 else D // 2
    parts = _lanes(acc, D)
    alpha = gl.convert_layout(alpha, gl.SliceLayout(1, parts.type.layout))
    parts, factor = gl.broadcast(parts, gl.expand_dims(alpha, 1))
    parts = gl.inline_asm_elementwise(_rescale_code(N), _rescale_constraints(N), [parts, factor], dtype=gl.float32,
                                      is_pure=False, pack=N)
    return gl.convert_layout(gl.reshape(parts, [64, D]), acc.type.layout)


@gluon.jit
def _weights(s, m, sums, scale_log2, N: gl.constexpr, FIXED: gl.constexpr, MASKED: gl.constexpr):
    """P (64, N) of scores, with the m and sums after them, and alpha (1 with FIXED: m stays as it is)."""
    alpha = 1.0
    if FIXED:
        used = m
    else:
        before = m
        high = _row_maximum(s, scale_log2, m)
        m = gl.where(high > m + 8.0, high, m)  # P may reach 2^8: then alpha is 1 nearly always
        used = m
        if MASKED:  # a row that has seen no key yet: -inf - (-inf) is NaN
            used = gl.where(m == -INFINITY, 0.0, m)
        alpha = gl.exp2(before - used)
        sums = sums * alpha
    p = gl.exp2(_lanes(s, N) * scale_log2 - gl.expand_dims(used, 1))
    return gl.reshape(p, [64, N]), m, sums + gl.sum(p, 1), alpha
