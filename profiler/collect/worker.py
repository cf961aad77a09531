"""Starts the workload process from a neutral folder and reads the records that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.errors import BadInput, WorkerFailed
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
                "folder": str(Path.cwd()),
                "configs": [config.to_json() for config in configs],
            }
        ),
        encoding="utf-8",
    )


def command(plan: Path, results: Path) -> list[str]:
    """The workload's command line, with file names relative to the folder it runs in."""
    return [sys.executable, "-m", "profiler.workload", plan.name, results.name]


def check_callables(configs: Sequence[RunConfig], device: str) -> list[dict[str, Any]]:
    """What the functions that are not ours are: [{"name", "sha256"}]. Raises BadInput where one cannot be called."""
    names = dict.fromkeys(c.implementation for c in configs if ":" in c.implementation)
    if not names:
        return []
    some = [next(c for c in configs if c.implementation == name) for name in names]
    with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
        plan, results = Path(name) / "plan.json", Path(name) / "result.jsonl"
        write_plan(plan, "environment", some, device=device)
        done = subprocess.run(
            command(plan, results), cwd=name, env=environment(), capture_output=True, text=True, check=False
        )
        found = of(read_records(results), "callable")
    if done.returncode:
        first, *rest = (done.stderr.strip() or f"The workload ended with code {done.returncode}.").splitlines()
        kind = BadInput if done.returncode == BadInput.exit_code else WorkerFailed
        raise kind(first, remedy="\n".join(rest[:3]) if kind is BadInput else "", detail=done.stderr)
    return [{"name": entry["name"], "sha256": entry.get("sha256")} for entry in found]


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
