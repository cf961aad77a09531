"""A share of a run: some configurations, counted under ncu and timed without it, on the GPU of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.collect import gpu, ncu, provenance
from profiler.collect.passes import QUIET_S, Chunk, time_all
from profiler.collect.progress import Reporter
from profiler.errors import BadInput
from profiler.spec import RunConfig

METRIC_SETS = ("evidence", "stalls", "roofline", "occupancy", "full")
CHUNK = 40  # configurations a report: small enough to parse, large enough that process starts are few


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of whoever measures. timed_only: config_ids that are timed and not counted. device "cpu" runs the
    workload without a GPU, for tests; its rows say so."""

    counters: bool = True
    ncu_path: str | None = None
    metric_set: str = "evidence"
    device: str = "cuda"
    seed: int = 0
    quiet_s: float = QUIET_S
    timed_only: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a share is measured: the GPU (UUID, or its index where NVML does not say), its model, the driver, ncu and
    what to ask it for, and the hash of the code there."""

    gpu: str
    model: str | None
    driver: str | None
    tool: ncu.Ncu | None
    metrics: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a share gave: reports by chunk, and the records of the timing pass."""

    chunks: list[Chunk]
    times: list[dict[str, Any]]


def place(order: Order) -> Place:
    """This process's. Raises NcuMissing or NcuFailed where counters are asked for and cannot be had."""
    tool = ncu.find(order.ncu_path) if order.counters else None
    metrics = tuple(metric_names(order.metric_set)) if order.counters else ()
    return Place(gpu.identity(), gpu.model(), gpu.driver(), tool, metrics, provenance.code_hash())


def metric_names(purpose: str) -> list[str]:
    """The metrics to ask ncu for on this GPU: METRIC_SETS by purpose. Raises BadInput for another name."""
    from profiler.metrics import collect_list, stall_names

    if purpose not in METRIC_SETS:
        raise BadInput(f"--metrics: expected one of {', '.join(METRIC_SETS)}, got {purpose!r}.")
    cc = gpu.compute_capability()
    if purpose == "stalls":  # the evidence set, and what warps wait for
        return [*collect_list("evidence", cc), *stall_names(cc)]
    return list(collect_list(purpose, cc))


def measure(
    order: Order,
    tool: ncu.Ncu | None,
    metrics: Sequence[str],
    configs: Sequence[RunConfig],
    folder: Path,
    reporter: Reporter,
    *,
    gpu_name: str | None = None,
    own_lock: bool = False,
    ceilings: bool = True,
    chunk: int | None = None,
) -> Measured:
    """Both passes over ``configs``; finished work lies in ``folder``, and what lies there already is taken as it is.

    Counters come first: whatever forbids them shows within seconds. own_lock: ncu's lock file in a folder of its own,
    since several ncu of one machine otherwise wait for each other. gpu_name: what each timings row names as its GPU.
    ceilings: whether the GPU's own are measured too. chunk: configurations a report, if not CHUNK.
    """
    counted = [config for config in configs if config.config_id not in order.timed_only] if tool else []
    chunks, most = [], chunk or CHUNK
    for first in range(0, len(counted), most):
        some = counted[first : first + most]
        own = Chunk(folder, first // most, some, device=order.device, seed=order.seed, own_lock=own_lock)
        assert tool is not None
        own.collect(tool, metrics, reporter, order.quiet_s)
        chunks.append(own)
    times = time_all(
        configs,
        folder,
        device=order.device,
        seed=order.seed,
        quiet_s=order.quiet_s,
        reporter=reporter,
        ceilings=ceilings,
    )
    for record in times:
        if gpu_name and record.get("record") == "timing":
            record["row"].setdefault("gpu", gpu_name[:12])  # of a UUID what tells the GPUs of a cluster apart
        elif gpu_name and record.get("record") == "ceiling":
            record["entry"].setdefault("gpu", gpu_name[:12])
    return Measured(chunks, times)
