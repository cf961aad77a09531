"""Predicted against measured, every quantity of every stage of a bundle: the parity plot and the worst residuals."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.evidence.facts import Facts, Run
from profiler.model import StagePrediction
from profiler.spec import AttentionShape

# quantity → (launches column, unit, tolerance beyond the predicted interval)
QUANTITIES = {
    "dram_read": ("dram_read_bytes", "B", 0.02), "dram_write": ("dram_write_bytes", "B", 0.02),
    "l2_to_sm": ("l2_to_sm_bytes", "B", 0.01), "sm_to_l2": ("sm_to_l2_bytes", "B", 0.05),
    "tensor_flops": ("tensor_flops", "FLOP", 0.001), "special_ops": ("special_ops", "op", 0.10),
}


@dataclass(frozen=True, slots=True)
class ParityRow:
    """One quantity of one stage.

    low, high: what the model allows (equal when it predicts a point; high None for a lower bound). error: how far
    measured lies outside [low, high], in parts of predicted; 0 inside. good: within the quantity's tolerance.
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
                row = _row(facts, run, stage, name)
                if row is not None:
                    rows.append(row)
    return rows


def worst(rows: list[ParityRow], count: int = 10) -> list[ParityRow]:
    """The rows that lie furthest outside, in multiples of their tolerance."""
    return sorted(rows, key=lambda r: abs(r.error) / r.tolerance, reverse=True)[:count]


def _row(facts: Facts, run: Run, stage: StagePrediction, quantity: str) -> ParityRow | None:
    column, unit, tolerance = QUANTITIES[quantity]
    measured = run.total(column, stage.stage)
    interval = _interval(stage, quantity, facts)
    if measured is None or interval is None:
        return None
    predicted, low, high = interval
    outside = max(0.0, measured - high) if high is not None and measured > high else min(0.0, measured - low)
    error = outside / predicted if predicted else float(outside != 0)
    numbers = tuple(int(r["launch"]) for r in run.launches.get(stage.stage, []))
    return ParityRow(run.config.implementation, run.shape, run.config.direction, stage.stage, numbers, quantity, unit,
                     predicted, measured, low, high, error, tolerance)


def _interval(stage: StagePrediction, quantity: str, facts: Facts) -> tuple[float, float, float | None] | None:
    """(predicted, low, high) of a quantity; None where the model does not predict it."""
    if quantity in ("dram_read", "dram_write"):
        predicted = stage.dram_read_bytes if quantity == "dram_read" else stage.dram_written_bytes
        interval = stage.dram_read_interval if quantity == "dram_read" else stage.dram_write_interval
        allowed = interval(facts.l2_size_bytes, facts.flushed)
        if allowed is None:
            return None
        low, high = allowed
        return predicted, low, None if "dram" in stage.at_least else high
    if quantity in ("l2_to_sm", "sm_to_l2"):
        value = stage.level_bytes(quantity)
    elif quantity == "tensor_flops":
        value = stage.flops_computed
    else:
        value = stage.special_ops
    if value is None:
        return None
    bound = {"special_ops": "exponentials"}.get(quantity, quantity)
    return value, value, None if bound in stage.at_least else value
