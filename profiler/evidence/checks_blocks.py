"""Claims about blocks of query rows: the theorem's bytes between L2 and the SMs, and what a larger block buys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, size, time
from profiler.evidence.facts import Facts, Run, roof_shares
from profiler.spec import AttentionShape

L2_TO_SM_TOLERANCE = 0.01
NEVER = float("inf")


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


def block_size_raises_intensity(facts: Facts, shape: AttentionShape) -> Outcome:
    """More query rows a block: fewer bytes from L2 to the SMs with every step, until another limit sets the time."""
    found: dict[str, dict[int, tuple[Run, float]]] = {}  # of one implementation: another walks in another order
    for r in facts.of(shape):
        by_rows = found.setdefault(r.config.implementation, {})
        rows, read = r.config.parameters.get("block_m"), r.total("l2_to_sm_bytes")
        if r.config.direction == "forward" and rows and read is not None:
            best = by_rows.get(rows)
            if best is None or (r.timed("median_ns") or NEVER) < (best[0].timed("median_ns") or NEVER):
                by_rows[rows] = r, read
    by_rows = max(found.values(), key=len, default={})
    if len(by_rows) < 2:
        return cannot_tell("one shape with two or more block sizes (block_m), counted; profile the tuning suite.")
    ordered, moved = zip(*(by_rows[rows] for rows in sorted(by_rows)))
    listed = "; ".join(f"{rows} rows {size(m)}" + (f" in {time(t)}" if (t := r.timed("median_ns")) else "")
                       for rows, m, r in zip(sorted(by_rows), moved, ordered))
    falls = all(b < a for a, b in pairwise(moved))
    return Outcome(HOLDS if falls else FAILS, f"From L2 to the SMs: {listed}.{_until(ordered)}", moved[0] / moved[-1],
                   "× fewer bytes", tuple(r.names("l2_to_sm_bytes") for r in ordered), kind="measured")


def _until(ordered: Sequence[Run]) -> str:
    """Where the time stops following the bytes, and what is near or spent there; runs by rows of a block."""
    if not all(run.timed("median_ns") for run in ordered):
        return ""
    best = min(ordered, key=lambda run: run.timed("median_ns"))
    shares = roof_shares(best.rows, best.timed("median_ns"))
    near = max(shares, key=lambda name: shares[name], default="")
    rows = best.config.parameters["block_m"]
    said = f" At {rows} rows the {near} roof is nearest ({100 * shares[near]:.0f}%)" if near else f" {rows} rows"
    if best is ordered[-1]:
        return f"{said}, and no larger block was tried."
    last = ordered[-1]
    a, b = best.weighted("theoretical_occupancy_pct"), last.weighted("theoretical_occupancy_pct")
    cost = [f"{spilled:,.0f} spill requests"] if (spilled := last.total("spill_requests")) else []
    cost += [f"room for {digits(b)}% of an SM's warps instead of {digits(a)}%"] if a and b and b < a else []
    waves = [r.weighted("waves_per_sm") for r in (best, last)]
    if waves[0] and waves[1] and waves[1] < 0.75 * waves[0]:
        cost.append(f"{digits(waves[1])} waves of blocks instead of {digits(waves[0])}")
    return (f"{said}: it is the fastest. {last.config.parameters['block_m']} rows move less still and take longer"
            f"{', with ' + ' and '.join(cost) if cost else ''}.")
