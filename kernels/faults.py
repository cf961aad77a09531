"""The classic mistakes in an online softmax, in NumPy, each with inputs that show it and inputs that hide it.

For teaching: `FAULTS` lists them, `online` runs one, `definition` is what is right. Nothing here is part of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BLOCK = 4  # keys a step


def definition(scores: np.ndarray, visible: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """softmax(scores · scale) · values over visible keys, float64; a row that sees no key is 0.

    scores, visible (M, N), values (N, D) -> (M, D)."""
    logits = np.where(visible, scores * scale, -np.inf)
    highest = np.where(visible.any(1), logits.max(1, initial=-np.inf), 0.0)[:, None]
    weights = np.exp(logits - highest)
    total = weights.sum(1, keepdims=True)
    return weights @ values / np.where(total == 0, 1.0, total)


def online(scores: np.ndarray, visible: np.ndarray, values: np.ndarray, scale: float, fault: str = "") -> np.ndarray:
    """The same, BLOCK keys at a time, with one of FAULTS by name; without one it is right."""
    rows, keys = scores.shape
    m = np.full(rows, 0.0 if fault == "m starts at 0" else -np.inf)
    total, acc = np.zeros(rows), np.zeros((rows, values.shape[1]))
    for start in range(0, keys, BLOCK):
        inside = np.arange(start, start + BLOCK) < keys  # the last block is padded, as a tile is
        s, v, seen = np.zeros((rows, BLOCK)), np.zeros((BLOCK, values.shape[1])), np.zeros((rows, BLOCK), bool)
        s[:, inside], v[inside] = scores[:, start:start + BLOCK], values[start:start + BLOCK]
        seen[:, inside] = visible[:, start:start + BLOCK]
        if fault != "scale forgotten":
            s = s * scale
        if fault == "zeros beyond the end":
            seen |= ~inside  # a padded column keeps the score 0, which is an ordinary score
        s = np.where(seen, s, -np.inf)
        m_new = np.maximum(m, s.max(1))
        # A row that has seen no key yet has m = -inf: subtract 0, and each of its terms is 0.
        subtract = m_new if fault == "-inf minus -inf" else np.where(np.isinf(m_new), 0.0, m_new)
        p = np.exp(s - subtract[:, None])
        if fault == "alpha after m":
            m = m_new
        alpha = np.exp((subtract if fault == "alpha after m" else m) - subtract)
        total = total * alpha + p.sum(1)
        if fault == "scaled after adding":
            acc = (acc + p @ v) * alpha[:, None]
        else:
            acc = acc * alpha[:, None] + p @ v
        m = m_new
    return acc / np.where(total == 0, 1.0, total)[:, None]


@dataclass(frozen=True)
class Fault:
    """shows, hides: (scores, visible, values, scale) on which it is wrong, and on which the result is right anyway."""

    name: str
    what: str
    shows: Callable[[], tuple]
    hides: Callable[[], tuple]


def _inputs(keys: int, *, offset: float = 0.0, scale: float = 0.5, order: str = "random", blind: int = 0,
            empty: int = 0) -> tuple:
    """3 rows of scores; order: rising or falling over the keys; blind: leading keys that the last row does not see;
    empty: leading keys whose values are 0."""
    random = np.random.default_rng(0)
    scores = random.standard_normal((3, keys))
    if order != "random":
        scores = np.sort(scores, axis=1)[:, ::-1 if order == "falling" else 1]
    visible = np.ones((3, keys), bool)
    visible[2, :blind] = False
    values = random.standard_normal((keys, 2))
    values[:empty] = 0.0
    return scores + offset, visible, values, scale


FAULTS: tuple[Fault, ...] = (
    Fault("zeros beyond the end",
          "Columns beyond the last key are filled with score 0 and counted. Multiples of the block cannot show it.",
          lambda: _inputs(6), lambda: _inputs(8)),
    Fault("alpha after m",
          "The rescaling factor is computed after m was replaced, so it is always 1. Right where no later block "
          "raises m.",
          lambda: _inputs(12, order="rising"), lambda: _inputs(12, order="falling")),
    Fault("scaled after adding",
          "The new block's terms are rescaled with the old ones. The first block is lost, as its factor is "
          "exp(-inf) = 0, and every block that raises m counts too little.",
          lambda: _inputs(12, order="rising"), lambda: _inputs(12, order="falling", empty=4)),
    Fault("scale forgotten",
          "softmax(S) for softmax(S · scale): too sharp a distribution, not an overflow, since m is subtracted all the "
          "same.",
          lambda: _inputs(8, scale=0.125), lambda: _inputs(8, scale=1.0)),
    Fault("m starts at 0",
          "Harmless for ordinary scores: m only has to bound them. Where all lie far below 0, every term underflows "
          "and the row is lost.",
          lambda: _inputs(8, offset=-4000.0), lambda: _inputs(8, offset=-4.0)),
    Fault("-inf minus -inf",
          "A row whose first block is masked whole has m = -inf, and -inf - (-inf) is NaN, which stays.",
          lambda: _inputs(8, blind=4), lambda: _inputs(8, blind=3)),
)
