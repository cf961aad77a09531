"""Rows of CSV tables → raw launches: the long form (one row a metric), its summaries, and the wide form (one row a
launch)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from profiler.metrics import units
from profiler.parse import nvtx
from profiler.parse.numbers import Format, looks_numeric
from profiler.parse.raw import SUMMED, RawFile, RawLaunch, triple
from profiler.parse.tables import IDENTITY, Table

SUMMARY = {"Minimum": " [minimum]", "Maximum": " [maximum]"}
SAMPLE = 200_000  # cells that are asked for the number format


def cells(tables: list[Table]) -> Iterator[tuple[str, str]]:
    """(value, unit) cells, for the number format."""
    return itertools.islice((cell for table in tables for cell in _cells(table)), SAMPLE)


def _cells(table: Table) -> Iterator[tuple[str, str]]:
    place = table.place
    if table.kind == "wide":
        unit_row = _units_row(table)
        columns = _metric_columns(table)
        for row in table.rows[1 if unit_row else 0:]:
            for i in columns:
                if i < len(row):
                    yield row[i], unit_row[i] if unit_row and i < len(unit_row) else "?"
        return
    value = place["Metric Value" if table.kind == "long" else "Average"]
    unit = place.get("Metric Unit", -1)
    for row in table.rows:
        if value < len(row):
            yield row[value], row[unit] if 0 <= unit < len(row) else "?"


def collect(tables: list[Table], numbers: Format, out: RawFile) -> None:
    """Append the launches of all tables to ``out``. A launch that several tables of one run speak of is one launch."""
    known: dict[Any, RawLaunch] = {}
    short = 0
    for index, table in enumerate(tables):
        if table.kind == "wide":
            short += _wide(table, index, numbers, known, out)
        else:
            short += _long(table, index, known, out)
        out.header |= set(table.header)
        torn = [name for name in table.full if '"' in name or (table.kind == "wide" and name and units.base(name))]
        if torn:
            out.notes.append(f"The header of a table is damaged at {torn[0][:60]!r}: that column was not read.")
    short += sum(table.cut for table in tables)
    if short:
        out.notes.append(f"{short} lines are cut short or damaged; what they lack was left out.")
    names: dict[Any, set[Any]] = {}
    for key in known:
        if len(key) > 3 and key[0] and key[1] and all(key[2:5]):
            names.setdefault(key[:2], set()).add(key[2:5])
    twice = sum(len(kernels) > 1 for kernels in names.values())
    if twice:
        out.notes.append(f"{twice} launch numbers belong to two kernels, or to two grids of one: the file is damaged, "
                         "or holds two runs.")


class _Row:
    """Cells of one row by column name."""

    def __init__(self, place: dict[str, int], row: list[str]):
        self.place, self.row = place, row

    def __call__(self, name: str) -> str:
        index = self.place.get(name, -1)
        return self.row[index].strip() if 0 <= index < len(self.row) else ""


def _launch(cell: _Row) -> RawLaunch:
    ranges = [r for header in cell.place if nvtx.is_push_pop(header) for r in nvtx.from_cell(cell(header))]
    if not ranges:
        ranges = [r for header in cell.place if nvtx.is_start_end(header) for r in nvtx.from_cell(cell(header))]
    return RawLaunch(
        kernel=cell("Kernel Name") or None, cc=_cc(cell("CC")), grid=triple(cell("Grid Size")),
        block=triple(cell("Block Size")),
        ranges=ranges)


def _odd(cell: _Row) -> bool:
    """Whether a cell that says which launch it is holds something else than it must."""
    return bool(cell("CC") and not _cc(cell("CC"))) or any(
        cell(name) and triple(cell(name)) is None for name in ("Grid Size", "Block Size")) or any(
        nvtx.is_damaged(cell(name)) for name in cell.place if nvtx.is_push_pop(name) or nvtx.is_start_end(name))


def _cc(text: str) -> str | None:
    return text.replace(",", ".") if re.fullmatch(r"\d+[.,]\d+", text, re.ASCII) else None


def _key(cell: _Row, table: int) -> Any:
    """What makes a launch one: its number, process and kernel; without a process id, within its table only."""
    process = cell("Process ID")
    return (cell("ID"), process or f"table {table}", cell("Kernel Name"), cell("Grid Size"), cell("Block Size"),
            cell("Invocations"))


def _long(table: Table, index: int, known: dict[Any, RawLaunch], out: RawFile) -> int:
    place = table.place
    summary, numbered = table.kind == "summary", "ID" in place
    value_name = "Average" if summary else "Metric Value"
    short, summed, again = 0, 0, 0
    seen: set[tuple[Any, ...]] = set()  # without an ID, a metric that comes again starts the next launch
    run = 0
    for row in table.rows:
        cell = _Row(place, row)
        name = cell("Metric Name")
        if not name:
            continue  # a rule
        if place[value_name] >= len(row):
            short += 1
            continue
        key = _key(cell, index)
        mark = (key, name, cell("Metric Unit"), cell("Section Name"))
        if not numbered and not summary:
            if mark in seen:
                seen, run = set(), run + 1
            key = (*key, run)
        again += mark in seen
        seen.add(mark)
        launch = known.get(key)
        if launch is None:
            launch = known[key] = _launch(cell)
            out.launches.append(launch)
            short += _odd(cell)
            if summary:
                summed += 1
                launch.metrics.append(("Invocations", "", cell("Invocations")))
        entry = (name, cell("Metric Unit"), cell(value_name))
        launch.metrics.append(entry)
        if summary:
            launch.metrics += [(name + suffix, entry[1], cell(column)) for column,
                               suffix in SUMMARY.items() if column in place]
    if summed:
        out.notes.append(SUMMED.format(summed))
    if again:
        out.notes.append(f"{again} rows name a metric of a launch and section again: rows may come twice.")
    return short


def _metric_columns(table: Table) -> list[int]:
    return [i for i, name in enumerate(table.header)
            if name and name not in IDENTITY and not nvtx.is_push_pop(name) and not nvtx.is_start_end(name)]


def _units_row(table: Table) -> list[str] | None:
    """The row of units under the header of a wide table, if it has one."""
    if not table.rows:
        return None
    first = table.rows[0]
    if "ID" in table.header:
        return first if not first[table.header.index("ID")].strip() else None
    metrics = [first[i] for i in _metric_columns(table) if i < len(first) and first[i].strip()]
    wordy = [cell for cell in metrics if not looks_numeric(cell)]
    return first if wordy and len(wordy) == len(metrics) and any(units.base(cell) for cell in wordy) else None


def _wide(table: Table, index: int, numbers: Format, known: dict[Any, RawLaunch], out: RawFile) -> int:
    place = table.place
    unit_row, columns = _units_row(table), _metric_columns(table)
    rows = table.rows[1:] if unit_row else table.rows
    unit = {i: unit_row[i].strip() if unit_row and i < len(unit_row) else "" for i in columns}
    if not unit_row and rows and table.cut:
        unit = dict.fromkeys(columns, "not given")
        out.notes.append("The table has no row of units and lines of it are damaged, perhaps that one: values with a "
                         "unit are kept as they came and not used.")
    elif not unit_row and _scaled(table, columns, numbers):
        unit = dict.fromkeys(columns, "not given")
        out.notes.append("The table has no row of units and its values are scaled (a byte count has decimals): values "
                         "with a unit "
                         "are kept as they came and not used. Export again with --print-units base.")
    elif not unit_row and rows:
        out.notes.append("The table has no row of units; values were taken to be in base units (byte, ns, hz).")
    short, again = 0, 0
    mine: dict[Any, list[str]] = {}
    for number, row in enumerate(rows):
        cell = _Row(place, row)
        if (not cell("ID") if "ID" in place else unit_row and row == unit_row):
            table.again -= 1
            continue
        if len(row) < len(table.header):
            short += 1
        key = _key(cell, index) if "ID" in place else (index, number)
        launch = known.get(key)
        if launch is None:
            launch = known[key] = _launch(cell)
            out.launches.append(launch)
            short += _odd(cell)
        again += key in mine
        if mine.setdefault(key, row) is row or row != mine[key]:
            launch.metrics += [(table.header[i], unit[i], row[i].strip()) for i in columns if i < len(row)]
    if table.again < 0:
        out.notes.append("The row of units stands again in the middle of a table, without its header: lines before it "
                         "may be missing, or come twice.")
    if again:
        out.notes.append(f"{again} rows repeat the number, process and kernel of a row before them: they were read as "
                         "the same launch.")
    return short


def _scaled(table: Table, columns: list[int], numbers: Format) -> bool:
    """Whether a table without units shows by a fractional byte or instruction count that its values are scaled."""
    whole = [i for i in columns if table.header[i].endswith(".sum")
             and ("bytes" in table.header[i] or "inst" in table.header[i])]
    return any(isinstance(numbers.number(row[i]), float) for row in table.rows for i in whole if i < len(row))
