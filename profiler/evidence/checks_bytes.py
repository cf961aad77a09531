"""Claims about bytes: S and P never in HBM, the passes of naive, the compulsory floor, linear memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiler import model
from profiler.evidence.allowance import QUANTITIES, REST, beyond_the_model, expected, slack
from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, size
from profiler.evidence.facts import FAR, MATRICES, Facts, Run
from profiler.spec import AttentionShape

TOLERANCE = 0.02  # beyond it a difference is named
FLOOR_TOLERANCE = 0.02  # of compulsory reads
PASS_MARGIN = 0.5  # N×N matrices: what is read beside the passes must not make one pass more or less
PASS_SHARE = 0.4  # of one N×N matrix: a causal kernel that stores S writes half of it; less than this is no pass
NEVER = float("inf")
NO_L2 = "the L2 size: neither the launches nor the profile say it."
LINEAR, QUADRATIC = (1.0, 0.05), (2.0, 0.10)  # exponents of N and how far a fitted one may lie off


def too_small(facts: Facts, shape: AttentionShape) -> Outcome | None:
    """An outcome when a pass over S could hide in L2, or the L2 size is not known."""
    l2 = facts.l2_size_bytes
    if l2 is None:
        return cannot_tell(NO_L2)
    if shape.matrix_bytes < FAR * l2:
        return cannot_tell(
            f"a longer sequence, with N²·B·H·e at least {FAR} × L2: one N×N matrix is {size(shape.matrix_bytes)} here "
            f"and the L2 holds {size(l2)}, so a pass over it need not reach HBM.", value=shape.matrix_bytes / l2,
            unit="× L2")
    return None


def _short(kernel: str | None) -> str:
    """A kernel's name without return type, template and arguments."""
    return (kernel or "").removeprefix("void ").split("<")[0].split("(")[0]


def between(low: float, high: float) -> str:
    return size(low) if size(low) == size(high) else f"{size(low)} to {size(high)}"


def no_s_p_in_hbm(facts: Facts, shape: AttentionShape) -> Outcome:
    """Neither from the SMs to L2 nor through HBM does a fused run move, beside its own tensors, 40% of one N×N matrix.

    What leaves the SMs is the strongest witness: S and P that never left them cannot be in HBM, however large the L2.
    HBM is asked where an N×N matrix is far above the L2.
    """
    runs, l2, matrix = facts.fused(shape), facts.l2_size_bytes, shape.matrix_bytes
    left = {run: amount for run in runs if (amount := _beyond_results(facts, run)) is not None}
    moved = {run: bytes_ for run in runs if (bytes_ := run.dram_bytes()) is not None}
    if not left and not moved:
        return cannot_tell("a fused launch of this shape with sm_to_l2_bytes, or with DRAM counters.")
    small = too_small(facts, shape)
    carried = 0 if facts.flushed else l2 or 0
    in_hbm = {} if small else {run: max(0.0, bytes_ - run.predicted.dram_bytes - carried - _through_memory(run))
                               for run, bytes_ in moved.items()}
    inputs = tuple(run.names("sm_to_l2_bytes", "dram_read_bytes", "dram_write_bytes") for run in runs)
    for extra, columns, where in ((left, ("sm_to_l2_bytes",), "from the SMs to L2"),
                                  (in_hbm, ("dram_read_bytes", "dram_write_bytes"), "through HBM")):
        bad = max(extra, key=lambda run: extra[run], default=None)
        if bad is not None and extra[bad] >= PASS_SHARE * matrix:
            launch = max(bad.rows, key=lambda row: sum(row[c] or 0 for c in columns))
            return Outcome(
                FAILS, f"Launch {launch['launch']} ({_short(launch['kernel'])}, {bad.config.implementation}) moved "
                f"{size(extra[bad])} {where} beyond its own tensors: {digits(extra[bad] / matrix)} of an N×N matrix of "
                f"{size(matrix)}.", extra[bad] / matrix, "N×N matrices", inputs, kind="derived")
    judge = next((run for run in runs if run in left or run in in_hbm), None)
    if judge is None:
        return small or cannot_tell(NO_L2)
    name, said = judge.config.implementation, []
    if judge in left:
        results = sum(s.dram_written_bytes for s in judge.predicted.stages)
        said.append(f"{size(judge.total('sm_to_l2_bytes') or 0)} left its SMs for L2, where its results are "
                    f"{size(results)} and one N×N matrix is {size(matrix)}: neither S nor P left the SMs.")
    if judge in in_hbm and l2:
        shown = "" if judge in left else f", where one N×N matrix is {size(matrix)}"
        said.append(f"Through HBM it moved {size(moved[judge])}{shown}: no pass over S or P, which would show there "
                    f"({digits(matrix / l2)} × L2).")
    elif l2:
        why = f"the matrix is {digits(matrix / l2)} × L2" if judge in moved else "it was not counted"
        said.append(f"HBM alone could not tell: {why}.")
    share = max(left.get(judge, 0.0), in_hbm.get(judge, 0.0)) / matrix
    return Outcome(HOLDS, f"{_judge(runs, judge, 'SM → L2 or HBM bytes')}{name}: {' '.join(said)}", share,
                   "N×N matrices", inputs, kind="derived")


