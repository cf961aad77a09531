"""What lies between S = scale Q K' and the softmax, on one block, for the forward and the backward: Triton.

In this order: softcap, ALiBi and bias, key padding; dropout acts on P. Scores are in base 2, that is times log2(e).
`kernels.options.extras` fills the Extras that these functions read; a field that is None is off and costs nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

LOG2_E = tl.constexpr(math.log2(math.e))


class Extras(NamedTuple):
    """What a kernel needs of the options that are on. Pointers, strides in elements, numbers.

    cap_log2: softcap · log2(e), per_cap: ln(2) / softcap; threshold: of 2^31, the share that is dropped.
    """

    cap_log2: Any = None
    per_cap: Any = None
    slopes: Any = None
    slopes_b: Any = None
    bias: Any = None
    bias_b: Any = None
    bias_h: Any = None
    bias_m: Any = None
    bias_n: Any = None
    padding: Any = None
    seed: Any = None
    threshold: Any = None
    keep_scale: Any = None
    sinks: Any = None


@triton.jit
def tanh(y):
    """To a few units in the last place: near 0 the quotient would lose what 1 - 2 / (1 + exp(2y)) cancels."""
    square = y * y
    near = y + y * square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
    far = 1.0 - 2.0 / (1.0 + tl.exp2(y * (2.0 * LOG2_E)))  # an overflow to inf gives the limit
    return tl.where(tl.abs(y) < 0.3, near, far)


@triton.jit
def changed(s, rows, columns, batch, head, nq, nk, extras):
    """Scores s of queries `rows` and keys `columns`, two shapes that broadcast to that of s -> (scores, tanh of the
    softcap, for its derivative 1 - tanh²). Hidden keys get -inf."""
    t = s
    if extras.cap_log2 is not None:
        t = tanh(s * extras.per_cap)
        s = t * extras.cap_log2
    if extras.slopes is not None:
        slope = tl.load(extras.slopes + batch.to(tl.int64) * extras.slopes_b + head)
        s -= slope * LOG2_E * tl.abs(rows + (nk - nq) - columns).to(tl.float32)
    if extras.bias is not None:
        corner = extras.bias + batch.to(tl.int64) * extras.bias_b + head.to(tl.int64) * extras.bias_h
        places = rows.to(tl.int64) * extras.bias_m + columns.to(tl.int64) * extras.bias_n
        bias = tl.load(corner + places, mask=(rows < nq) & (columns < nk), other=0.0)
        s += bias.to(tl.float32) * LOG2_E
    if extras.padding is not None:
        s = tl.where(seen(columns, batch, nk, extras), s, float("-inf"))
    return s, t


@triton.jit
def seen(columns, batch, nk, extras):
    """Which keys the padding mask leaves."""
    return tl.load(extras.padding + batch.to(tl.int64) * nk + columns, mask=columns < nk, other=0) != 0


@triton.jit
def kept(first_row, first_column, batch, head, extras, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements of P (ROWS, COLUMNS) dropout keeps: Philox 4x32-10 of (column // 4, row, head, batch), keyed by
    the seed; its four numbers are those of four neighbouring columns. Blocks start at multiples of 4."""
    zero = tl.zeros([ROWS, COLUMNS // 4], tl.int32)
    quads = zero + (first_column // 4 + tl.arange(0, COLUMNS // 4))[None, :]
    rows = zero + (first_row + tl.arange(0, ROWS))[:, None]
    a, b, c, d = tl.philox(tl.load(extras.seed), quads, rows, zero + head, zero + batch)
    pairs = tl.join(_low(a, extras.threshold), _low(c, extras.threshold)), tl.join(_low(b, extras.threshold),
                                                                                   _low(d, extras.threshold))
    return tl.join(pairs[0], pairs[1]).reshape(ROWS, COLUMNS) != 0  # last axes (c or a, d or b): a, b, c, d


@triton.jit
def _low(word, threshold):
    """1 where a random word is kept, as bytes: what moves between threads is small."""
    return ((word >> 1).to(tl.int32, bitcast=True) >= threshold).to(tl.int8)
