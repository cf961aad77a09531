"""A straight line through log-log points: how a quantity grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slope:
    """value: exponent p of y ∝ xᵖ; error: its standard error (None with two points); intercept of log y."""

    value: float
    error: float | None
    intercept: float
    points: int

    def at(self, x: float) -> float:
        """The line's value at x."""
        return math.exp(self.intercept + self.value * math.log(x))


def log_slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Least squares of log y on log x; None with fewer than two different x. All values must be positive.

    Standard error: √(Σ residual² / (n − 2) / Σ(log x − mean)²), the usual one of a slope.
    """
    pairs = [(math.log(a), math.log(b)) for a, b in zip(x, y)]
    n = len(pairs)
    if n < 2 or len({a for a, _ in pairs}) < 2:
        return None
    mean_x, mean_y = sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n
    spread = sum((a - mean_x) ** 2 for a, _ in pairs)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in pairs) / spread
    intercept = mean_y - slope * mean_x
    residual = sum((b - intercept - slope * a) ** 2 for a, b in pairs)
    error = math.sqrt(residual / (n - 2) / spread) if n > 2 else None
    return Slope(slope, error, intercept, n)
