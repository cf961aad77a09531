"""`python -m profiler.evidence BUNDLE`: predicted against measured by quantity, and the ten worst residuals."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from profiler import bundle
from profiler.errors import FlashScopeError
from profiler.evidence import parity, residuals, worst
from profiler.evidence.allowance import QUANTITIES
from profiler.evidence.claim import digits
from profiler.evidence.parity import ParityRow


def lines(source: bundle.Bundle) -> Iterable[str]:
    """The parity table, then the rows furthest from their prediction, each with its causes."""
    rows = parity(source)
    yield f"{'implementation':<14} {'stage':<10} {'quantity':<13} rows inside  measured / predicted"
    for name, stage, quantity in dict.fromkeys((r.implementation, r.stage, r.quantity) for r in rows):
        here = [r for r in rows if (r.implementation, r.stage, r.quantity) == (name, stage, quantity)]
        ratios = [r.measured / r.predicted for r in here if r.predicted]
        span = f"{min(ratios):.4f} to {max(ratios):.4f}" if ratios else "nothing predicted"
        bound = " (predicted is a lower bound)" if any(r.high is None for r in here) else ""
        yield f"{name:<14} {stage:<10} {quantity:<13} {len(here):>4} {sum(r.good for r in here):>6}  {span}{bound}"
    yield ""
    yield "Furthest from the prediction, of what is no lower bound:"
    for r in worst([r for r in rows if r.high is not None]):
        outside = "inside" if r.good else f"{100 * r.error:+.1f}% outside"
        yield (f"{r.implementation} {r.stage} {r.quantity}, {r.shape.label()}: {r.measured:,.0f} {r.unit}, predicted "
               f"{r.predicted:,.0f} ({r.low:,.0f} to {r.high:,.0f}; {outside}). {_causes(source, r)}")


def _causes(source: bundle.Bundle, row: ParityRow) -> str:
    found = next(r for r in residuals(source, row.implementation, row.shape, row.direction)
                 if (r.stage, r.quantity) == (row.stage, row.quantity))
    unit = QUANTITIES[row.quantity][1]
    return "; ".join(f"{cause} {digits(amount / 1e6)} M{unit}" for cause, amount in found.causes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m profiler.evidence BUNDLE")
    try:
        print("\n".join(lines(bundle.read(Path(sys.argv[1])))))
    except FlashScopeError as error:
        sys.exit(str(error))
