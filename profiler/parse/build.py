"""Raw launches → a Bundle: columns resolved, raw metrics kept beside them with what they were used for, notes on what
is partial."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, TypeGuard

import pandas as pd

from profiler import metrics, table
from profiler.bundle import Bundle
from profiler.metrics import rules, tensor
from profiler.parse.numbers import Format
from profiler.parse.raw import RawFile, RawLaunch, innermost

WANTED = frozenset(metrics.raw_names())


def bundle(raw: RawFile, name: str, file: dict[str, Any]) -> Bundle:
    """``raw`` as a bundle named ``name``; file: {name, sha256, bytes} of where it came from."""
    numbers = Format(raw.decimal)
    rows, resolved = [], []
    impossible: Counter[str] = Counter()
    for index, launch in enumerate(raw.launches):
        values = _values(launch, numbers)
        cc = launch.cc or _cc(values)
        found = metrics.resolve(values, cc)
        for column, value in found.values.items():
            if (_finite(value) and value < 0) or value == math.inf:
                impossible[column] += 1
                found.values[column] = None
        resolved.append(found)
        rows.append(_row(launch, index, name, cc, values, found))
    launches = table.make("launches", rows)
    notes = [*raw.notes, *_notes(resolved)]
    notes += [f"{column}: {count} of {len(resolved)} launches have a value below 0 or without end; left empty, the raw "
              "metric keeps it." for column, count in impossible.items()]
    empty = [i for i, (one, found) in enumerate(zip(raw.launches, resolved))
             if not one.kernel and not any(value is not None for value in found.values.values())]
    if empty and any(one.kernel for one in raw.launches):
        notes.append(f"Launches {', '.join(map(str, empty[:10]))} have neither a name nor a counter: "
                     "the file may be damaged there.")
    devices = sorted(launches["device"].dropna().unique())
    if len(devices) > 1:
        notes.append(f"The file holds launches of {len(devices)} GPUs: {', '.join(devices)}.")
    if str(file["name"]).endswith(".nsight-cuprof-report"):
        notes.append("Reports of this older ending could not be checked on a real sample.")
    profile = {
        "schema_version": 1, "kind": "report", "counters": bool(rows), "gpu": _gpu(raw, numbers, launches),
        **raw.session,
        "file": {**file, "form": raw.form}, "notes": notes,
    }
    return Bundle(name, profile, launches, _metrics(raw, resolved), notes=tuple(notes))


def _values(launch: RawLaunch, numbers: Format) -> dict[str, Any]:
    """Raw values by name, numbers where they are wanted; a name that comes again with another unit goes to
    ``name\\0``."""
    values: dict[str, Any] = {}
    for name, unit, value in launch.metrics:
        if name not in WANTED and not name.startswith(tensor.OPCODES + "["):
            continue
        if isinstance(value, str):
            number = numbers.number(value)
            value = value if number is None and name in metrics.TEXT_NAMES else number
        if name not in values:
            values[name] = (value, unit)
        elif values[name][1] != unit or values[name][0] is None:
            values.setdefault(f"{name}\0", ([], ""))[0].append((value, unit))
    return values


def _cc(values: dict[str, Any]) -> str | None:
    major, minor = (values.get(name, (None, ""))[0] for name in (rules.CC_MAJOR, rules.CC_MINOR))
    return f"{int(major)}.{int(minor)}" if _finite(major) and _finite(minor) else None


def _finite(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _dims(values: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = [values.get(name, (None, ""))[0] for name in names]
    return ",".join(str(int(v)) for v in found) if all(map(_finite, found)) else None


def _row(launch: RawLaunch, index: int, source: str, cc: str | None, values: dict[str, Any],
         found: metrics.Resolved) -> dict[str, Any]:
    inner, domain, path = innermost(launch.ranges)
    device = values.get(rules.DEVICE_NAME, (None, ""))[0]
    return {
        "source": source, "launch": index, "range": inner, "domain": domain, "range_path": path,
        "kernel": launch.kernel, "device": device if isinstance(device, str) else None, "cc": cc,
        "grid": launch.grid or _dims(values, rules.GRID), "block": launch.block or _dims(values, rules.BLOCK),
        **found.values,
    }


def _gpu(raw: RawFile, numbers: Format, launches: pd.DataFrame) -> dict[str, Any]:
    """What the first launch says of its GPU; several GPUs stay apart in the rows."""
    gpu: dict[str, Any] = {}
    if not raw.launches:
        return gpu
    first = {name: value for name, _, value in raw.launches[0].metrics}
    for key, (name, factor) in rules.PROFILE.items():
        value = first.get(name)
        if isinstance(value, str) and key != "name":
            value = numbers.number(value)
        if key == "name" and isinstance(value, str) and value:
            gpu[key] = value
        elif key != "name" and _finite(value):
            gpu[key] = int(value * factor)
    for key, column in (("name", "device"), ("cc", "cc")):
        value = launches[column].iloc[0]
        if pd.notna(value):
            gpu[key] = str(value)
    return gpu


def _notes(resolved: list[metrics.Resolved]) -> list[str]:
    notes = []
    no_number = Counter(column for found in resolved for column in found.no_number)
    for column, count in no_number.items():
        notes.append(f"{column}: {count} of {len(resolved)} launches have a counter without a number (n/a or NaN); "
                     "left empty.")
    strange = {(name, unit) for found in resolved for name, unit in found.unknown_units.items()}
    for name, unit in sorted(strange):
        notes.append(f"{name}: unit {unit!r} is not known, so the value is kept as it came and not used.")
    return notes


def _metrics(raw: RawFile, resolved: list[metrics.Resolved]) -> pd.DataFrame:
    """The raw metrics as a table. Columns are built as lists: one dict a value would be ten times the memory."""
    launch, name, unit, value, used = [], [], [], [], []
    for index, (one, found) in enumerate(zip(raw.launches, resolved)):
        uses: dict[str, str] = {}
        for column, names in found.used.items():
            for metric in names:
                uses[metric] = f"{uses[metric]} {column}" if metric in uses else column
        for metric, its_unit, its_value in one.metrics:
            launch.append(index)
            name.append(metric)
            unit.append(its_unit)
            value.append(as_text(its_value))
            used.append(uses.get(metric) if found.chosen.get(metric, its_unit) == its_unit else None)
    return pd.DataFrame({
        "launch": pd.array(launch, dtype="Int64"), "metric": pd.array(name, dtype="string"),
        "unit": pd.array(unit, dtype="string"),
        "value": pd.array(value, dtype="string"), "used_for": pd.array(used, dtype="string")})


def as_text(value: Any) -> str | None:
    """A raw value as text with all its digits: 3968 for 3968.0, as counters are whole."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value) if isinstance(value, (int, float)) else str(value)
