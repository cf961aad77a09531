"""Each claim of IO-awareness as a check on a bundle: holds, fails, or cannot tell and what is missing.

Everything here takes a Bundle and returns plain dataclasses; numbers are in base units.
"""

from __future__ import annotations

from profiler.bundle import Bundle
from profiler.evidence import evaluate as _evaluate
from profiler.evidence import headline as _headline
from profiler.evidence import ledger as _ledger
from profiler.evidence.claim import CANNOT_TELL, FAILS, HOLDS, Claim
from profiler.evidence.facts import Facts, Run
from profiler.evidence.headline import Headline, Side
from profiler.evidence.ledger import LedgerRow
from profiler.spec import AttentionShape

__all__ = [
    "CANNOT_TELL", "FAILS", "HOLDS", "Claim", "Facts", "Headline", "LedgerRow", "Run", "Side", "default_shape",
    "evaluate", "headline", "ledger", "shapes",
]


def evaluate(bundle: Bundle, shape: AttentionShape | None = None) -> list[Claim]:
    """All claims on one shape, or on every shape (then ``cases`` holds each)."""
    return _evaluate.evaluate(Facts(bundle), shape)


def headline(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> Headline:
    """The numbers of the Evidence page. Raises BadInput when the bundle holds nothing of the shape."""
    return _headline.headline(Facts(bundle), shape, direction)


def ledger(bundle: Bundle, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[LedgerRow]:
    """DRAM bytes of one run by stage and tensor; empty when the bundle does not hold it."""
    return _ledger.run_ledger(Facts(bundle), implementation, shape, direction)


def shapes(bundle: Bundle, direction: str = "forward") -> list[AttentionShape]:
    """The shapes a bundle holds, in its order."""
    return Facts(bundle).shapes(direction)


def default_shape(bundle: Bundle) -> AttentionShape | None:
    """The shape that shows most: largest N ≤ 4096, full mask, D 64, with naive and flash; None for a foreign report."""
    return _evaluate.default_shape(Facts(bundle))
