"""The Hopper kernels that the registry does not name: float8, and the backward; bound by their own functions.

A backward's parameter ``deterministic`` asks for the form whose sums have one order. What the registry names goes
through it, here as everywhere.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from profiler.spec import RunConfig
from profiler.workload.implementations import Bound, Refused, Stage

NAME = "hopper"


def apart(config: RunConfig) -> bool:
    """Whether ``config`` is one that the registry does not take under this name."""
    from kernels import registry

    info = next((info for info in registry.KERNELS if info.name == NAME), None)
    if config.implementation != NAME or info is None:
        return False
    return config.direction not in info.directions or (config.shape.dtype == "fp8"
                                                       and "float8_e4m3fn" not in info.dtypes)


def bind(config: RunConfig, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Bound:
    """As `profiler.workload.implementations.bind`; q (B, H, Nq, D), k and v (B, Hk, Nk, D)."""
    unknown = set(config.parameters) - ({"deterministic"} if config.direction == "backward" else set())
    if unknown:
        raise Refused(f"{NAME} has no tuning parameters here, got {', '.join(sorted(unknown))}")
    if config.direction == "forward":
        from kernels import hopper_fp8_plan as plan

        if reason := plan.supports(q, k, v, scale=config.shape.head_dim**-0.5):
            raise Refused(f"{NAME} in float8: {reason}")

        def forward(stage: Stage) -> Any:
            with stage("attention"):
                return plan.forward(q, k, v, causal=causal, return_lse=False)[0]

        return Bound(forward, {})
    if config.shape.dtype == "fp8":
        raise Refused(f"{NAME} has no backward in float8")
    from kernels import flash_attention, hopper_backward_plan

    out, lse = flash_attention(q, k, v, causal=causal, return_lse=True, implementation="flash2")
    deterministic = bool(config.parameters.get("deterministic"))
    call = partial(hopper_backward_plan.backward, dout, q, k, v, out, lse, scale=config.shape.head_dim**-0.5,
                   causal=causal, deterministic=deterministic)
    return Bound(lambda stage: call(stage=stage), {"deterministic": deterministic})
