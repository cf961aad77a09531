"""The Hopper kernel that the registry does not name: the forward in float8, bound by its own functions."""

from __future__ import annotations

from typing import Any

from profiler.spec import RunConfig
from profiler.workload.implementations import Bound, Refused, Stage

NAME = "hopper"


def apart(config: RunConfig) -> bool:
    """Whether ``config`` is one that the registry does not take under this name."""
    return config.implementation == NAME and config.shape.dtype == "fp8"


def bind(config: RunConfig, q: Any, k: Any, v: Any, causal: bool) -> Bound:
    """As `profiler.workload.implementations.bind`; q (B, H, Nq, D), k and v (B, Hk, Nk, D)."""
    if config.parameters:
        raise Refused(f"{NAME} has no tuning parameters in float8, got {', '.join(sorted(config.parameters))}")
    if config.direction != "forward":
        raise Refused(f"{NAME} has no backward in float8")
    from kernels import hopper_fp8_plan as plan

    if reason := plan.supports(q, k, v, scale=config.shape.head_dim**-0.5):
        raise Refused(f"{NAME} in float8: {reason}")

    def forward(stage: Stage) -> Any:
        with stage("attention"):
            return plan.forward(q, k, v, causal=causal, return_lse=False)[0]

    return Bound(forward, {})
