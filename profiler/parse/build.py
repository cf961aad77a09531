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
from profiler.metrics import rules, tensor, units
from profiler.parse import agree, spelling, unverified
from profiler.parse.numbers import Format
from profiler.parse.raw import RawFile, RawLaunch, innermost, triple

WANTED = frozenset(metrics.raw_names())


def bundle(raw: RawFile, name: str, file: dict[str, Any]) -> Bundle:
    """``raw`` as a bundle named ``name``; file: {name, sha256, bytes} of where it came from."""
    numbers = Format(raw.decimal)
    rows, resolved = [], []
    impossible: Counter[str] = Counter()
    twice: Counter[str] = Counter()
    for index, launch in enumerate(raw.launches):
        values, conflicts = _values(launch, numbers)
        twice.update(conflicts)
        cc = launch.cc or _cc(values)
        found = metrics.resolve(values, cc)
        found.no_number = {c for c in found.no_number if conflicts.isdisjoint(found.used.get(c, ()))}
        for column, value in found.values.items():
            if isinstance(value, (int, float)) and not table.possible(value):
                impossible[column] += 1
                found.values[column] = None
        resolved.append(found)
        rows.append(_row(launch, index, name, cc, values, found))
    launches = table.make("launches", rows)
    notes = [*raw.notes, *_notes(resolved)]
    notes += [f"{column}: {count} of {len(resolved)} launches have a value below 0 or beyond any measurement; left "
              "empty, the raw metric keeps it." for column, count in impossible.items()]
    notes += [f"{name}: {count} of {len(resolved)} launches hold it more than once with different values; left empty. "
              "Are there two runs in the file? Open them as two files." for name, count in sorted(twice.items())]
    empty = [i for i, (one, found) in enumerate(zip(raw.launches, resolved))
             if not one.kernel and not any(value is not None for value in found.values.values())]
    if empty and any(one.kernel for one in raw.launches):
        notes.append(f"Launches {', '.join(map(str, empty[:10]))} have neither a name nor a counter: "
                     "the file may be damaged there.")
    devices = sorted(launches["device"].dropna().unique())
    if len(devices) > 1:
        notes.append(f"The file holds launches of {len(devices)} GPUs: {', '.join(devices)}.")
    notes += unverified.of_name(str(file["name"]))
    raw_metrics = _metrics(raw, resolved)
    notes += spelling.notes(raw_metrics["metric"].unique(), raw.header)
    notes += agree.notes(raw, numbers.number)
    profile = {
        "schema_version": 1, "kind": "report", "counters": bool(rows), "gpu": _gpu(raw, numbers, launches),
        **raw.session,
        "file": {**file, "form": raw.form}, "notes": notes,
    }
    return Bundle(name, profile, launches, raw_metrics, notes=tuple(notes))


def _values(launch: RawLaunch, numbers: Format) -> tuple[dict[str, Any], set[str]]:
    """Raw values by name, numbers where they are wanted, and the names that stand there twice with different values,
    which have none then. Of a name that comes in several dimensions the others are under ``name\\0``."""
    values: dict[str, Any] = {}
    again: dict[str, list[tuple[Any, str]]] = {}
    for name, unit, value in launch.metrics:
        if name not in WANTED and not name.startswith(tensor.OPCODES + "["):
            continue
        if isinstance(value, str):
            number = numbers.number(value)
            value = value if number is None and name in metrics.TEXT_NAMES else number
        if name not in values:
            values[name] = (value, unit)
        elif (value, unit) != values[name]:
            again.setdefault(name, []).append((value, unit))
    conflicts = set()
    for name, entries in again.items():
        first, *others = _by_dimension([values[name], *entries])
        values[name] = first[0]
        if others:
            values[f"{name}\0"] = ([entry for entry, _ in others], "")
        if first[1] or any(conflict for _, conflict in others):
            conflicts.add(name)
    return values, conflicts


def _by_dimension(entries: list[tuple[Any, str]]) -> list[tuple[tuple[Any, str], bool]]:
    """One (value, unit) for each dimension among the entries of a name, and whether its values conflict: it has none
    then. Values in two units agree within the two decimals that ncu prints."""
    found: dict[str, tuple[tuple[Any, str], bool]] = {}
    for value, unit in entries:
        factor, dimension = units.base(unit) or (1.0, unit)
        if dimension not in found or (found[dimension][0][0] is None and not found[dimension][1]):
            found[dimension] = (value, unit), False
            continue
        (first, its_unit), conflict = found[dimension]
        if conflict or value is None:
            continue
        other = (units.base(its_unit) or (1.0, ""))[0]
        numeric = isinstance(first, (int, float)) and isinstance(value, (int, float))
        room = 0.0 if unit == its_unit else 0.01 * max(factor, other)
        if first != value if not numeric else abs(first * other - value * factor) > room:
            found[dimension] = (None, its_unit), True
    return list(found.values())


def _cc(values: dict[str, Any]) -> str | None:
    major, minor = (values.get(name, (None, ""))[0] for name in (rules.CC_MAJOR, rules.CC_MINOR))
    known = _finite(major) and _finite(minor) and 0 <= major < 100 and 0 <= minor < 100
    return f"{int(major)}.{int(minor)}" if known else None


def _finite(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _dims(values: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = [values.get(name, (None, ""))[0] for name in names]
    return triple(",".join(str(int(v)) for v in found)) if all(map(_finite, found)) else None


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
    first, _ = _values(raw.launches[0], numbers)
    for key, (name, factor) in rules.PROFILE.items():
        value, unit = first.get(name, (None, ""))
        if key == "name" and isinstance(value, str) and value:
            gpu[key] = value
        elif key != "name" and _finite(value) and value > 0 and (known := units.base(unit)):
            size = value * factor * known[0]
            gpu |= {key: int(size)} if 1 <= size < table.LARGEST[table.REAL] else {}
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
    wrong = {(name, unit) for found in resolved for name, unit in found.wrong_units.items()}
    for name, unit in sorted(wrong):
        notes.append(f"{name}: unit {unit!r} is not one of what it counts; the value is kept as it came and not used.")
    parts = {(name, unit) for found in resolved for name, unit in found.fractions.items()}
    for name, unit in sorted(parts):
        notes.append(f"{name}: a total of {unit} with decimals cannot be; the unit may have lost its prefix, so the "
                     "value is kept as it came and not used.")
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
