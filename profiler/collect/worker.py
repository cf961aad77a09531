"""Starts the workload process from a neutral folder and reads the records that it writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.spec import RunConfig

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """This process's environment with the package importable from any folder, output unbuffered, and this process named
    as the one whose end ends the workload."""
    paths = [str(ROOT), *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLASHSCOPE_PARENT": str(os.getpid()),
    }


def write_plan(
    path: Path, mode: str, configs: Sequence[RunConfig], *, device: str = "cuda", seed: int = 0, ceilings: bool = True
) -> None:
    """A plan as profiler.workload.plan describes it."""
    path.write_text(
        json.dumps(
            {
                "mode": mode,
                "device": device,
                "seed": seed,
                "ceilings": ceilings,
                "configs": [config.to_json() for config in configs],
            }
        ),
        encoding="utf-8",
    )


def command(plan: Path, results: Path) -> list[str]:
    """The workload's command line, with file names relative to the folder it runs in."""
    return [sys.executable, "-m", "profiler.workload", plan.name, results.name]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Complete records so far; a last line that a crash cut short is left out."""
    records = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
    return records


def of(records: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of one kind."""
    return [dict(record) for record in records if record.get("record") == kind]
