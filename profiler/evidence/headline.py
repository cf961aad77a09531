"""The numbers of the Evidence page for one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.errors import BadInput
from profiler.evidence.facts import MATRICES, Facts, Run
from profiler.evidence.ledger import LedgerRow, ledger
from profiler.model.implementations import BUILDERS
from profiler.spec import AttentionShape

TUNED = ("block_m", "block_n", "num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class Side:
    """What one implementation did on the shape; None where not measured."""

    implementation: str
    dram_bytes: float | None  # counted, read + written
    dram_read_bytes: float | None
    dram_write_bytes: float | None
    predicted_dram_bytes: float | None  # every stage's operands and results once
    matrix_passes: int | None  # N×N passes through HBM, by the model
    tensor_flops: float | None  # counted
    special_ops: float | None
    median_ns: float | None  # unprofiled
    p20_ns: float | None
    p80_ns: float | None
    profiled_ns: float | None  # Σ of ncu's durations
    peak_memory_bytes: float | None
    error_relative: float | None
    error_max_abs: float | None
    achieved_occupancy_pct: float | None  # weighted by time over its launches
    tensor_pipe_pct: float | None
    status: str | None
    stages: tuple[LedgerRow, ...]
    parameters: Mapping[str, Any]  # tuning parameters it ran with; empty where they are a library's own
    configurations: int  # of it on this shape in the bundle; the fastest is shown


@dataclass(frozen=True, slots=True)
class Faster:
    """A configuration in another profile of the same GPU that beats the headline's."""

    source: str
    parameters: Mapping[str, Any]
    median_ns: float
    headline_ns: float
    same_ns: float | None  # what the headline's own configuration took there


@dataclass(frozen=True, slots=True)
class Headline:
    """Naive beside flash on one shape. Ratios are derived; the first is the one to quote.

    ratio_by_floor: naive's counted bytes over the compulsory bytes (Q, K, V, O): what L2 hides of flash's writes cannot
    flatter it. ratio_counted: both counted. flops_visible: 4·B·H·V·D.
    """

    shape: AttentionShape
    naive: Side | None
    naive_folded: Side | None
    flash: Side | None
    compulsory_bytes: int
    matrix_bytes: int
    l2_size_bytes: int | None
    flops_visible: int
    ratio_by_floor: float | None
    ratio_counted: float | None
    speedup: float | None
    speedup_over_folded: float | None
    memory_ratio: float | None
    error_eager_relative: float | None


def headline(facts: Facts, shape: AttentionShape, direction: str = "forward") -> Headline:
    """Raises BadInput when the bundle holds nothing of the shape."""
    naive, folded = facts.run("naive", shape, direction), facts.run("naive_folded", shape, direction)
    flash = facts.flash(shape, direction)
    run = flash or naive or folded
    if run is None or run.prediction is None:
        known = [name for name, way in BUILDERS if way == direction]
        held = dict.fromkeys(r.config.implementation for r in facts.of(shape) if r.config.direction == direction)
        raise BadInput(f"No headline for {shape.label()} {direction}: it sets a fused implementation beside naive "
                       f"attention, and this profile holds {', '.join(held) or 'nothing'} on this shape.",
                       remedy=f"Names whose passes are known: {', '.join(known)}. What was measured is shown all "
                              "the same on the pages below.")
    sides = [_side(facts, r) for r in (naive, folded, flash)]
    left, middle, right = sides
    base = left or middle
    floor = run.predicted.compulsory_bytes
    moved = base.dram_bytes if base else None
    return Headline(
        shape, left, middle, right, floor, shape.matrix_bytes, facts.l2_size_bytes, run.predicted.flops_visible,
        moved / floor if moved is not None and floor else None, _ratio(base, right, "dram_bytes"),
        _ratio(base, right, "median_ns"), _ratio(middle, right, "median_ns"), _ratio(base, right, "peak_memory_bytes"),
        flash.timed("error_eager_relative") if flash else None)


def _ratio(over: Side | None, under: Side | None, field: str) -> float | None:
    a, b = (getattr(side, field) if side else None for side in (over, under))
    return a / b if a is not None and b else None


def _side(facts: Facts, run: Run | None) -> Side | None:
    if run is None:
        return None
    p = run.prediction
    passes = sum(p.tensor_passes(name) for name in MATRICES) if p else None
    return Side(
        run.config.implementation, run.dram_bytes(), run.total("dram_read_bytes"), run.total("dram_write_bytes"),
        p.dram_bytes if p else None, passes, run.total("tensor_flops"), run.total("special_ops"),
        run.timed("median_ns"), run.timed("p20_ns"), run.timed("p80_ns"), run.total("duration_ns"),
        run.timed("peak_memory_bytes"), run.timed("error_relative"), run.timed("error_max_abs"),
        run.weighted("achieved_occupancy_pct"), run.weighted("tensor_pipe_pct"), run.timed("status"),
        tuple(ledger(facts, run)), run.config.parameters, len(facts.tunings(run.config)))


def faster(facts: Facts, others: Sequence[Facts], shape: AttentionShape, direction: str) -> Faster | None:
    """Compared within the other profile where that holds the headline's configuration too: two runs differ a little."""
    mine = facts.flash(shape, direction)
    ns = mine.timed("median_ns") if mine else None
    if mine is None or not ns or not mine.config.parameters:
        return None
    best: Faster | None = None
    for f in others:
        if f.gpu.get("name") != facts.gpu.get("name"):
            continue
        there = {r: t for r in f.tunings(mine.config) if (t := r.timed("median_ns"))}
        quickest = min(there, key=lambda r: there[r], default=None)
        same = min((t for r, t in there.items() if _tuned(r) == _tuned(mine)), default=None)  # switches off: slower
        if quickest and there[quickest] < 0.99 * (same or ns) and (best is None or there[quickest] < best.median_ns):
            best = Faster(f.bundle.name, quickest.config.parameters, there[quickest], ns, same)
    return best


def _tuned(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.config.parameters.items() if k in TUNED}
