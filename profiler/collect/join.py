"""Counters and timings as one bundle: each launch gets its configuration by its NVTX ranges; gaps are said."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from profiler import table
from profiler.bundle import Bundle
from profiler.collect import worker
from profiler.errors import NothingProfiled, RunFailed
from profiler.spec import RunConfig, parameters_text

AUTOTUNED = 4  # launches of one kernel in one stage, from which differing settings mean that autotuning was captured
PARSERS = min(4, os.cpu_count() or 1)  # reports read at once
UNLIKE = 3.0  # ncu's time over the unprofiled one, beyond which a note says so


class HasReport(Protocol):
    report: Path

    def records(self) -> list[dict[str, Any]]: ...


def join(
    name: str, configs: Sequence[RunConfig], chunks: Sequence[HasReport], times: Sequence[Mapping[str, Any]]
) -> Bundle:
    """The bundle of a run, without its provenance. Raises NothingProfiled if no launch belongs to a configuration."""
    from profiler.parse import load

    launches, metrics = [], []
    notes: list[str] = []
    records: list[dict[str, Any]] = []
    first = 0
    with ThreadPoolExecutor(PARSERS) as pool:  # each is read in a process of its own
        reports = list(pool.map(lambda chunk: load(chunk.report), chunks))
    for chunk, parsed in zip(chunks, reports):
        launches.append(parsed.launches.assign(launch=parsed.launches["launch"] + first))
        metrics.append(parsed.metrics.assign(launch=parsed.metrics["launch"] + first))
        first += len(parsed.launches)
        notes += parsed.notes
        records += worker.of(chunk.records(), "counters")
    timings = timing_table(configs, times)
    if not chunks:
        return Bundle(
            name, timings=timings, notes=("Run without counters: nothing here was counted by Nsight Compute.",)
        )
    profiled, dropped, said = attach(table.concat("launches", launches), configs, records)
    profiled = profiled.assign(source=pd.array([name] * len(profiled), "string"))
    counted = table.concat("metrics", metrics)
    counted = counted[counted["launch"].isin(profiled["launch"])] if dropped else counted
    notes += said + unlike(profiled, timings)
    return Bundle(name, {}, profiled, table.validate("metrics", counted), timings, tuple(dict.fromkeys(notes)))


def attach(
    launches: pd.DataFrame, configs: Sequence[RunConfig], records: Sequence[Mapping[str, Any]]
) -> tuple[pd.DataFrame, int, list[str]]:
    """Key columns and parameters for each launch, from its range_path: (launches, how many were dropped, notes)."""
    by_id = {config.config_id: config for config in configs}
    by_record = {record["config_id"]: record for record in records}
    rows, notes, stray = table.records(launches), [], 0
    kept = []
    for row in rows:
        config_id, _, stage = (row["range_path"] or "").partition("/")
        config = by_id.get(config_id)
        if config is None:
            stray += 1
            continue
        record = by_record.get(config_id, {})
        parameters = record.get("parameters") or parameters_text(config.parameters)
        kept.append({**row, **config.key(stage.split("/")[0] or None), "parameters": parameters})
    if not kept:
        raise NothingProfiled(
            "The report holds no launch inside a configuration's NVTX range.",
            remedy="Is the package nvtx installed for the Python that was profiled? `python -m profiler doctor`.",
        )
    if stray:
        notes.append(f"{stray} launches outside every configuration were left out.")
    kept, autotuned = without_autotuning(kept)
    notes += autotuned + completeness(kept, by_record)
    return table.make("launches", kept), len(rows) - len(kept), notes


def without_autotuning(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """A stage where one kernel was launched often with different settings is no single call: left out, named.

    Tuning varies warps (the block) and pipeline stages (shared memory). Grids say nothing: PyTorch's elementwise
    kernels run on tensors of several sizes within one call.
    """
    stages: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        stages.setdefault(row["range_path"], []).append(row)
    notes, bad = [], set()
    for path, members in stages.items():
        kernels: dict[str, list[tuple[Any, Any]]] = {}
        for row in members:
            kernels.setdefault(row["kernel"], []).append((row["block"], row["shared_bytes_per_block"]))
        for kernel, launched in kernels.items():
            if len(launched) >= AUTOTUNED and len(set(launched)) > 1:
                bad.add(path)
                notes.append(
                    f"{path}: {len(launched)} launches of {kernel} with {len(set(launched))} combinations of block and "
                    "shared memory: autotuning was captured, so this range is left out."
                )
    return [row for row in rows if row["range_path"] not in bad], notes


def completeness(rows: Sequence[Mapping[str, Any]], records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Notes on configurations without counters, on stages without a launch, and on launches outside every stage."""
    found: dict[str, set[Any]] = {}
    for row in rows:
        found.setdefault(row["config_id"], set()).add(row["stage"])
    notes = []
    for config_id, record in records.items():
        if record["status"] != "ok":
            notes.append(f"{config_id}: no counters ({record['status']}).")
            continue
        missing = [stage for stage in record["stages"] if stage not in found.get(config_id, set())]
        if record.get("graphs"):
            notes.append(f"{config_id}: its launches are kernels of a CUDA graph, counted one by one.")
        if missing:
            elsewhere = (
                " A function that launches from a process or thread of its own does so outside the range."
                if ":" in record.get("implementation", "")
                else ""
            )
            notes.append(f"{config_id}: no launch was profiled in {', '.join(missing)}.{elsewhere}")
        if None in found.get(config_id, set()):
            notes.append(f"{config_id}: launches outside every stage are kept without one.")
    return notes


