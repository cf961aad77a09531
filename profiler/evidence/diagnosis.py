"""What holds one launch back: the usual troubleshooting questions asked of its counters, each with its number.

Every finding says whether it matters here. A low occupancy, say, is no fault of a kernel that keeps its pipes busy with
few warps, whatever a general rule estimates.
"""

from __future__ import annotations

from collections.abc import Callable

from profiler.evidence import launch_questions as ask
from profiler.evidence.checks_work import allowed_error
from profiler.evidence.claim import tile, time
from profiler.evidence.facts import Facts, Row, Run, roof_shares
from profiler.evidence.finding import CANNOT_TELL, FINE, LOOK, Finding

__all__ = ["CANNOT_TELL", "FINE", "LOOK", "Finding", "diagnosis"]
SWITCHES = ("folded", "edge_only", "staged", "ordered", "turns", "overlap", "fixed")  # other programs, not other tiles
FASTER = 0.99  # of the time: another configuration below this is faster


def diagnosis(facts: Facts, launch: int) -> list[Finding]:
    """All findings on one launch, in a fixed order. Raises KeyError for a launch that is not there."""
    row = next((r for r in facts.launches if r["launch"] == launch), None)
    if row is None:
        raise KeyError(f"no launch {launch} in {facts.bundle.name}")
    raw = facts.bundle.raw(launch)
    values = dict(zip(raw["metric"], raw["value"]))
    shares = roof_shares([row])
    run = next((r for r in facts.runs if any(mine is row for mine in r.rows)), None)
    questions: tuple[Callable[[], Finding], ...] = (
        lambda: right(run), lambda: ask.tensor_cores(row, values), lambda: ask.nearest_roof(row, shares, values),
        lambda: ask.occupancy(row, shares, values), lambda: ask.spills(row), lambda: block_size(facts, run),
        lambda: ask.bank_conflicts(row, values), lambda: ask.tail(row), lambda: ask.l2_misses(row, _needed(run, row)),
        lambda: ask.stalls(row, values), lambda: captured(facts, row), lambda: compiled(facts, run))
    return [question() for question in questions]


def right(run: Run | None) -> Finding:
    """NaN or a large deviation: the error against float64 of the call that the launch belongs to."""
    id_, question = "right", "Is the result right?"
    error = run.timed("error_relative") if run else None
    if run is None or error is None:
        return Finding(id_, question, CANNOT_TELL, "Counters do not say.", missing=(
            "The output beside a float64 reference, which no report holds: `python -m profiler run` compares it, and "
            "`python -m kernels check` says where ours first differs."))
    most = allowed_error(run)
    said = f"Relative error {error:.2e}, where {most:.2e} is allowed (twice eager PyTorch's, or the type's own floor)"
    if error <= most:
        return Finding(id_, question, FINE, f"{said}.", error, "relative")
    return Finding(id_, question, LOOK, f"{said}.", error, "relative",
                   "Not finite: the maximum must start at −∞, and a row that sees no key must not be divided by l = 0. "
                   "Finite but off: masked elements must be −∞ before the maximum, and the accumulator rescaled before "
                   "the new block is added. `python -m kernels check --trace` names the first step that differs")


def _needed(run: Run | None, row: Row) -> float | None:
    """Bytes of the operands of the launch's stage, each once; None where the model or the stage's launches say less."""
    stage = run.prediction.stage(row["stage"]) if run and run.prediction else None
    return float(stage.dram_read_bytes) if stage and run and len(run.launches.get(row["stage"], ())) == 1 else None


