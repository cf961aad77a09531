"""Profile configurations: a counter pass under ncu, a timing pass without it, joined into one bundle.

On this machine's GPU, or spread over the GPUs of a Dask cluster. Finished work lies in ``OUT.partial`` beside the
bundle; the bundle itself appears only when everything that was asked for is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from profiler import bundle as bundles
from profiler import privacy
from profiler.bundle import Bundle
from profiler.collect import cluster, join, lock, pace, provenance, share, worker
from profiler.collect.passes import QUIET_S, Partial
from profiler.collect.progress import Reporter
from profiler.collect.share import Measured, Order, Place
from profiler.errors import BadInput
from profiler.spec import RunConfig

Progress = Callable[[str, int, int], None]


def run(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    counters: bool = True,
    keep_reports: bool = False,
    resume: bool = False,
    progress: Progress = lambda text, done, total: None,
    ncu_path: str | None = None,
    quiet_s: float = QUIET_S,
    metric_set: str = "evidence",
    suite: str | None = None,
    command: str = "python -m profiler run",
    device: str = "cuda",
    seed: int = 0,
    timed_only: Collection[str] = (),
    workers: str | None = None,
) -> Bundle:
    """Measure ``configs`` and write the bundle ``out``.

    progress(text, done, total) hears of each configuration. timed_only: config_ids that are not counted. workers:
    "dask" or "dask=SCHEDULER". device "cpu" runs the workload without a GPU, for tests; its rows say so. Raises
    RunFailed's classes, and then no bundle is written; with ``resume`` the next call goes on from the work that was
    finished.
    """
    configs, out = list({config.config_id: config for config in configs}.values()), Path(out)
    if not configs:
        raise BadInput("run: expected at least one configuration, got none.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(
            f"--out: expected a new folder, got {out.name}, which is there already.",
            remedy="Name another folder, or remove this one.",
        )
    privacy.check(Bundle(out.name, {}))
    order = Order(counters, ncu_path, metric_set, device, seed, quiet_s, frozenset(timed_only))
    callables = worker.check_callables(configs, device)
    address = cluster.scheduler(workers) if workers else None
    with cluster.connected(address) if workers else nullcontext() as client:
        places = cluster.places(client, order) if client else [share.place(order)]
        wanted = settings(order, configs, places, callables, spread=client is not None)
        with Partial(out, wanted, resume=resume) as partial:
            here = places[0]
            alone = client is None and device == "cuda"
            known, source = pace.expected(here.gpu, metric_set, len(places)) if device == "cuda" else ({}, "")
            counted = [config for config in configs if config.config_id not in order.timed_only] if counters else []
            reporter = Reporter(
                progress, len(configs), counters=counters, counted=counted, known=known, source=source
            )
            reporter.begin()
            if client:
                measured, said = cluster.measure(client, order, configs, partial.folder, reporter)
            else:
                with lock.measuring(here.gpu) if alone else nullcontext():
                    name = here.gpu if alone else None
                    measured, said = [
                        share.measure(order, here.tool, here.metrics, configs, partial.folder, reporter, gpu_name=name)
                    ], []
            made = assemble(out.name, configs, measured, places, order, suite, command, callables, said)
            publish(made, out, [chunk.report for part in measured for chunk in part.chunks] if keep_reports else [])
            if alone:
                ours = made.launches[~made.launches["implementation"].str.contains(":").fillna(False)]
                mean = len(ours) / ours["config_id"].nunique() if len(ours) else None
                pace.remember(here.gpu, metric_set, reporter.pace, made.profile.get("passes", 0), mean)
                reporter.end(made.profile.get("passes"))
            partial.finished = True
    return made


def settings(
    order: Order, configs: Sequence[RunConfig], places: Sequence[Place], callables: list[Any], *, spread: bool
) -> dict[str, Any]:
    """What results belong to: an unfinished run goes on only where all of it is as it was."""
    return {
        "configs": [c.config_id for c in configs],
        "timed_only": sorted(order.timed_only),
        "code": places[0].code,
        "device": order.device,
        "seed": order.seed,
        "counters": order.counters,
        "ncu": places[0].tool.version if places[0].tool else None,
        "metrics": sorted({name for place in places for name in place.metrics}),
        "cache and clock control": ["all", "none"],
        "callables": callables,
        "GPU": sorted({str(place.model) for place in places}) if spread else places[0].gpu,
        "driver": sorted({str(place.driver) for place in places}),
        "workers": spread,
    }


def assemble(
    name: str,
    configs: Sequence[RunConfig],
    measured: Sequence[Measured],
    places: Sequence[Place],
    order: Order,
    suite: str | None,
    command: str,
    callables: list[Any],
    said: Sequence[str],
) -> Bundle:
    """The bundle of all that was measured, without what is private."""
    chunks = [chunk for part in measured for chunk in part.chunks]
    times = [record for part in measured for record in part.times]
    joined = join.join(name, configs, chunks, times)
    profile = provenance.profile(
        times,
        tool=places[0].tool,
        chunks=chunks,
        suite=suite,
        command=command,
        counters=joined.has_counters,
        places=places,
    )
    if callables:
        profile["callables"] = callables
    unknown = dict.fromkeys(name for chunk in chunks for name in chunk.unknown)
    only = len(order.timed_only & {config.config_id for config in configs}) if order.counters else 0
    unprofiled = f"{only} of {len(configs)} configurations are timed and not profiled, as the suite has it."
    notes = (
        *joined.notes,
        *said,
        *([unprofiled] if only else []),
        *(f"This ncu does not have {name}: what needs it is null." for name in unknown),
    )
    timings = joined.timings.copy()
    for column in ("status", "note"):  # they quote errors, which quote paths
        timings[column] = timings[column].map(privacy.redact, na_action="ignore").astype(timings[column].dtype)
    profile["commands"] = {name: privacy.redact(text) for name, text in profile["commands"].items()}
    notes = tuple(privacy.redact(note) for note in notes)
    return Bundle(name, profile, joined.launches, joined.metrics, timings, notes)


def publish(made: Bundle, out: Path, reports: Sequence[Path]) -> None:
    """Check for private data, write beside the goal, then rename: a bundle is whole or absent."""
    privacy.check(made)
    beside = out.with_name(f".{out.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        bundles.write(made, beside)
        for number, report in enumerate(reports):
            folder = beside / "reports"
            folder.mkdir(exist_ok=True)
            privacy.scrub_file(report, folder / f"{out.name}-{number}.ncu-rep")
        if out.is_dir():
            out.rmdir()
        beside.replace(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