def timing_table(configs: Sequence[RunConfig], times: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One timings row a configuration, in the order of ``configs``. Raises RunFailed where one has none."""
    rows = {record["row"]["config_id"]: record["row"] for record in worker.of(times, "timing")}
    missing = [config.config_id for config in configs if config.config_id not in rows]
    if missing:
        raise RunFailed(f"The timing pass left out {', '.join(missing[:3])}.", remedy="Run again with --resume.")
    return table.make("timings", [rows[config.config_id] for config in configs])


def unlike(launches: pd.DataFrame, timings: pd.DataFrame) -> list[str]:
    """Notes where the launches' time under ncu is far from the unprofiled median."""
    profiled = launches.groupby("config_id")["duration_ns"].sum(min_count=1)
    notes = []
    for row in table.records(timings[["config_id", "median_ns"]]):
        ours, theirs = row["median_ns"], profiled.get(row["config_id"])
        if ours and theirs is not None and not pd.isna(theirs) and theirs > UNLIKE * ours:
            notes.append(
                f"{row['config_id']}: {theirs / 1e3:.0f} µs under ncu against {ours / 1e3:.0f} µs without; "
                "speeds are quoted from the latter."
            )
    return notes


def merge(name: str, parts: Sequence[Bundle]) -> Bundle:
    """Several opened files as one bundle of kind "report" (a single one as it is); launches are numbered on.

    What the files agree on stays in the profile; their file facts are listed under ``files``.
    """
    if len(parts) == 1:
        return parts[0].renamed(name)
    launches, metrics, first = [], [], 0
    for part in parts:
        launches.append(part.launches.assign(launch=part.launches["launch"] + first))
        metrics.append(part.metrics.assign(launch=part.metrics["launch"] + first))
        first += len(part.launches)
    shared = {k: v for k, v in parts[0].profile.items() if all(part.profile.get(k) == v for part in parts)}
    profile = {
        **shared,
        "kind": "report",
        "counters": first > 0,
        "files": [part.profile["file"] for part in parts if "file" in part.profile],
    }
    notes = tuple(dict.fromkeys(f"{part.name}: {note}" for part in parts for note in part.notes))
    return Bundle(
        name,
        profile,
        table.concat("launches", launches),
        table.concat("metrics", metrics),
        table.concat("timings", [part.timings for part in parts]),
        notes,
    )
