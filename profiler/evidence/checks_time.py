"""Claims about time: speed, occupancy, which roof is near, short sequences, decode."""

from __future__ import annotations

from dataclasses import replace

from profiler.evidence.checks_bytes import too_small
from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, time
from profiler.evidence.facts import Facts, Run, roof_shares
from profiler.spec import AttentionShape

SHORT = 1024  # a sequence up to this is "short"
FEW = 16  # queries of a decode, at most
PROFIT = 1.2  # a speed-up below this is no profit
COMPUTE = ("Tensor Cores", "special functions")
ROOF_COLUMNS = ("dram_read_bytes", "dram_write_bytes", "l2_to_xbar_bytes", "tensor_flops", "special_ops")


def speedup(facts: Facts, shape: AttentionShape) -> Outcome:
    """Unprofiled medians: flash's 80th percentile below naive's 20th."""
    naive, flash = facts.naive(shape), facts.flash(shape)
    if not (naive and flash and naive.timed("median_ns") and flash.timed("median_ns")):
        return cannot_tell("unprofiled medians of naive and of a fused run on this shape (timings, median_ns).")
    a, b = naive.timed("median_ns"), flash.timed("median_ns")
    low, high = naive.timed("p20_ns") or a, naive.timed("p80_ns") or a
    apart = (flash.timed("p80_ns") or b) < low
    reverse = (flash.timed("p20_ns") or b) > high
    folded = facts.run("naive_folded", shape)
    best = f" Against the best unfused form: {digits(folded.timed('median_ns') / b)} ×." \
        if folded and folded is not naive and folded.timed("median_ns") else ""
    said = (f"{flash.config.implementation} takes {time(b)}, {naive.config.implementation} {time(a)}: "
            f"{digits(a / b)} ×.")
    if not apart and not reverse:
        return cannot_tell("more repetitions: the spreads overlap.", sentence=said, value=a / b, unit="×")
    return Outcome(HOLDS if apart else FAILS, said + best, a / b, "×", ("timings: median_ns, p20_ns, p80_ns",))


def occupancy_not_speed(facts: Facts, shape: AttentionShape) -> Outcome:
    """The faster implementation has the lower achieved occupancy."""
    naive, flash = facts.naive(shape), facts.flash(shape)
    a = naive.weighted("achieved_occupancy_pct") if naive else None
    b = flash.weighted("achieved_occupancy_pct") if flash else None
    if naive is None or flash is None or a is None or b is None:
        return cannot_tell("achieved_occupancy_pct of naive and of a fused launch (warps active).")
    t, u = naive.timed("median_ns"), flash.timed("median_ns")
    if not t or not u:
        return cannot_tell("unprofiled medians of both (timings, median_ns); profiled durations do not decide.")
    inputs = (naive.names("achieved_occupancy_pct"), flash.names("achieved_occupancy_pct"), "timings: median_ns")
    said = (f"{flash.config.implementation} runs at {digits(b)}% occupancy in {time(u)}, "
            f"{naive.config.implementation} at {digits(a)}% (weighted by time) in {time(t)}")
    if u < t and b < a:
        return Outcome(HOLDS, f"{said}: the faster one has the lower occupancy.", b / a, "× occupancy", inputs)
    return cannot_tell("a pair in which the faster one has the lower occupancy; here the order agrees.",
                       sentence=f"{said}.", inputs=inputs, value=b / a, unit="× occupancy")


def naive_memory_bound(facts: Facts, shape: AttentionShape) -> Outcome:
    """The nearest roof of naive is HBM, and flash stays further from HBM than naive."""
    naive, flash = facts.naive(shape), facts.flash(shape)
    a, b = (_shares(run) if run else {} for run in (naive, flash))
    if naive is None or flash is None or "HBM" not in b or not {"HBM", "Tensor Cores"} <= set(a):
        return cannot_tell("DRAM bytes, tensor FLOPs, a time and both peaks for naive and a fused implementation.")
    inputs = tuple(r.names(*ROOF_COLUMNS) for r in (naive, flash))
    said = (f"{_reached(naive, a)}; {flash.config.implementation} reaches {_percent(b['HBM'])} of the HBM roof"
            f"{_clocked(naive, flash)}")
    if small := too_small(facts, shape):
        return replace(small, sentence=f"{said}.", inputs=inputs)
    near = max(a, key=lambda k: a[k])
    return Outcome(HOLDS if near == "HBM" and b["HBM"] < a["HBM"] else FAILS, f"Nearest to naive is the {near} roof: "
                   f"{said}.", a["HBM"], "of the HBM roof", inputs, kind="derived")


