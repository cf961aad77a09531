"""Predicted against measured, every quantity of every stage of a bundle: the parity plot and the worst residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiler.evidence.allowance import QUANTITIES, expected, slack
from profiler.evidence.facts import Facts, Run
from profiler.model import StagePrediction
from profiler.spec import AttentionShape


@dataclass(frozen=True, slots=True)
class ParityRow:
    """One quantity of one stage.

    low, high: what the model allows (equal when it predicts a point; high None for a lower bound). error: how far
    measured lies above high, in parts of it, or below low, in parts of predicted; 0 inside. good: within the tolerance.
    """

    implementation: str
    shape: AttentionShape
    direction: str
    stage: str
    launches: tuple[int, ...]
    quantity: str
    unit: str
    predicted: float
    measured: float
    low: float
    high: float | None
    error: float
    tolerance: float

    @property
    def good(self) -> bool:
        return abs(self.error) <= self.tolerance


def parity(facts: Facts, quantity: str | None = None) -> list[ParityRow]:
    """All rows for which there is a prediction and a counter, in the order of the bundle."""
    rows = []
    for run in facts.runs:
        for stage in run.predicted.stages if run.prediction else ():
            for name in QUANTITIES if quantity is None else (quantity,):
                row = compare(facts, run, stage, name)
                if row is not None:
                    rows.append(row)
    return rows


def worst(rows: list[ParityRow], count: int = 10) -> list[ParityRow]:
    """The rows that lie furthest outside, in multiples of their tolerance; of those inside, furthest from predicted."""
    def off(r: ParityRow) -> tuple[float, float]:
        return abs(r.error) / r.tolerance, abs(r.measured / r.predicted - 1) if r.predicted else 0.0

    return sorted(rows, key=off, reverse=True)[:count]


def compare(facts: Facts, run: Run, stage: StagePrediction, quantity: str) -> ParityRow | None:
    """One quantity of one stage; None where it was not counted or is not predicted."""
    column, unit, _ = QUANTITIES[quantity]
    measured = run.total(column, stage.stage)
    found = expected(facts, run, stage, quantity)
    if measured is None or found is None:
        return None
    outside = found.outside(measured)
    edge = found.high if outside > 0 else found.predicted
    error = outside / edge if edge else float(outside != 0)
    tolerance = QUANTITIES[quantity][2]
    if edge and math.isfinite(edge):
        tolerance = slack(facts, run, stage, quantity, edge) / edge
    numbers = tuple(int(r["launch"]) for r in run.launches.get(stage.stage, []))
    return ParityRow(run.config.implementation, run.shape, run.config.direction, stage.stage, numbers, quantity, unit,
                     found.predicted, measured, found.low, None if math.isinf(found.high) else found.high, error,
                     tolerance)
