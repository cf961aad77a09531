"""One call of a configuration inside its NVTX ranges, for ncu to select: config_id outside, the stage inside."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from profiler.spec import RunConfig, parameters_text
from profiler.workload import inputs
from profiler.workload.implementations import bind, no_stage
from profiler.workload.timing import is_sticky, reason

DOMAIN = "flashscope"
# Calls before the range opens: compilation, autotuning and library set-up stay outside, and so does the recording of a
# CUDA graph, which torch.compile does in its third call.
WARM_UP = 3


class Ranges:
    """Push/pop ranges of the domain; remembers the stages that were entered."""

    def __init__(self) -> None:
        import nvtx

        self._nvtx = nvtx
        self.stages: list[str] = []

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        self._nvtx.push_range(message=name, domain=DOMAIN)
        try:
            yield
        finally:
            self._nvtx.pop_range(domain=DOMAIN)

    def stage(self, name: str) -> contextlib.AbstractContextManager:
        if name not in self.stages:
            self.stages.append(name)
        return self.range(name)


def profile(config: RunConfig, *, device: str, seed: int) -> dict[str, Any]:
    """Warm up, then run once inside the ranges. Returns config_id, status, stages, parameters."""
    record: dict[str, Any] = {
        "config_id": config.config_id,
        "implementation": config.implementation,
        "stages": [],
        "parameters": parameters_text(config.parameters),
    }
    with warnings.catch_warnings(record=True) as heard, torch.no_grad():
        warnings.simplefilter("always")
        try:
            with graphs_replayed() as graphs:
                stages, parameters = once(config, device, seed)
            record.update(status="ok", stages=stages, parameters=parameters_text(parameters))
            if graphs:
                record["graphs"] = True
        except Exception as error:  # its reason is the result; the next configuration still runs
            record["status"] = reason(error, heard)
            if is_sticky(error):
                record["sticky"] = True
    if device == "cuda" and "sticky" not in record:
        torch.cuda.empty_cache()
    return record


@contextlib.contextmanager
def graphs_replayed() -> Iterator[list[Any]]:
    """The CUDA graphs that torch replays meanwhile: their kernels are launched by the graph and not by the call."""
    replay = torch.cuda.CUDAGraph.replay
    seen: list[Any] = []

    def counted(graph: Any) -> None:
        seen.append(graph)
        replay(graph)

    with mock.patch.object(torch.cuda.CUDAGraph, "replay", counted):
        yield seen


def once(config: RunConfig, device: str, seed: int) -> tuple[list[str], dict[str, Any]]:
    """The stages that one call went through, and its tuning parameters; every tensor is gone when this returns."""
    bound = bind(config, *inputs.of(config, device, seed))
    for _ in range(WARM_UP):
        bound.call(no_stage)
    synchronize(device)
    ranges = Ranges()
    with ranges.range(config.config_id):
        bound.call(ranges.stage)
        synchronize(device)
    return ranges.stages, bound.parameters


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