def flash_compute_bound(facts: Facts, shape: AttentionShape) -> Outcome:
    """The nearest roof of the first fused implementation (ours) is one of computation; of the others it is told.

    Without that one's counters no other is judged in its place.
    """
    everyone = facts.fused(shape)
    runs = {run: shares for run in everyone if {"HBM", "Tensor Cores"} <= set(shares := _shares(run))}
    needs = "DRAM bytes, tensor FLOPs, a time and both peaks"
    if not runs:
        return cannot_tell(f"{needs} for a fused implementation.")
    near = {run: max(shares, key=lambda k: shares[k]) for run, shares in runs.items()}
    inputs = tuple(run.names(*ROOF_COLUMNS) for run in runs)
    first = everyone[0]
    beside = "; ".join(f"{near[run]} to {run.config.implementation} ({_percent(runs[run][near[run]])})"
                       for run in runs if run is not first)
    others = f" Nearest to the others: {beside}." if beside else ""
    if first not in runs:
        return cannot_tell(f"{needs} of {first.config.implementation}, of which the claim is.", inputs=inputs,
                           sentence=f"{first.config.implementation} was not counted.{others}")
    rows = first.config.parameters.get("block_m")
    why = f", for K and V come again for every {rows} query rows" if near[first] == "L2" and rows else ""
    said = (f"{first.config.implementation} is nearest to the {near[first]} roof{why}. {_reached(first, runs[first])}"
            f"{_clocked(*runs)}.{others}")
    if small := too_small(facts, shape):
        return replace(small, sentence=said, inputs=inputs)
    compute = max(runs[first][name] for name in COMPUTE if name in runs[first])
    return Outcome(HOLDS if near[first] in COMPUTE else FAILS, said, compute, "of its roof", inputs, kind="derived")


def _shares(run: Run) -> dict[str, float]:
    """Shares of the roofs by the unprofiled median where there is one; the work is what the counters say."""
    return roof_shares(run.rows, run.timed("median_ns"))


def _clocked(*runs: Run) -> str:
    return ", by unprofiled medians" if all(run.timed("median_ns") for run in runs) else ", by times under the profiler"


def _reached(run: Run, shares: dict[str, float]) -> str:
    listed = ", ".join(f"{_percent(share)} of the {name} roof" for name, share in shares.items() if share)
    return f"{run.config.implementation} reaches {listed}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.095 else f"{100 * share:.1f}%"


def small_n_no_profit(facts: Facts, shape: AttentionShape) -> Outcome:
    """At the shortest recorded sequence of the same head size and mask: no speed-up to speak of."""
    flash = facts.flash(shape)
    series = facts.series(flash.config.implementation, shape) if flash else []
    pairs = [(r.shape.nq, n.timed("median_ns") / r.timed("median_ns")) for r in series
             if (n := facts.naive(r.shape)) and n.timed("median_ns") and r.timed("median_ns")]
    if len(pairs) < 2 or pairs[0][0] > SHORT:
        return cannot_tell(f"unprofiled medians of naive and flash at N up to {SHORT} and at a longer N.")
    (short, at_short), (long, at_long) = pairs[0], max(pairs, key=lambda pair: pair[1])
    no_profit = at_short < PROFIT
    said = f"No profit: at N {short} " if no_profit else f"Short sequences profit too: at N {short} "
    said += (f"flash is {digits(at_short)} × as fast as naive"
             + (f", the most at N {long}: {digits(at_long)} ×." if long != short else ", the most of all lengths."))
    return Outcome(HOLDS if no_profit else FAILS, said, at_short, "×", ("timings: median_ns",), kind="derived")


def decode_memory_bound(facts: Facts, shape: AttentionShape) -> Outcome:
    """Few queries against a long cache: K and V set the time, HBM is the nearest roof of the fused form."""
    if not (shape.nq <= FEW and shape.nk >= 64 * max(1, shape.nq)):
        return cannot_tell("decode runs (1 to 16 queries against a long key/value cache); profile the decode suite.")
    run = facts.flash(shape)
    shares = _shares(run) if run else {}
    if run is None or not {"HBM", "Tensor Cores"} <= set(shares):
        whose = run.config.implementation if run else "a fused implementation"
        return cannot_tell(f"DRAM bytes, tensor FLOPs, a time and the peaks of {whose} on a decode shape.")
    near = max(shares, key=lambda k: shares[k])
    return Outcome(HOLDS if near == "HBM" else FAILS, f"With {shape.nq} quer{'y' if shape.nq == 1 else 'ies'} "
                   f"against {shape.nk:,} keys {_reached(run, shares)}{_clocked(run)}.", shares["HBM"],
                   "of the HBM roof", (run.names(*ROOF_COLUMNS),), kind="derived")
