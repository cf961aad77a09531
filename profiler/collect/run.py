"""Profile configurations on this machine: a counter pass under ncu, a timing pass without it, joined into one bundle.

Counters come first: whatever forbids them shows within seconds. Finished work lies in ``OUT.partial`` beside the
bundle; the bundle itself appears only when everything that was asked for is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from profiler import bundle as bundles
from profiler import privacy
from profiler.bundle import Bundle
from profiler.collect import gpu, join, lock, ncu, pace, provenance, worker
from profiler.collect.passes import QUIET_S, Chunk, Partial, Reporter, time_all
from profiler.errors import BadInput
from profiler.spec import RunConfig

METRIC_SETS = ("evidence", "roofline", "occupancy", "full")
CHUNK = 40  # configurations a report: small enough to parse, large enough that process starts are few
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
) -> Bundle:
    """Measure ``configs`` and write the bundle ``out``.

    progress(text, done, total) hears of each configuration. device "cpu" runs the workload without a GPU, for tests;
    its rows say so. Raises RunFailed's classes, and then no bundle is written; with ``resume`` the next call goes on
    from the work that was finished.
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
    tool = ncu.find(ncu_path) if counters else None
    callables = worker.check_callables(configs, device)
    metrics = metric_names(metric_set) if counters else []
    settings = {
        "configs": [c.config_id for c in configs],
        "code": provenance.code_hash(),
        "device": device,
        "seed": seed,
        "counters": counters,
        "ncu": tool.version if tool else None,
        "metrics": metrics,
        "callables": callables,
    }
    name = gpu.identity()
    with Partial(out, settings, resume=resume) as partial, lock.measuring(name) if device == "cuda" else nullcontext():
        expected = pace.recall(name, metric_set) if device == "cuda" else {}
        reporter = Reporter(progress, len(configs), counters=bool(tool), known=expected)
        reporter.begin()
        chunks = []
        for number in range(0, len(configs), CHUNK):
            if tool is None:
                break
            chunk = Chunk(partial.folder, number // CHUNK, configs[number : number + CHUNK], device=device, seed=seed)
            chunk.collect(tool, metrics, reporter, quiet_s)
            chunks.append(chunk)
        times = time_all(configs, partial.folder, device=device, seed=seed, quiet_s=quiet_s, reporter=reporter)
        joined = join.join(out.name, configs, chunks, times)
        profile = provenance.profile(
            times, tool=tool, chunks=chunks, suite=suite, command=command, counters=joined.has_counters
        )
        if callables:
            profile["callables"] = callables
        unknown = dict.fromkeys(name for chunk in chunks for name in chunk.unknown)
        notes = (*joined.notes, *(f"This ncu does not have {name}: what needs it is null." for name in unknown))
        timings = joined.timings.copy()
        for column in ("status", "note"):  # they quote errors, which quote paths
            timings[column] = timings[column].map(privacy.redact, na_action="ignore").astype(timings[column].dtype)
        profile["commands"] = {name: privacy.redact(text) for name, text in profile["commands"].items()}
        notes = tuple(privacy.redact(note) for note in notes)
        made = Bundle(out.name, profile, joined.launches, joined.metrics, timings, notes)
        publish(made, out, [chunk.report for chunk in chunks] if keep_reports else [])
        if device == "cuda":
            pace.remember(name, metric_set, reporter.pace, profile.get("passes", 0))
        partial.finished = True
    return made


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


def metric_names(purpose: str) -> list[str]:
    """The metrics to ask ncu for on this GPU: METRIC_SETS by purpose. Raises BadInput for another name."""
    from profiler.metrics import collect_list

    if purpose not in METRIC_SETS:
        raise BadInput(f"--metrics: expected one of {', '.join(METRIC_SETS)}, got {purpose!r}.")
    return list(collect_list(purpose, gpu.compute_capability()))
