"""Each claim of IO-awareness as a check on a bundle: holds, fails, or cannot tell and what is missing.

Everything here takes a Bundle and returns plain dataclasses; numbers are in base units.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiler.bundle import Bundle
from profiler.evidence import diagnosis as _diagnosis
from profiler.evidence import evaluate as _evaluate
from profiler.evidence import headline as _headline
from profiler.evidence import ledger as _ledger
from profiler.evidence import parity as _parity
from profiler.evidence import pyramid as _pyramid
from profiler.evidence import residuals as _residuals
from profiler.evidence import versions as _versions
from profiler.evidence.claim import CANNOT_TELL, FAILS, HOLDS, Claim
from profiler.evidence.diagnosis import Finding
from profiler.evidence.facts import Facts, Run
from profiler.evidence.headline import Faster, Headline, Side
from profiler.evidence.ledger import LedgerRow
from profiler.evidence.parity import ParityRow, worst
from profiler.evidence.pyramid import Level
from profiler.evidence.residuals import Residual
from profiler.evidence.versions import Work
from profiler.spec import AttentionShape

__all__ = [
    "CANNOT_TELL", "FAILS", "HOLDS", "Claim", "Facts", "Faster", "Finding", "Headline", "LedgerRow", "Level",
    "ParityRow", "Residual", "Run", "Side", "Work", "beside_matmuls", "default_shape", "diagnosis", "evaluate",
    "evaluate_beside", "faster", "headline", "ledger", "parity", "pyramid", "residuals", "shapes", "shared_cause",
    "why_no_versions", "worst",
]


def evaluate(bundle: Bundle, shape: AttentionShape | None = None) -> list[Claim]:
    """All claims on one shape, or on every shape (then ``cases`` holds each)."""
    return _evaluate.evaluate(Facts(bundle), shape)


def evaluate_beside(bundles: Sequence[Bundle], shape: AttentionShape | None = None) -> list[Claim]:
    """Claims on the first bundle; what no shape of it can decide is taken from the others of the same GPU, which the
    claim then names as its ``source``."""
    first, *others = (Facts(bundle) for bundle in bundles)
    return _evaluate.beside(_evaluate.evaluate(first, shape), first, others)


def shared_cause(bundle: Bundle) -> str:
    """Why no claim can be checked on this bundle, where that is so; else ""."""
    return _evaluate.shared_cause(Facts(bundle))


def headline(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> Headline:
    """The numbers of the Evidence page. Raises BadInput when the bundle holds nothing of the shape."""
    return _headline.headline(Facts(bundle), shape, direction)


def faster(bundles: Sequence[Bundle], shape: AttentionShape, direction: str = "forward") -> Faster | None:
    """The fastest configuration that another bundle of the same GPU holds of the first one's headline implementation
    on a shape, in the same dtype; None where none beats it by more than its spread."""
    first, *others = (Facts(bundle) for bundle in bundles)
    return _headline.faster(first, others, shape, direction)


def ledger(bundle: Bundle, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[LedgerRow]:
    """DRAM bytes of one run by stage and tensor; empty when the bundle does not hold it."""
    return _ledger.run_ledger(Facts(bundle), implementation, shape, direction)


def shapes(bundle: Bundle, direction: str = "forward") -> list[AttentionShape]:
    """The shapes a bundle holds, in its order."""
    return Facts(bundle).shapes(direction)


def default_shape(bundle: Bundle) -> AttentionShape | None:
    """The shape that shows most: largest N ≤ 4096, full mask, D 64, with naive and flash; None for a foreign report."""
    return _evaluate.default_shape(Facts(bundle))


def diagnosis(bundle: Bundle, launch: int) -> list[Finding]:
    """The troubleshooting questions asked of one launch. Raises KeyError for a launch that is not there."""
    return _diagnosis.diagnosis(Facts(bundle), launch)


def parity(bundle: Bundle, quantity: str | None = None) -> list[ParityRow]:
    """Predicted against measured for every stage; quantity: one of parity.QUANTITIES, or all."""
    return _parity.parity(Facts(bundle), quantity)


def pyramid(bundle: Bundle, shape: AttentionShape | None = None, direction: str = "forward") -> list[Level]:
    """Registers, shared memory, L2, HBM of the bundle's GPU, with what crossed them on a shape."""
    return _pyramid.pyramid(Facts(bundle), shape, direction)


def beside_matmuls(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> list[Work]:
    """Operations beside the matmuls, implementation by implementation."""
    return _versions.beside_matmuls(Facts(bundle), shape, direction)


def why_no_versions(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> str:
    """Why FlashAttention-1 cannot be set beside 2 on this bundle; "" where it can."""
    return _versions.why_not_both(Facts(bundle), shape, direction)


def residuals(bundle: Bundle, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[Residual]:
    """Each quantity of one run from the least that there must be to what was counted, cause by cause."""
    return _residuals.residuals(Facts(bundle), implementation, shape, direction)