def _through_memory(run: Run) -> int:
    """DRAM bytes at most of a schedule that carries its results through memory between passes (FlashAttention-1)."""
    return sum(sum(s.refetch.values()) + sum(s.rewrite.values()) for s in run.predicted.stages if s.rewrite)


def _beyond_results(facts: Facts, run: Run) -> float | None:
    """Bytes from the SMs to L2 beyond a run's own results, its spills and what its launches hand on; None where a stage
    was not counted."""
    extra = 0.0
    for stage in run.predicted.stages:
        counted = run.total("sm_to_l2_bytes", stage.stage)
        if counted is None:
            return None
        found = expected(facts, run, stage, "sm_to_l2")
        most = found.high if found and found.high < NEVER else \
            stage.dram_written_bytes + sum(most for _, most in beyond_the_model(run, stage, "sm_to_l2"))
        extra += max(0.0, counted - most)
    return extra


def _judge(runs: Sequence[Run], judge: Run, what: str) -> str:
    """A sentence that says whose verdict it is, where that is not the first implementation's; else ""."""
    names = ", ".join(run.config.implementation for run in runs[:runs.index(judge)])
    return f"Judged on {judge.config.implementation}, for {names} has no {what} here. " if names else ""


def naive_passes(facts: Facts, shape: AttentionShape) -> Outcome:
    """Each naive launch reads its operands and writes its result, pass by pass: within 2% of what is predicted, and all
    reads together within half an N×N matrix of the passes."""
    run = facts.naive(shape)
    if run is None or run.dram_bytes() is None:
        return cannot_tell("naive launches of this shape with DRAM counters (dram_read_bytes, dram_write_bytes).")
    if small := too_small(facts, shape):
        return small
    wrong, notes, must, moved = [], [], 0.0, 0.0
    for stage in run.predicted.stages:
        numbers = ", ".join(str(r["launch"]) for r in run.launches.get(stage.stage, ()))
        for quantity, verb in (("dram_read", "reads"), ("dram_write", "writes")):
            counted, found = run.total(QUANTITIES[quantity][0], stage.stage), expected(facts, run, stage, quantity)
            if counted is None or found is None:
                return cannot_tell(f"a launch with DRAM counters in the range of stage {stage.stage}.")
            if abs(found.outside(counted)) > slack(facts, run, stage, quantity, found.predicted):
                wrong.append(f"{stage.stage} (launch {numbers}) {verb} {size(counted)}, expected "
                             f"{between(found.low, found.high)}")
            if quantity == "dram_read":
                must, moved = must + found.predicted, moved + counted
                extra = [(abs(amount), cause) for cause, amount in found.causes(counted) if cause != REST]
                if extra and abs(counted - found.predicted) > TOLERANCE * found.predicted:
                    notes.append((max(extra), f"{stage.stage} reads {size(counted)} for {size(found.predicted)}"))
    off, inputs = moved / must - 1, (run.names("dram_read_bytes", "dram_write_bytes"),)
    if wrong or abs(moved - must) > PASS_MARGIN * shape.matrix_bytes:
        together = "" if wrong else f"All launches read {size(moved)} where their operands are {size(must)}"
        return Outcome(FAILS, f"{'; '.join(wrong) or together}.", 100 * off, "%", inputs, kind="measured and predicted")
    moves = [(s.stage, verb, tensor, amount) for s in run.predicted.stages
             for verb, tensors in (("reads", s.reads), ("writes", s.writes)) for tensor, amount in tensors.items()]
    named = [f"{stage} {verb} {tensor}{' twice' if amount > 1.5 * shape.matrix_bytes else ''}"
             for stage, verb, tensor, amount in moves if tensor in MATRICES]
    passes = sum(run.predicted.tensor_passes(tensor) for tensor in MATRICES)
    beside = "".join(f" {text} ({cause})." for (_, cause), text in sorted(notes, reverse=True))
    return Outcome(
        HOLDS, f"{passes} passes over an N×N matrix of {size(shape.matrix_bytes)} cross HBM: {', '.join(named)}. "
        f"All launches read {size(moved)} where their operands are {size(must)} ({100 * off:+.1f}%), and each writes "
        f"its result less at most the {size(facts.l2_size_bytes or 0)} that L2 keeps.{beside}",
        100 * off, "%", inputs, kind="measured and predicted")


def compulsory_floor(facts: Facts, shape: AttentionShape) -> Outcome:
    """Every fused implementation reads Q + K + V once (within 2%) where two copies of them fit in L2 (why
    two: see model.prediction.L2_COPIES), and writes O and LSE less what L2 keeps.

    Beyond, the model predicts how much may be fetched again: outside that interval the claim fails, inside it is not
    decided, unless the reads are at the floor all the same.
    """
    l2 = facts.l2_size_bytes
    everyone = facts.fused(shape)
    runs = [r for r in everyone if r.dram_bytes() is not None]
    if not runs:
        return cannot_tell("a fused launch of this shape with DRAM counters (dram_read_bytes, dram_write_bytes).")
    if l2 is None:
        return cannot_tell(NO_L2)
    inputs = tuple(r.names("dram_read_bytes", "dram_write_bytes") for r in runs)
    found = {r: _floor(facts, r) for r in runs}
    wrong = next((r for r in runs if not found[r].inside), None)
    run = wrong or runs[0]
    at = found[run]
    kept = f"the rest still in L2 ({size(l2)})" if at.write < at.written else "with lines that were dirty before"
    operands = "Q + K + V is" if facts.direction == "forward" else "what its launches take is"
    whose = "" if wrong else _judge(everyone, run, "DRAM counters")
    said = (f"{whose}{run.config.implementation} reads {size(at.read)} where {operands} {size(at.must)} "
            f"({digits(at.ratio)} ×), and writes {size(at.write)} of {size(at.written)}, {kept}")
    others = ", ".join(f"{r.config.implementation} {digits(found[r].ratio)} ×{found[r].cause}" for r in runs
                       if r is not run)
    beside = f" Others read: {others}." if others else ""
    if wrong:
        return Outcome(FAILS, f"{said}: outside what is predicted, reads {between(at.low, at.high)}.", at.ratio,
                       "× compulsory reads", inputs, kind="measured and predicted")
    if abs(at.ratio - 1) <= FLOOR_TOLERANCE or (not facts.flushed and at.ratio < 1):
        return Outcome(HOLDS, f"{said}.{beside}", at.ratio, "× compulsory reads", inputs, kind="measured and predicted")
    return cannot_tell(
        f"a shape whose operands fit in half of the L2 ({size(l2 / model.L2_COPIES)}), which may hold a line for each "
        "of its two partitions.", inputs=inputs, value=at.ratio, unit="× compulsory reads",
        sentence=f"{said}. Some rows are fetched again: {between(at.low, at.high)} predicted.{beside}")


