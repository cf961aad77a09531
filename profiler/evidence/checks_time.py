"""Claims about time: speed, occupancy, which roof is near, short sequences, decode."""

from __future__ import annotations

from dataclasses import replace

from profiler.evidence.checks_bytes import too_small
from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, time
from profiler.evidence.facts import Facts, roof_shares
from profiler.spec import AttentionShape

SHORT = 1024  # a sequence up to this is "short"
PROFIT = 1.2  # a speed-up below this is no profit


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


def naive_memory_bound_flash_compute_bound(facts: Facts, shape: AttentionShape) -> Outcome:
    """Which roof is nearest: HBM for naive, Tensor Cores or special functions for flash."""
    naive, flash = facts.naive(shape), facts.flash(shape)
    a, b = (roof_shares(run.rows) if run else {} for run in (naive, flash))
    if naive is None or flash is None or not all({"HBM", "Tensor Cores"} <= set(shares) for shares in (a, b)):
        return cannot_tell("DRAM bytes, tensor FLOPs, duration and both peaks for naive and a fused launch.")
    inputs = tuple(r.names("dram_read_bytes", "dram_write_bytes", "tensor_flops", "special_ops", "duration_ns")
                   for r in (naive, flash))
    near_a, near_b = max(a, key=lambda k: a[k]), max(b, key=lambda k: b[k])

    def say(name: str, shares: dict[str, float]) -> str:
        return f"{name} reaches " + ", ".join(f"{100 * v:.0f}% of the {k} roof" for k, v in shares.items())

    said = f"{say(naive.config.implementation, a)}; {say(flash.config.implementation, b)} (under the profiler)."
    if small := too_small(facts, shape):
        return replace(small, sentence=said, inputs=inputs)
    compute = max(b["Tensor Cores"], b.get("special functions", 0.0))
    good = near_a == "HBM" and compute > b["HBM"] and near_b in ("Tensor Cores", "special functions")
    return Outcome(HOLDS if good else FAILS, f"Nearest roof: {near_a} for naive, {near_b} for flash. {said}", compute,
                   "of its roof", inputs, kind="derived")


def small_n_no_profit(facts: Facts, shape: AttentionShape) -> Outcome:
    """At the shortest recorded sequence of the same head size and mask: no speed-up to speak of."""
    flash = facts.flash(shape)
    series = facts.series(flash.config.implementation, shape) if flash else []
    pairs = [(r.shape.nq, n.timed("median_ns") / r.timed("median_ns")) for r in series
             if (n := facts.naive(r.shape)) and n.timed("median_ns") and r.timed("median_ns")]
    if len(pairs) < 2 or pairs[0][0] > SHORT:
        return cannot_tell(f"unprofiled medians of naive and flash at N up to {SHORT} and at a longer N.")
    (short, at_short), (long, at_long) = pairs[0], pairs[-1]
    said = f"At N {short} flash is {digits(at_short)} × as fast as naive, at N {long} {digits(at_long)} ×."
    return Outcome(HOLDS if at_short < PROFIT else FAILS, said, at_short, "×", ("timings: median_ns",), kind="derived")


def decode_memory_bound(facts: Facts, shape: AttentionShape) -> Outcome:
    """Few queries against a long cache: K and V set the time, HBM is the nearest roof."""
    runs = [r for r in facts.runs if r.shape.nq <= 16 and r.shape.nk >= 64 * max(1, r.shape.nq) and r.shape == shape]
    if not runs:
        return cannot_tell("decode runs (1 to 16 queries against a long key/value cache); profile the decode suite.")
    for run in runs:
        shares = roof_shares(run.rows)
        if {"HBM", "Tensor Cores"} <= set(shares):
            near = max(shares, key=lambda k: shares[k])
            listed = ", ".join(f"{100 * v:.0f}% of the {k} roof" for k, v in shares.items())
            return Outcome(HOLDS if near == "HBM" else FAILS, f"{run.config.implementation} decode reaches {listed}.",
                           shares["HBM"], "of the HBM roof", (run.names("dram_read_bytes", "duration_ns"),),
                           kind="derived")
    return cannot_tell("DRAM bytes, tensor FLOPs, duration and peaks of a decode launch.")
