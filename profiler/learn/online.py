"""Softmax over one row of scores, block by block (Milakov and Gimelshein 2018, arXiv 1805.02867), in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_NUMBERS = 48
WORKED = ((1.0, 2.0, 3.0, 0.0), (1.0, 2.0, 3.0, 4.0), 2)  # scores, values, block size: [1, 2] | [3, 0]


@dataclass(frozen=True, slots=True)
class Step:
    """The state after one block.

    scores: of this block. m: largest score so far. alpha: exp(m before − m), what the old sums are multiplied by.
    terms: exp(x − m) of every score so far; l is their sum, acc the sum of term · value.
    """

    scores: tuple[float, ...]
    m: float
    alpha: float
    terms: tuple[float, ...]
    l: float  # noqa: E741 (the name in the literature)
    acc: float

    @property
    def output(self) -> float:
        """acc / l: attention over the keys seen so far; 0 while none is visible."""
        return self.acc / self.l if self.l else 0.0


def walk(scores: Sequence[float], values: Sequence[float], block: int) -> list[Step]:
    """One step a block of `block` scores. A score of −inf is a masked key; values has one number a key."""
    m, l, acc, steps = -math.inf, 0.0, 0.0, []  # noqa: E741
    for start in range(0, len(scores), block):
        x, v = scores[start:start + block], values[start:start + block]
        m_new = max(m, *x)
        subtract = 0.0 if m_new == -math.inf else m_new  # −inf − (−inf) would be NaN
        alpha = math.exp(m - subtract)
        p = [math.exp(one - subtract) for one in x]
        l = l * alpha + sum(p)  # noqa: E741
        acc = acc * alpha + sum(a * b for a, b in zip(p, v))
        m = m_new
        seen = tuple(math.exp(one - subtract) for one in scores[:start + block])
        steps.append(Step(tuple(x), m, alpha, seen, l, acc))
    return steps


def at_once(scores: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """m, l and the output of softmax over the whole row in one pass; output 0 where every key is masked."""
    m = max(scores)
    if m == -math.inf:
        return m, 0.0, 0.0
    p = [math.exp(x - m) for x in scores]
    total = math.fsum(p)
    return m, total, math.fsum(a * b for a, b in zip(p, values)) / total


def numbers(words: str) -> tuple[list[float], list[str]]:
    """The numbers in `words`, at most MOST_NUMBERS, and what was not understood. "-inf" and "x" are a masked key."""
    found: list[float] = []
    unknown: list[str] = []
    for word in re.split(r"[\s,;|，；、]+", words.strip()):
        word = word.replace("−", "-").lower()
        if not word:
            continue
        if word in ("-inf", "-∞", "x"):
            found.append(-math.inf)
            continue
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and abs(value) <= 1e6:
            found.append(value)
        else:
            unknown.append(word[:20])
    return found[:MOST_NUMBERS], unknown
