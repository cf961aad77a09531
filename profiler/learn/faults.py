"""Classic mistakes in a blocked attention kernel, each as a variant of one correct loop, and inputs that show them.

Every function takes q (R, D), k (N, D), v (N, Dv), the scale, visible (R, N) bool and the block size, and returns O
(R, Dv) in float64. Tiles past the last key read as 0, as a masked load gives. The page shows this source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


def tile(x: Array, start: int, block: int) -> Array:
    """Rows [start, start + block) of x; rows that do not exist read as 0 (False)."""
    rows = x[start:start + block]
    return np.concatenate([rows, np.zeros((block - len(rows), *x.shape[1:]), x.dtype)])


def begin(q: Array, v: Array) -> tuple[Array, Array, Array]:
    """m, l and acc before the first block."""
    return np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), v.shape[1]))


def correct(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        subtract = np.where(m_new == -np.inf, 0, m_new)
        p = np.exp(s - subtract[:, None])
        alpha = np.exp(m - subtract)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / np.where(l == 0, 1, l)[:, None]


def tail_as_zero(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale  # wrong: a key past the end has score 0, not -inf
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / l[:, None]


def scale_after_adding(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = (acc + p @ tile(v, start, block)) * alpha[:, None]  # wrong: the new block is scaled too
        m = m_new
    return acc / l[:, None]


def alpha_too_late(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        m = m_new
        p = np.exp(s - m[:, None])
        alpha = np.exp(m - m_new)  # wrong: m is already the new one, so this is always 1
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
    return acc / l[:, None]


def scale_forgotten(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T  # wrong: no scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / l[:, None]


def no_guard(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])  # wrong where m_new is still -inf: -inf - (-inf) is NaN
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / np.where(l == 0, 1, l)[:, None]


def m_from_zero(q, k, v, scale, visible, block):
    _, l, acc = begin(q, v)  # noqa: E741
    m = np.zeros(len(q))  # wrong: 0 is no score of this row
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / l[:, None]


def finite_infinity(q, k, v, scale, visible, block):
    m, l, acc = begin(q, v)  # noqa: E741
    for start in range(0, len(k), block):
        s = q @ tile(k, start, block).T * scale
        s = np.where(tile(visible.T, start, block).T, s, -1e4)  # wrong: a real score may lie below
        m_new = np.maximum(m, s.max(axis=1))
        p = np.exp(s - m_new[:, None])
        alpha = np.exp(m - m_new)
        l = l * alpha + p.sum(axis=1)  # noqa: E741
        acc = acc * alpha[:, None] + p @ tile(v, start, block)
        m = m_new
    return acc / l[:, None]


Arguments = tuple[Array, Array, Array, float, Array, int]


def row(scores: list[float], values: list[float], block: int, hidden: tuple[int, ...] = (),
        scale: float = 1.0) -> Arguments:
    """One query whose dot products with the keys are `scores` before the scale; `hidden` keys are masked."""
    visible = np.ones((1, len(scores)), bool)
    visible[0, list(hidden)] = False
    return (np.ones((1, 1)), np.array(scores, float)[:, None], np.array(values, float)[:, None], scale, visible, block)


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake. shows: an input on which the result is wrong; hides: one on which it happens to be right,
    None where there is hardly one."""

    key: str
    code: Callable[..., Array]
    shows: Arguments
    hides: Arguments | None


FAULTS = (
    Fault("tail", tail_as_zero, row([-2, -1, -3], [1, 2, 3], 2), row([-2, -1, -3, -2], [1, 2, 3, 4], 2)),
    Fault("order", scale_after_adding, row([1, 2, 3, 0], [1, 2, 3, 4], 2), None),
    Fault("alpha", alpha_too_late, row([1, 2, 3, 0], [1, 2, 3, 4], 2), row([3, 0, 1, 2], [1, 2, 3, 4], 2)),
    Fault("scale", scale_forgotten, row([8, 16, 24, 0], [1, 2, 3, 4], 2, scale=0.125),
          row([5, 5, 5, 5], [1, 2, 3, 4], 2, scale=0.125)),
    Fault("masked_row", no_guard, row([1, 2], [1, 2], 2, hidden=(0, 1)), row([1, 2], [1, 2], 2, hidden=(1,))),
    Fault("masked_block", no_guard, row([1, 2, 3, 0], [1, 2, 3, 4], 2, hidden=(0, 1)),
          row([1, 2, 3, 0], [1, 2, 3, 4], 2, hidden=(2, 3))),
    Fault("zero", m_from_zero, row([-801, -800, -802, -800], [1, 2, 3, 4], 2), row([1, 2, 3, 0], [1, 2, 3, 4], 2)),
    Fault("finite", finite_infinity, row([-60_000, -60_001, -60_002, -60_000], [1, 2, 3, 4], 2, hidden=(3,)),
          row([1, 2, 3, 0], [1, 2, 3, 4], 2, hidden=(3,))),
)


def run(code: Callable[..., Array], arguments: Arguments) -> float:
    """O of the one query of `arguments`; NaN and infinities are results here, not errors."""
    with np.errstate(all="ignore"):
        return float(code(*arguments)[0, 0])


def source(code: Callable[..., Array]) -> str:
    """The source of a variant as the page shows it, without notes to the linter."""
    return inspect.getsource(code).replace("  # noqa: E741", "")


def overflow_in_half(scores: list[float]) -> bool:
    """Whether a materialised S holds one of these scores as infinity in fp16 (largest finite number 65,504)."""
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array(scores, np.float16)).any())
