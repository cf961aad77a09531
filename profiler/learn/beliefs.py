"""Five misconceptions, each with what the loaded data says of it: checked claims, and two numbers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler.bundle import Bundle
from profiler.model import log_slope

# misconception -> ids of the claims of profiler.evidence that speak of it
CLAIMS: Mapping[str, tuple[str, ...]] = {
    "linear": ("same_flops", "memory_linear"),
    "approximate": ("same_result",),
    "no_bottleneck": ("special_functions_bind_small_d", "decode_memory_bound"),
    "triton_equals_cuda": (),
    "must_store": ("no_s_p_in_hbm", "theorem_l2_to_sm"),
}
REFUTED, CONFIRMED, UNKNOWN = "refuted", "confirmed", "unknown"
LIBRARIES = ("sdpa_cudnn", "sdpa_flash", "fa3", "fa4")
SHORTEST = 2048  # time over N is taken from here on: below it, launching weighs more than computing


@dataclass(frozen=True, slots=True)
class Finding:
    """What the data says of a misconception by a number of its own. values: for the sentence; empty for unknown."""

    verdict: str
    values: Mapping[str, Any] = field(default_factory=dict)


def work_over_n(bundle: Bundle) -> Finding:
    """The exponent of flash's counted tensor FLOPs over N (full mask, forward): 1 if attention had become linear."""
    rows = bundle.launches
    rows = rows[rows["implementation"].eq("flash2") & rows["mask"].eq("full") & rows["direction"].eq("forward")
                & rows["tensor_flops"].gt(0)].dropna(subset=["nq", "nk"])
    return _growth(rows[rows["nq"] == rows["nk"]], "tensor_flops", 0)


def time_over_n(bundle: Bundle) -> Finding:
    """The exponent of flash's unprofiled median time over N, from SHORTEST on."""
    rows = bundle.timings
    rows = rows[rows["implementation"].eq("flash2") & rows["mask"].eq("full") & rows["direction"].eq("forward")
                & rows["median_ns"].gt(0)].dropna(subset=["nq", "nk"])
    return _growth(rows[rows["nq"] == rows["nk"]], "median_ns", SHORTEST)


def _growth(rows: Any, column: str, shortest: int) -> Finding:
    """The slope of the group (batch, heads, D, dtype) with most lengths; refuted where it is above 1.5."""
    best = None
    for _, group in rows[rows["nq"] >= shortest].groupby(["batch", "heads", "head_dim", "dtype"]):
        least = group.groupby("nq")[column].min()
        if len(least) >= 2 and (best is None or len(least) > len(best[0])):
            best = least, group.iloc[0]
    if best is None:
        return Finding(UNKNOWN)
    least, first = best
    slope = log_slope([float(n) for n in least.index], [float(y) for y in least])
    assert slope is not None  # two different lengths
    return Finding(REFUTED if slope.value > 1.5 else CONFIRMED, {
        "slope": slope.value, "low": int(least.index[0]), "high": int(least.index[-1]),
        "first": float(least.iloc[0]), "last": float(least.iloc[-1]), "d": int(first["head_dim"])})


def triton_against_cuda(bundle: Bundle) -> Finding:
    """Our Triton kernel's unprofiled median against the fastest library kernel, over all shapes both ran."""
    rows = bundle.timings
    rows = rows[rows["median_ns"].gt(0) & rows["direction"].eq("forward")]
    key = ["batch", "heads", "kv_heads", "nq", "nk", "head_dim", "dtype", "mask"]
    ours = rows[rows["implementation"].eq("flash2")].groupby(key)["median_ns"].min()
    theirs = rows[rows["implementation"].isin(LIBRARIES)].groupby(key)["median_ns"].min()
    both = (ours / theirs).dropna()
    if both.empty:
        return Finding(UNKNOWN)
    slower = int((both > 1.03).sum())
    at = both.idxmax()
    return Finding(REFUTED if slower else CONFIRMED, {
        "shapes": len(both), "slower": slower, "median": float(both.median()), "least": float(both.min()),
        "most": float(both.max()), "n": int(at[3]), "d": int(at[5]), "mask": str(at[7])})


OWN = {"linear": work_over_n, "no_bottleneck": time_over_n, "triton_equals_cuda": triton_against_cuda}