def block_size(facts: Facts, run: Run | None) -> Finding:
    """Whether another tile, with other warps or stages, was faster on this shape."""
    id_, question = "block_size", "Is the block size the right one?"
    if run is not None and not run.config.parameters:
        return Finding(id_, question, FINE, "Its tiles are the library's own choice.")
    if run is None:
        return Finding(id_, question, CANNOT_TELL, "The report does not say which tile it ran with.",
                       missing="The tile (parameters block_m, block_n): `python -m profiler run` records it.")
    times = {r: t for r in facts.tunings(run.config) if _switches(r) == _switches(run) and (t := r.timed("median_ns"))}
    mine, tried = times.get(run), len(times)
    if mine is None or tried < 2:
        return Finding(id_, question, CANNOT_TELL, f"{_tile(run)} is the only one recorded here.",
                       missing="Other tiles on this shape: `python -m profiler run --suite tuning`.")
    best = min(times, key=lambda r: times[r])
    if times[best] >= FASTER * mine:
        return Finding(id_, question, FINE, f"{_tile(run)} takes {time(mine)}, as fast as any of {tried}.",
                       1.0, "× the fastest")
    return Finding(id_, question, LOOK, f"{_tile(run)} takes {time(mine)}; of {tried} tried, {_tile(best)} takes "
                   f"{time(times[best])}.", mine / times[best], "× the fastest", f"Use {_tile(best)}")


def _switches(run: Run) -> dict[str, bool]:
    return {name: run.config.parameters.get(name, True) for name in SWITCHES}


def _tile(run: Run) -> str:
    return tile(run.config.parameters) or "Its configuration"


def captured(facts: Facts, row: Row) -> Finding:
    """Warm-up or autotuning caught among the launches: one stage must be one launch."""
    id_, question = "captured", "Was tuning or warm-up captured?"
    if row["config_id"] is not None:
        same = [r for r in facts.launches if r["config_id"] == row["config_id"] and r["stage"] == row["stage"]
                and r["kernel"] == row["kernel"]]
        said = f"{len(same)} launch{'es' if len(same) > 1 else ''} of this kernel in its range"
        if len(same) > 1 and str(row["implementation"]).startswith(ask.LIBRARY):
            return Finding(id_, question, FINE, f"{said}: the library's own steps.", float(len(same)), "launches")
        return Finding(id_, question, FINE if len(same) == 1 else LOOK, f"{said}.", float(len(same)), "launches",
                       "" if len(same) == 1 else "Warm up before the range opens, and profile one call.")
    same = [r for r in facts.launches if r["kernel"] == row["kernel"]]
    forms = {(r["grid"], r["block"], r["registers_per_thread"], r["shared_bytes_per_block"]) for r in same}
    if len(same) > 1 and len(forms) > 1:
        times = [r["duration_ns"] for r in same if r["duration_ns"]]
        spread = f", {time(min(times))} to {time(max(times))}" if times else ""
        return Finding(id_, question, LOOK, f"{len(same)} launches of this kernel in {len(forms)} configurations"
                       f"{spread}: tuning may be among them.", float(len(forms)), "configurations",
                       "Warm up before profiling, and select launches by NVTX range.")
    return Finding(id_, question, FINE, f"{len(same)} launch{'es' if len(same) > 1 else ''} of this kernel, one "
                   "configuration.", float(len(forms)), "configurations")


def compiled(facts: Facts, run: Run | None) -> Finding:
    """The launch ran, so it compiled; whether other tiles of its kernel did."""
    id_, question = "compiled", "Does it compile?"
    made = ", ".join(f"{word} {facts.bundle.profile[key]}" for key, word in (("triton", "Triton"), ("torch", "torch"),
                     ("cuda", "CUDA")) if facts.bundle.profile.get(key))
    said = f"It ran, so it did{f' ({made})' if made else ''}"
    refused = [] if run is None else [r for r in facts.tunings(run.config) if r.timed("status") not in (None, "ok")]
    if not refused:
        return Finding(id_, question, FINE, f"{said}.", 0.0, "refused")
    return Finding(id_, question, LOOK, f"{said}; {len(refused)} of its tiles did not: {_tile(refused[0])} "
                   f"({refused[0].timed('status')}).", float(len(refused)), "refused",
                   "Smaller blocks or fewer stages; `python -m profiler doctor` checks that Triton and PyTorch match")
