"""Nsight Compute's own rules beside our findings: said only where they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from profiler.evidence.claim import digits
from profiler.metrics import RULE, RULE_SPEEDUP

WAITING = ("latency", "small grid", "low utilization")  # titles of its bottleneck rule that mean: no roof binds
OCCUPANCY_RULES = ("TheoreticalOccupancy", "AchievedOccupancy")


def occupancy(values: Mapping[str, str], most: float | None) -> str:
    """What its occupancy rules hope for; where the report ran none, what the rule makes of the possible occupancy."""
    for name in OCCUPANCY_RULES:
        speedup = values.get(RULE_SPEEDUP.format(name))
        if speedup:
            return f"Nsight Compute's rule for it estimates {digits(float(speedup))}% of speed from more occupancy."
    if any(RULE.format(name) in values for name in OCCUPANCY_RULES) or most is None or most >= 100:
        return ""
    return f"Nsight Compute's occupancy rule takes the missing {digits(100 - most)}% as the speed-up to be had."


def bottleneck(values: Mapping[str, str], binds: bool | None = None) -> str:
    """Its bottleneck rule, where it sees waiting and we a roof, or the other way round; binds None: we cannot tell."""
    title = values.get(RULE.format("SOLBottleneck"), "")
    waits = any(word in title.lower() for word in WAITING)
    return f"Nsight Compute's bottleneck rule says “{title}”." if title and binds in (None, waits) else ""


def float_roofline(values: Mapping[str, str]) -> str:
    """Its floating-point roofline knows fp32 and fp64 only: of a kernel on the Tensor Cores it sees next to nothing."""
    return "Nsight Compute's floating-point roofline leaves Tensor Core work out: it draws fp32 and fp64 only." \
        if RULE.format("SOLFPRoofline") in values else ""
