"""A bundle: one profile as people keep it, send it and open it. A folder of one JSON file and three parquet tables.

Every source the app shows is a Bundle, an uploaded report too: then ``profile["kind"]`` is "report", ``timings`` is
empty and the configuration key in ``launches`` is null.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from profiler import apart, table
from profiler.errors import BadInput, DamagedFile, NewerSchema

T = TypeVar("T")
SCHEMA_VERSION = 1
PROFILE = "profile.json"
KINDS: dict[str, type] = {"gpu": dict, "commands": dict, "ceilings": list, "notes": list, "kind": str,
                          "counters": bool}
TEXTS = ("created", "driver", "cuda", "torch", "triton", "cudnn", "ncu", "python", "cache_control", "clock_control",
         "replay_mode", "git_commit", "code_hash", "suite")
GPU_NUMBERS = ("sm_count", "l2_size_bytes", "memory_bytes", "max_sm_clock_hz", "power_limit_w", "memory_clock_hz",
               "memory_bus_bits")
MOST_METRICS = 1_000_000  # rows; a larger table stays in its file and is read launch by launch: memory stays bounded


class OnDisk:
    """A metrics table too large for memory, left in its file. rows: how many it has; folder: what keeps a temporary
    file there."""

    def __init__(self, path: Path):
        self.path, self.rows = path, table.rows(path)
        self.folder: Any = None
        table.read_names("metrics", path)

    def of(self, launch: int) -> pd.DataFrame:
        """The rows of one launch."""
        return table.read("metrics", self.path, launch)

    def parts(self) -> Iterator[pd.DataFrame]:
        """All rows, a part at a time."""
        return table.parts("metrics", self.path)


@dataclass(frozen=True)
class Bundle:
    """profile: provenance (keys in DESIGN.md); the tables follow profiler.table; notes: what reading had to say.

    on_disk: the metrics where they are too large for memory; ``metrics`` is then empty and ``raw`` reads one launch.
    reread: gives every raw metric of a launch where ``metrics`` holds only those that something uses (large reports).
    """

    name: str
    profile: dict[str, Any] = field(default_factory=dict)
    launches: pd.DataFrame = field(default_factory=lambda: table.make("launches"))
    metrics: pd.DataFrame = field(default_factory=lambda: table.make("metrics"))
    timings: pd.DataFrame = field(default_factory=lambda: table.make("timings"))
    notes: tuple[str, ...] = ()
    on_disk: OnDisk | None = None
    reread: Callable[[int], pd.DataFrame] | None = None

    @property
    def has_counters(self) -> bool:
        """Whether any launch was profiled; a run without counters can never pass as one with them."""
        return len(self.launches) > 0

    def renamed(self, name: str) -> Bundle:
        """The same bundle under another name, in its rows too."""
        source = pd.array([name] * len(self.launches), dtype="string")
        return replace(self, name=name, launches=self.launches.assign(source=source))

    @property
    def metric_count(self) -> int:
        """Rows of raw metrics, in memory or on disk."""
        return self.on_disk.rows if self.on_disk else len(self.metrics)

    def raw(self, launch: int) -> pd.DataFrame:
        """The raw metrics of one launch: a slice where the table is in order of launches, as readers write it."""
        if self.on_disk:
            return self.on_disk.of(launch)
        numbers = self.metrics["launch"]
        if numbers.is_monotonic_increasing:
            return self.metrics.iloc[numbers.searchsorted(launch, "left"):numbers.searchsorted(launch, "right")]
        return self.metrics[numbers == launch]

    def described(self, profile: dict[str, Any]) -> Bundle:
        """The same tables under a profile that says more of where they come from; what was computed of them stays."""
        out = replace(self, profile=profile)
        out.__dict__["_once"] = self.__dict__.setdefault("_once", {})
        return out

    def once(self, function: Callable[[Bundle], T]) -> T:
        """``function`` of this bundle, computed once and kept with it; read the result, never change it."""
        kept: dict[Any, Any] = self.__dict__.setdefault("_once", {})
        if function not in kept:
            kept[function] = function(self)
        return kept[function]


def read(folder: Path) -> Bundle:
    """The bundle in ``folder``; rows that cannot be are kept apart, with a note. Older schema versions open; a newer
    one is refused."""
    path = Path(folder) / PROFILE
    if not path.is_file():
        raise BadInput(f"{folder}: expected a bundle, found no {PROFILE} in it.",
                       remedy="A bundle is the folder that `python -m profiler run --out BUNDLE` writes.")
    try:
        profile = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_no_constant)
        version = profile["schema_version"]
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ValueError(f"schema_version: expected a whole number from 1, got {version!r}")
        for key, kind in KINDS.items():
            if key in profile and not isinstance(profile[key], kind):
                raise ValueError(f"{key}: expected {kind.__name__}, got {profile[key]!r:.60}")
        _check_values(profile)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise DamagedFile(f"{path.name} in {Path(folder).name}: not a bundle's profile ({error}).",
                          remedy="Copy the bundle again, or import the original reports again.") from error
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{Path(folder).name}: bundle schema {version}, and this FlashScope reads up to {SCHEMA_VERSION}.",
            remedy="Update FlashScope to open it.",
        )
    notes = tuple(str(note) for note in profile.get("notes", ()))
    files = {name: Path(folder) / f"{name}.parquet" for name in table.TABLES}
    large = files["metrics"].is_file() and table.rows(files["metrics"]) > MOST_METRICS
    frames = {name: table.make(name) for name in files}
    for name, file in files.items():
        if file.is_file() and not (large and name == "metrics"):
            frames[name], said = apart.keep(name, table.given(file))
            notes += tuple(note for note in said if note not in notes)
    on_disk = OnDisk(files["metrics"]) if large else None
    return Bundle(Path(folder).name, profile, notes=notes, on_disk=on_disk, **frames).renamed(Path(folder).name)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_values(profile: dict[str, Any]) -> None:
    """What is computed with or shown must be of its type: names text, sizes and ceilings positive numbers. Raises
    ValueError."""
    text = {key: value for key, value in profile.items() if key in TEXTS}
    numbers: dict[str, Any] = {}
    gpu = profile.get("gpu", {})
    numbers |= {f"gpu.{key}": gpu.get(key) for key in GPU_NUMBERS}
    text |= {f"gpu.{key}": gpu.get(key) for key in ("name", "cc")}
    for ceiling in profile.get("ceilings", ()):
        if not isinstance(ceiling, dict) or ceiling.get("quantity") is None or ceiling.get("value") is None:
            raise ValueError(f"ceilings: expected objects with quantity and value, got {ceiling!r:.60}")
        numbers[f"ceilings: {ceiling['quantity']}"] = ceiling["value"]
        text |= {f"ceilings: {ceiling['quantity']}: {key}": ceiling.get(key)
                 for key in ("quantity", "unit", "kind", "how")}
    json.dumps(profile, ensure_ascii=False).encode()  # half a character cannot be shown
    for key, value in numbers.items():
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < table.LARGEST["Float64"]
        if value is not None and not known:
            raise ValueError(f"{key}: expected a positive number, got {value!r:.60}")
    for key, value in text.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{key}: expected text, got {value!r:.60}")


def write(bundle: Bundle, folder: Path) -> Path:
    """Write ``bundle`` into ``folder`` (made if need be). Callers check it for private data first (privacy.check)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    profile = {**bundle.profile, "schema_version": SCHEMA_VERSION, "notes": list(bundle.notes)}
    for name in table.TABLES:
        if name == "metrics" and bundle.on_disk:
            shutil.copyfile(bundle.on_disk.path, folder / "metrics.parquet")
        else:
            table.write(name, getattr(bundle, name), folder / f"{name}.parquet")
    (folder / PROFILE).write_text(json.dumps(profile, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder
