"""Claims about work and results: same result, same FLOPs, causal skips half, special functions, recomputation."""

from __future__ import annotations

from dataclasses import replace

from profiler.evidence.claim import FAILS, HOLDS, Outcome, cannot_tell, digits, flops, time
from profiler.evidence.facts import Facts, Run
from profiler.model.roofs import SPECIAL_OPS_PER_CYCLE
from profiler.spec import AttentionShape

ERROR_FLOOR = {"fp64": 1e-12, "fp32": 1e-5, "tf32": 5e-4, "fp16": 5e-4, "bf16": 4e-3, "fp8": 6e-2}
ERROR_FACTOR = 2.0
FLOP_TOLERANCE = 0.001
HALF = 0.6  # a causal run that still computes more than this share skips too few blocks to speak of half


def allowed_error(run: Run) -> float:
    """Relative error against float64 that a run may have: twice eager PyTorch's in its dtype, or the dtype's floor."""
    floor, eager = ERROR_FLOOR[run.shape.dtype], run.timed("error_eager_relative")
    return max(floor, ERROR_FACTOR * eager) if eager is not None else floor


def same_result(facts: Facts, shape: AttentionShape) -> Outcome:
    """Error against float64 at most twice eager PyTorch's in the same dtype, or under the dtype's own floor."""
    runs = [r for r in facts.fused(shape) if r.timed("error_relative") is not None]
    if not runs:
        return cannot_tell("error of a fused run against float64 (timings, error_relative): `python -m profiler run`.")
    inputs = ("timings: error_relative, error_eager_relative",)
    limits = {r.config.implementation: allowed_error(r) for r in runs}
    worst = max(runs, key=lambda r: r.timed("error_relative") / limits[r.config.implementation])
    bad = worst.timed("error_relative") > limits[worst.config.implementation]
    run = worst if bad else runs[0]
    eager, error, name = run.timed("error_eager_relative"), run.timed("error_relative"), run.config.implementation
    beside = f"eager PyTorch in {shape.dtype}: {eager:.2e}" if eager is not None else "eager PyTorch was not measured"
    unjudged = ", ".join(r.config.implementation for r in facts.fused(shape) if r not in runs)
    whose = f" Not compared: {unjudged}." if unjudged else ""
    return Outcome(
        FAILS if bad else HOLDS, f"{name} differs from float64 attention by {error:.2e} (relative; {beside}; allowed "
        f"{limits[name]:.2e}; rows compared: {run.timed('error_rows') or 'not said'}).{whose}", error, "relative",
        inputs)


def same_flops(facts: Facts, shape: AttentionShape) -> Outcome:
    """Tensor Core FLOPs of naive's two matmuls and of flash: equal for a full mask, explained for others."""
    if facts.direction == "backward":
        return cannot_tell("a forward: a backward that recomputes does more FLOPs, and says so under recomputation.")
    naive, flash = facts.naive(shape), facts.flash(shape)
    if naive is None or flash is None:
        return cannot_tell("naive and a fused implementation on this shape.")
    a, b = naive.total("tensor_flops"), flash.total("tensor_flops")
    if not a or not b:
        return cannot_tell("tensor_flops of both (Tensor Core operation counters).")
    inputs = (naive.names("tensor_flops"), flash.names("tensor_flops"))
    visible, computed = flash.predicted.flops_visible, flash.predicted.flops_computed
    ratio, name = b / a, flash.config.implementation
    said = f"naive counted {flops(a)}, {name} {flops(b)} ({ratio:.4f} ×); visible pairs need {flops(visible)}"
    if abs(ratio - 1) <= FLOP_TOLERANCE and visible >= a * (1 - FLOP_TOLERANCE):
        return Outcome(HOLDS, f"Same work: {said}.", ratio, "× naive", inputs)
    low, high = visible * (1 - FLOP_TOLERANCE), max(a, computed or 0) * (1 + FLOP_TOLERANCE)
    if shape.mask != "full" and low <= b <= high and ratio <= 1 + FLOP_TOLERANCE:
        return Outcome(HOLDS, f"Same mathematics: {said}; naive also computes the masked pairs, {name} skips "
                       "whole masked blocks.", ratio, "× naive", inputs, kind="measured and predicted")
    if computed and abs(b / computed - 1) <= FLOP_TOLERANCE:
        return Outcome(HOLDS, f"Same mathematics: {said}; {name} computes {flops(computed)} in whole tiles (padding).",
                       ratio, "× naive", inputs, kind="measured and predicted")
    return Outcome(FAILS, f"Different work: {said}.", ratio, "× naive", inputs)


def causal_skips_half(facts: Facts, shape: AttentionShape) -> Outcome:
    """A causal run computes about half of the pairs: blocks above the diagonal are skipped, not masked.

    Asked of a full shape, it looks at its causal sibling.
    """
    if shape.mask not in ("full", "causal"):
        return cannot_tell("a full or causal shape; this one has another mask.")
    causal = facts.flash(replace(shape, mask="causal"))
    full = facts.run(causal.config.implementation, replace(shape, mask="full")) if causal else None
    if causal is None or full is None:
        return cannot_tell("the same fused implementation with the full and with the causal mask.")
    a, b = full.total("tensor_flops"), causal.total("tensor_flops")
    if not a or not b:
        return cannot_tell("tensor_flops of both masks (Tensor Core operation counters).")
    inputs = (full.names("tensor_flops"), causal.names("tensor_flops"))
    share, visible = b / a, causal.predicted.flops_visible / full.predicted.flops_visible
    t_full, t_causal = full.timed("median_ns"), causal.timed("median_ns")
    speed = f" It takes {time(t_causal)}, with the full mask {time(t_full)}: {100 * t_causal / t_full:.0f}%." \
        if t_full and t_causal else ""
    said = (f"With a causal mask {causal.config.implementation} computes {100 * share:.1f}% of the full mask's FLOPs, "
            f"where {100 * visible:.1f}% of the pairs are visible.")
    if share < visible * (1 - 0.01):
        return Outcome(FAILS, said + " That is less than the visible pairs need.", share, "of full", inputs)
    if share <= HALF:
        return Outcome(HOLDS, said + speed, share, "of full", inputs, kind="measured and derived")
    if visible > HALF or (causal.predicted.flops_computed or 0) > HALF * (full.predicted.flops_computed or 1):
        return cannot_tell("a longer sequence: few blocks lie above the diagonal here.", sentence=said + speed,
                           inputs=inputs, value=share, unit="of full")
    return Outcome(FAILS, said + speed, share, "of full", inputs)


def special_functions_bind_small_d(facts: Facts, shape: AttentionShape) -> Outcome:
    """Time that the exponentials ask for at 16 a cycle and SM, against the time of the matmuls at the dense peak."""
    run = facts.flash(shape)
    needs = ("special_ops", "tensor_flops")
    if facts.direction == "backward":
        return cannot_tell("a forward: a backward has five to seven matmuls for each exponential, not two.")
    if run is None or not run.rows or any(not run.total(c) for c in needs):
        return cannot_tell("special_ops and tensor_flops of a fused launch (special-function, Tensor Core counters).")
    row = max(run.rows, key=lambda r: r["tensor_flops"] or 0)
    peak, sms, clock = row["tensor_peak_flops_per_s"], row["sm_count"], row["sm_clock_hz"]
    if not (peak and sms and clock):
        return cannot_tell("the dense tensor peak, the number of SMs and the SM clock of the launch.")
    special = run.total("special_ops") / (SPECIAL_OPS_PER_CYCLE * sms * clock)
    tensor = run.total("tensor_flops") / peak
    tie = peak / (4 * SPECIAL_OPS_PER_CYCLE * sms * clock)
    ratio = special / tensor
    said = (f"At D {shape.head_dim} the exponentials ask for {time(special * 1e9)} and the matmuls for "
            f"{time(tensor * 1e9)} ({digits(ratio)} ×); the two roofs meet at D {tie:.3g}")
    inputs = (run.names(*needs, "tensor_peak_flops_per_s", "sm_clock_hz"),)
    if shape.head_dim > 1.05 * tie:
        return cannot_tell(f"a head size of at most {tie:.3g}; above it the matmuls bind.", sentence=f"{said}.",
                           inputs=inputs, value=ratio, unit="× tensor time")
    return Outcome(HOLDS if ratio >= 0.95 else FAILS, f"{said}.", ratio, "× tensor time", inputs, kind="derived")


def recomputation_pays(facts: Facts, shape: AttentionShape) -> Outcome:
    """Backward: flash does more FLOPs (it computes S again) in less time."""
    naive, flash = facts.naive(shape, "backward"), facts.flash(shape, "backward")
    if naive is None or flash is None:
        return cannot_tell("backward runs of naive and of a fused implementation; profile the backward suite.")
    a, b = naive.total("tensor_flops"), flash.total("tensor_flops")
    t, u = _median(naive), _median(flash)
    if not a or not b or not t or not u:
        return cannot_tell("tensor_flops and unprofiled medians of both backward runs.")
    inputs = (naive.names("tensor_flops"), flash.names("tensor_flops"), "timings: median_ns")
    said = f"Backward: {flops(b)} against {flops(a)} ({digits(b / a)} ×), in {time(u)} against {time(t)}"
    more = b > a * (1 + FLOP_TOLERANCE)
    if not more and shape.mask != "full":
        return cannot_tell("a full mask: here flash also skips masked blocks, so its FLOPs are fewer.",
                           sentence=f"{said}.", inputs=inputs, value=t / u, unit="× faster")
    return Outcome(HOLDS if more and u < t else FAILS, f"{said}.", t / u, "× faster", inputs)


def _median(run: Run) -> float | None:
    return run.timed("median_ns")
