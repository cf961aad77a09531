"""A bundle: one profile as people keep it, send it and open it. A folder of one JSON file and three parquet tables.

Every source the app shows is a Bundle, an uploaded report too: then ``profile["kind"]`` is "report", ``timings`` is
empty and the configuration key in ``launches`` is null.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler import table
from profiler.errors import BadInput, DamagedFile, NewerSchema

SCHEMA_VERSION = 1
PROFILE = "profile.json"
KINDS: dict[str, type] = {"gpu": dict, "commands": dict, "ceilings": list, "notes": list, "kind": str,
                          "counters": bool}
MOST_METRICS = 1_000_000  # rows; of a larger table only those that a column uses are loaded: memory stays bounded


@dataclass(frozen=True)
class Bundle:
    """profile: provenance (keys in DESIGN.md); the tables follow profiler.table; notes: what reading had to say."""

    name: str
    profile: dict[str, Any] = field(default_factory=dict)
    launches: pd.DataFrame = field(default_factory=lambda: table.make("launches"))
    metrics: pd.DataFrame = field(default_factory=lambda: table.make("metrics"))
    timings: pd.DataFrame = field(default_factory=lambda: table.make("timings"))
    notes: tuple[str, ...] = ()

    @property
    def has_counters(self) -> bool:
        """Whether any launch was profiled; a run without counters can never pass as one with them."""
        return len(self.launches) > 0

    def renamed(self, name: str) -> Bundle:
        """The same bundle under another name, in its rows too."""
        source = pd.array([name] * len(self.launches), dtype="string")
        return replace(self, name=name, launches=self.launches.assign(source=source))


def read(folder: Path) -> Bundle:
    """The bundle in ``folder``. Older schema versions open; a newer one is refused."""
    path = Path(folder) / PROFILE
    if not path.is_file():
        raise BadInput(f"{folder}: expected a bundle, found no {PROFILE} in it.",
                       remedy="A bundle is the folder that `python -m profiler run --out BUNDLE` writes.")
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        version = profile["schema_version"]
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ValueError(f"schema_version: expected a whole number from 1, got {version!r}")
        for key, kind in KINDS.items():
            if key in profile and not isinstance(profile[key], kind):
                raise ValueError(f"{key}: expected {kind.__name__}, got {profile[key]!r:.60}")
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path.name} in {Path(folder).name}: not a bundle's profile ({error}).",
                          remedy="Copy the bundle again, or import the original reports again.") from error
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{Path(folder).name}: bundle schema {version}, and this FlashScope reads up to {SCHEMA_VERSION}.",
            remedy="Update FlashScope to open it.",
        )
    notes = tuple(str(note) for note in profile.get("notes", ()))
    frames, files = {}, {name: Path(folder) / f"{name}.parquet" for name in table.TABLES}
    for name, file in files.items():
        part = "used_for" if name == "metrics" and file.is_file() and table.rows(file) > MOST_METRICS else None
        frames[name] = table.read(name, file, part) if file.is_file() else table.make(name)
        if part:
            notes += (f"{table.rows(file):,} raw metrics, of which only those that a column uses are loaded.",)
    twice = frames["launches"]["launch"][frames["launches"]["launch"].duplicated()]
    if len(twice):
        raise BadInput(f"{Path(folder).name}: launch {twice.iloc[0]} stands more than once in launches.parquet.",
                       remedy="Rows were added twice: import the original reports again.")
    return Bundle(Path(folder).name, profile, notes=notes, **frames).renamed(Path(folder).name)


def write(bundle: Bundle, folder: Path) -> Path:
    """Write ``bundle`` into ``folder`` (made if need be). Callers check it for private data first (privacy.check)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    profile = {**bundle.profile, "schema_version": SCHEMA_VERSION, "notes": list(bundle.notes)}
    for name in table.TABLES:
        table.write(name, getattr(bundle, name), folder / f"{name}.parquet")
    (folder / PROFILE).write_text(json.dumps(profile, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder
