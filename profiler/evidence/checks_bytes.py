"""Claims about bytes: S and P never in HBM, the passes of naive, the compulsory floor, the theorem, linear memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from profiler import model
from profiler.evidence.allowance import QUANTITIES, REST, expected, slack
from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, size, time
from profiler.evidence.facts import FAR, MATRICES, Facts, Run
from profiler.spec import AttentionShape

TOLERANCE = 0.02  # beyond it a difference is named
FLOOR_TOLERANCE = 0.02  # of compulsory reads
PASS_MARGIN = 0.5  # N×N matrices: what is read beside the passes must not make one pass more or less
PASS_SHARE = 0.4  # of one N×N matrix: a causal kernel that stores S writes half of it; less than this is no pass
L2_TO_SM_TOLERANCE = 0.01
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
    """Counted DRAM bytes of each fused run beyond its own tensors stay under a tenth of one N×N matrix."""
    moved = {run: bytes_ for run in facts.fused(shape) if (bytes_ := run.dram_bytes()) is not None}
    l2 = facts.l2_size_bytes
    if not moved:
        return cannot_tell("a fused launch of this shape with DRAM counters (dram_read_bytes, dram_write_bytes).")
    small = too_small(facts, shape)
    if small or l2 is None:
        return small or cannot_tell(NO_L2)
    extra = {run: max(0.0, bytes_ - run.predicted.dram_bytes - (0 if facts.flushed else l2))
             for run, bytes_ in moved.items()}
    inputs = tuple(run.names("dram_read_bytes", "dram_write_bytes") for run in moved)
    bad, first = max(extra, key=lambda run: extra[run]), next(iter(moved))
    if extra[bad] >= PASS_SHARE * shape.matrix_bytes:
        launch = max(bad.rows, key=lambda row: row["dram_read_bytes"] + row["dram_write_bytes"])
        return Outcome(
            FAILS, f"Launch {launch['launch']} ({_short(launch['kernel'])}, {bad.config.implementation}) moved "
            f"{size(extra[bad])} through HBM beyond its own tensors: {digits(extra[bad] / shape.matrix_bytes)} of an "
            f"N×N matrix of {size(shape.matrix_bytes)}.", extra[bad] / shape.matrix_bytes, "N×N matrices", inputs,
            kind="derived")
    share = extra[first] / shape.matrix_bytes
    return Outcome(
        HOLDS, f"{first.config.implementation} moved {size(moved[first])} through HBM where one N×N matrix is "
        f"{size(shape.matrix_bytes)} ({digits(shape.matrix_bytes / l2)} × L2): neither S nor P was "
        f"written or read there. Beyond its own tensors it moved {digits(100 * share)}% of one matrix.",
        share, "N×N matrices", inputs, kind="derived")


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
    runs = [r for r in facts.fused(shape) if r.dram_bytes() is not None]
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
    said = (f"{run.config.implementation} reads {size(at.read)} where {operands} {size(at.must)} ({digits(at.ratio)} "
            f"×), and writes {size(at.write)} of {size(at.written)}, {kept}")
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


def theorem_l2_to_sm(facts: Facts, shape: AttentionShape) -> Outcome:
    """Bytes from L2 to the SMs equal Q + Σ over query blocks of the K and V rows they visit (within 1%)."""
    run = next((r for r in facts.fused(shape) if r.predicted.level_bytes("l2_to_sm") is not None), None)
    predicted = run.predicted.level_bytes("l2_to_sm") if run else None
    if run is None or not predicted:
        return cannot_tell("the tile sizes (parameters block_m, block_n) of a fused launch: the bytes from L2 to the "
                           "SMs follow from them.")
    measured = run.total("l2_to_sm_bytes")
    if measured is None:
        return cannot_tell("l2_to_sm_bytes of the fused launch (bytes that arrived at the SMs from L2).")
    once = sum(s.dram_read_bytes for s in run.predicted.stages)
    if predicted < 2 * once:
        return cannot_tell("more than one block of queries: with one, K and V cross once at every level.")
    off = measured / predicted - 1
    must, p, crossed = run.predicted.compulsory_bytes, run.config.parameters, run.dram_bytes()
    blocks = f"With {p['block_m']} query rows a block, " if "block_m" in p else ""
    hbm = f"Through HBM went {size(crossed)}, where inputs and results are {size(must)}" if crossed is not None else \
        f"Inputs and results are {size(must)}; what crossed HBM was not counted"
    return Outcome(
        HOLDS if abs(off) <= L2_TO_SM_TOLERANCE else FAILS,
        f"{blocks}{size(measured)} crossed from L2 to the SMs; predicted "
        f"{size(predicted)} ({100 * off:+.2f}%). {hbm}: the N²·d²/M of the theorem shows between L2 and the SMs.",
        100 * off, "%", (run.names("l2_to_sm_bytes", "parameters"),), kind="measured and predicted")


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
            return cannot_tell(f"peak memory of {run.config.implementation} at three N or more, not {len(points)}.")
        slope = model.log_slope(*zip(*points))
        if slope is None:
            return cannot_tell(f"peak memory of {run.config.implementation} at different N.")
        fits[run.config.implementation] = (slope, [n for n, _ in points])
    (a, ns), (b, _) = fits[flash.config.implementation], fits[naive.config.implementation]
    # Flash may grow more slowly than N, where a constant part is large; naive must grow as N².
    good = a.value <= sum(LINEAR) and abs(b.value - QUADRATIC[0]) <= QUADRATIC[1]
    return Outcome(
        HOLDS if good else FAILS,
        f"Peak memory above the inputs grows as N^{a.value:.2f} ± {a.error or 0:.2f} for "
        f"{flash.config.implementation} and as N^{b.value:.2f} ± {b.error or 0:.2f} for "
        f"{naive.config.implementation}, N {min(ns)} to {max(ns)}.",
        a.value, "exponent of N", (f"timings ({flash.config.implementation}, {naive.config.implementation}): "
                                   "peak_memory_bytes",), kind="measured and derived")


def block_size_raises_intensity(facts: Facts, shape: AttentionShape) -> Outcome:
    """More query rows a block: fewer bytes from L2 to the SMs, until time stops following."""
    by_rows: dict[int, tuple[Run, float]] = {}
    for r in facts.runs:
        rows, read = r.config.parameters.get("block_m"), r.total("l2_to_sm_bytes")
        if r.shape == shape and r.config.direction == "forward" and rows and read is not None:
            best = by_rows.get(rows)
            if best is None or (r.timed("median_ns") or NEVER) < (best[0].timed("median_ns") or NEVER):
                by_rows[rows] = r, read
    if len(by_rows) < 2:
        return cannot_tell("one shape with two or more block sizes (block_m), counted; profile the tuning suite.")
    ordered, moved = zip(*(by_rows[rows] for rows in sorted(by_rows)))
    listed = "; ".join(f"{rows} rows {size(m)}" + (f" in {time(t)}" if (t := r.timed("median_ns")) else "")
                       for rows, m, r in zip(sorted(by_rows), moved, ordered))
    falls = all(b < a for a, b in pairwise(moved))
    return Outcome(HOLDS if falls else FAILS, f"From L2 to the SMs: {listed}.", moved[0] / moved[-1], "× fewer bytes",
                   tuple(r.names("l2_to_sm_bytes") for r in ordered), kind="measured")

