"""Who moved what: the DRAM bytes of one run by stage and tensor, measured beside predicted, and the rest by cause."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.evidence.facts import Facts, Run
from profiler.model import StagePrediction
from profiler.spec import AttentionShape

DIRTY = "dirty lines left in L2"
CARRIED = "dirty lines of earlier kernels"
REFETCH = "refetch: the working set exceeds L2"
CACHED = "already in L2"
REST = "rest"


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
            rows += _split(run.config.implementation, stage, numbers, direction, dict(tensors), measured, facts)
    return rows


def _split(name: str, stage: StagePrediction, numbers: tuple[int, ...], direction: str, tensors: dict[str, int],
           measured: float | None, facts: Facts) -> list[LedgerRow]:
    """A counter shared among tensors in proportion where it falls short, else each in full, the excess a residual."""
    predicted = sum(tensors.values())
    if measured is None:
        return [LedgerRow(name, stage.stage, numbers, tensor, direction, amount, None, kind="not available")
                for tensor, amount in tensors.items()]
    share = min(1.0, measured / predicted) if predicted else 0.0
    rows = [LedgerRow(name, stage.stage, numbers, tensor, direction, amount, amount * share)
            for tensor, amount in tensors.items()]
    for cause, amount in causes(stage, direction, predicted, measured, facts.l2_size_bytes, facts.flushed):
        rows.append(LedgerRow(name, stage.stage, numbers, "", direction, 0, max(0.0, amount), amount, cause))
    return rows


def causes(stage: StagePrediction, direction: str, predicted: float, measured: float, l2_size_bytes: int | None,
           flushed: bool) -> list[tuple[str, float]]:
    """Named parts of measured − predicted at DRAM, and the rest; each part within what its cause can explain.

    Writes short: a write-back L2 keeps up to its size. Writes above, not flushed: earlier kernels' lines, up to the L2.
    Reads short, not flushed: up to the L2 was there already. Reads above: when the stage's tensors exceed the L2 some
    are fetched again, up to what crosses L2 → SM.
    """
    difference, l2 = measured - predicted, l2_size_bytes or 0
    most: float
    if difference == 0:
        return []
    if direction == "write":
        cause, most = (DIRTY, l2) if difference < 0 else (CARRIED, 0 if flushed else l2)
    elif difference < 0:
        cause, most = CACHED, 0 if flushed else l2
    else:
        working = stage.dram_read_bytes + stage.dram_written_bytes
        again = (stage.level_bytes("l2_to_sm") or 0) - predicted
        if "l2_to_sm" in stage.at_least or stage.l2_to_sm is None:
            again = difference  # tiles not known: no upper limit to hold it against
        cause, most = REFETCH, max(0, again) if l2 and working > l2 else 0
    explained = max(-most, min(most, difference))
    out = [(cause, explained)] if explained else []
    if abs(difference - explained) > 0:
        out.append((REST, difference - explained))
    return out


def run_ledger(facts: Facts, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[LedgerRow]:
    run = facts.run(implementation, shape, direction)
    return ledger(facts, run) if run else []
