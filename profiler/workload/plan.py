"""What the workload is asked to do, and how it says what it found.

PLAN.json: {"mode": "timing" | "counters" | "environment", "configs": [RunConfig.to_json(), ...], "device":
"cuda" | "cpu", "seed": int, "ceilings": bool, "folder": where functions that are not ours are looked for}.
RESULT.jsonl: one JSON object a line, flushed as it is known, so that a crash loses nothing; ``record`` is
"environment", "callable", "ceiling", "start", "timing", "counters", "error" or "end".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.errors import BadInput
from profiler.spec import RunConfig

MODES = ("timing", "counters", "environment")
DEVICES = ("cuda", "cpu")


@dataclass(frozen=True, slots=True)
class Plan:
    """mode: what to measure. device "cpu": for tests without a GPU; its rows say so. seed: of the inputs."""

    mode: str
    configs: tuple[RunConfig, ...] = ()
    device: str = "cuda"
    seed: int = 0
    ceilings: bool = True
    folder: str = ""

    @classmethod
    def read(cls, path: Path) -> Plan:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"{Path(path).name}: expected a plan in JSON ({error}).") from error
        for name, known in (("mode", MODES), ("device", DEVICES)):
            if data.get(name, "cuda" if name == "device" else None) not in known:
                raise BadInput(f"plan: {name} must be one of {', '.join(known)}, got {data.get(name)!r}.")
        configs = tuple(RunConfig.from_json(entry) for entry in data.get("configs", ()))
        return cls(
            data["mode"],
            configs,
            data.get("device", "cuda"),
            int(data.get("seed", 0)),
            bool(data.get("ceilings", True)),
            str(data.get("folder", "")),
        )


class Results:
    """Appends records to RESULT.jsonl, each line on disk before the next begins."""

    def __init__(self, path: Path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the process

    def add(self, record: str, **fields: Any) -> None:
        self._file.write(json.dumps({"record": record, **fields}) + "\n")
        self._file.flush()
