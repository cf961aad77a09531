"""Who moved what: the DRAM bytes of one run by stage and tensor, measured beside predicted, and the rest by cause."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.evidence.allowance import CARRIED, DIRTY, REFETCH, REST, WAVE_REFETCH, expected
from profiler.evidence.facts import Facts, Run
from profiler.model import StagePrediction
from profiler.spec import AttentionShape

__all__ = ["CARRIED", "DIRTY", "REFETCH", "REST", "WAVE_REFETCH", "LedgerRow", "ledger", "run_ledger"]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One tensor (or one residual) of one stage in one direction.

    tensor: its name, or "" for a residual row, which has a ``cause``. predicted_bytes: compulsory. measured_bytes:
    the share of the launches' counter that falls to the tensor; kind "derived", for the counter knows no tensors. None
    and "not available" where nothing was counted. Over one stage and direction, Σ measured_bytes is the counter,
    Σ predicted_bytes the prediction, and Σ residual_bytes their difference (negative: less was counted).
    """

    implementation: str
    stage: str
    launches: tuple[int, ...]
    tensor: str
    direction: str  # "read" or "write"
    predicted_bytes: float
    measured_bytes: float | None
    residual_bytes: float = 0.0
    cause: str = ""
    kind: str = "derived"


def ledger(facts: Facts, run: Run) -> list[LedgerRow]:
    """All rows of one run in stage order; empty for an implementation without a model."""
    if run.prediction is None:
        return []
    rows: list[LedgerRow] = []
    for stage in run.predicted.stages:
        numbers = tuple(int(r["launch"]) for r in run.launches.get(stage.stage, []))
        for direction, tensors in (("read", stage.reads), ("write", stage.writes)):
            measured = run.total(f"dram_{direction}_bytes", stage.stage)
            found = expected(facts, run, stage, f"dram_{direction}")
            causes = [] if measured is None else found.causes(measured) if found else \
                [(REST, measured - sum(tensors.values()))]
            rows += _split(run.config.implementation, stage, numbers, direction, dict(tensors), measured, causes)
    return rows


def _split(name: str, stage: StagePrediction, numbers: tuple[int, ...], direction: str, tensors: dict[str, int],
           measured: float | None, causes: list[tuple[str, float]]) -> list[LedgerRow]:
    """A counter shared among tensors in proportion where it falls short, else each in full, the excess a residual."""
    predicted = sum(tensors.values())
    if measured is None:
        return [LedgerRow(name, stage.stage, numbers, tensor, direction, amount, None, kind="not available")
                for tensor, amount in tensors.items()]
    share = min(1.0, measured / predicted) if predicted else 0.0
    rows = [LedgerRow(name, stage.stage, numbers, tensor, direction, amount, amount * share)
            for tensor, amount in tensors.items()]
    return rows + [LedgerRow(name, stage.stage, numbers, "", direction, 0, max(0.0, amount), amount, cause)
                   for cause, amount in causes if amount]


def run_ledger(facts: Facts, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[LedgerRow]:
    run = facts.run(implementation, shape, direction)
    return ledger(facts, run) if run else []