@dataclass(frozen=True, slots=True)
class Floor:
    """DRAM bytes of a fused run beside its floor; inside: reads and writes are what the model allows, within 2%."""

    read: float
    must: float
    low: float
    high: float
    write: float
    written: float
    inside: bool
    cause: str  # " (…)", why it reads more than the floor; "" where it does not

    @property
    def ratio(self) -> float:
        return self.read / self.must


def _floor(facts: Facts, run: Run) -> Floor:
    """A run whose launches have DRAM counters, on a GPU whose L2 size is known."""
    read, write = run.total("dram_read_bytes") or 0.0, run.total("dram_write_bytes") or 0.0
    stages = run.predicted.stages
    reads, writes = ([e for s in stages if (e := expected(facts, run, s, q))] for q in ("dram_read", "dram_write"))
    must, written = sum(e.predicted for e in reads), sum(e.predicted for e in writes)
    low, high = sum(e.low for e in reads), sum(e.high for e in reads)
    room = {q: sum(slack(facts, run, s, q, e.predicted) for s in stages if (e := expected(facts, run, s, q)))
            for q in ("dram_read", "dram_write")}
    room["dram_read"] = max(room["dram_read"], FLOOR_TOLERANCE * must)
    inside = (low - room["dram_read"] <= read <= high + room["dram_read"]
              and sum(e.low for e in writes) <= write <= sum(e.high for e in writes) + room["dram_write"])
    # several causes only where several stages are: the first stage reads Q, K and V
    named = [c for c, _ in reads[0].causes(read) if c != REST] if read > must * (1 + TOLERANCE) else []
    return Floor(read, must, low, high, write, written, inside, f" ({named[0]})" if named else "")


def memory_linear(facts: Facts, shape: AttentionShape) -> Outcome:
    """Fitted exponents of peak memory over N: flash 1, naive 2."""
    flash = facts.flash(shape)
    naive = facts.naive(shape)
    if flash is None or naive is None:
        return cannot_tell("peak memory of naive and flash over several N (timings, column peak_memory_bytes).")
    fits: dict[str, tuple[model.Slope, list[int]]] = {}
    for run in (flash, naive):
        points = [(r.shape.nq, m) for r in facts.series(run.config.implementation, shape)
                  if (m := r.timed("peak_memory_bytes"))]
        if len(points) < 3:
            here = f"; this source holds {len(points)}" if points else "; this source holds none"
            return cannot_tell(f"peak memory of {run.config.implementation} at three or more lengths N{here}.")
        slope = model.log_slope(*zip(*points))
        if slope is None:
            return cannot_tell(f"peak memory of {run.config.implementation} at different N.")
        fits[run.config.implementation] = (slope, [n for n, _ in points])
    (a, ns), (b, _) = fits[flash.config.implementation], fits[naive.config.implementation]
    # Flash may grow more slowly than N, where a constant part is large; naive must grow as N².
    good = a.value <= sum(LINEAR) and abs(b.value - QUADRATIC[0]) <= QUADRATIC[1]
    return Outcome(
        HOLDS if good else FAILS,
        f"Peak memory above the inputs grows as {_exponent(a)} for "
        f"{flash.config.implementation} and as {_exponent(b)} for "
        f"{naive.config.implementation}, N {min(ns)} to {max(ns)}.",
        a.value, "exponent of N", (f"timings ({flash.config.implementation}, {naive.config.implementation}): "
                                   "peak_memory_bytes",), kind="measured and derived")


def _exponent(slope: model.Slope) -> str:
    error = slope.error or 0.0
    return f"N^{slope.value:.3f} ± {f'{error:.3f}' if error >= 0.0005 else 'less than 0.001'}"
