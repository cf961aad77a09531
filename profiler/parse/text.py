"""Text that Nsight Compute printed: finds every table in it, whatever stands before, between and after."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from profiler.errors import CountersNotPermitted, NoLaunches, UnsupportedFile
from profiler.parse import page, rows
from profiler.parse.numbers import Format, looks_numeric, looks_numeric_or_none
from profiler.parse.raw import RawFile

PERMISSION = "ERR_NVGPUCTRPERM"
PERMISSION_REMEDY = (
    "Allow the counters for all users (Linux: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d, then reboot; Windows: NVIDIA Control Panel, Manage GPU Performance Counters), or run ncu as "
    "administrator. On a rented GPU ask the provider.")
HOW = ("Give it a report (.ncu-rep), or an export: `ncu --import report.ncu-rep --csv --page raw > export.csv`.")
DELIMITERS = (",", ";", "\t")
LONGEST_JOINED = 1 << 20  # characters of a row that goes on over line breaks
csv.field_size_limit(1 << 24)


def decode(data: bytes) -> tuple[str, list[str]]:
    """Text and what there is to say of its encoding. UTF-16 is what PowerShell's ``>`` writes."""
    for mark, codec in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(codec, errors="replace"), []
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["The text is not UTF-8; names with other than ASCII letters may look wrong."]


@dataclass(slots=True)
class Table:
    """A CSV table as found: header cells, then its rows of cells; kind: "long", "summary" or "wide".

    cut: lines that begin as rows of the table and are not whole; place: column number by name.
    """

    kind: str
    header: list[str]
    delimiter: str
    rows: list[list[str]] = field(default_factory=list)
    cut: int = 0
    place: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.place = {name: i for i, name in enumerate(self.header)}


def read(data: bytes) -> RawFile:
    """The launches of a text export. Raises CountersNotPermitted, NoLaunches or UnsupportedFile, each by name."""
    text, notes = decode(data)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").split("\n")
    tables = list(find_tables(lines))
    pages = page.find(lines) if not tables else []
    if not tables and not pages:
        _refuse(text, lines)
    numbers = Format.of(rows.cells(tables) if tables else page.cells(pages), tables[0].delimiter if tables else ",")
    out = RawFile(_form(tables, pages), decimal=numbers.decimal, notes=[*notes, *numbers.notes], text=True)
    if tables:
        rows.collect(tables, numbers, out)
    else:
        page.collect(pages, out)
    if PERMISSION in text:
        out.notes.append(f"ncu reported {PERMISSION} for part of the run: some launches may be missing.")
    if not out.launches:
        _refuse(text, lines)
    return out


def _form(tables: list[Table], pages: list[page.Block]) -> str:
    kinds = sorted({t.kind for t in tables})
    if kinds:
        return "ncu CSV, " + " and ".join(kinds)
    return "ncu text page, summary" if any(b.invocations is not None for b in pages) else "ncu text page"


def _refuse(text: str, lines: list[str]) -> None:
    first = "\n".join(line[:200] for line in lines[:8])
    if PERMISSION in text:
        raise CountersNotPermitted(f"The file holds no measurements: ncu may not read the counters ({PERMISSION}).",
                                   remedy=PERMISSION_REMEDY, detail=first)
    if "No kernels were profiled" in text:
        raise NoLaunches("The file holds no measurements: ncu profiled no kernel.",
                         remedy="Check the filters of the ncu command (--kernel-name, --nvtx-include, --launch-skip).",
                         detail=first)
    if any(map(_delimited, lines)) or "==PROF==" in text:
        raise NoLaunches("The file holds no kernel launch, only what surrounds a table.", remedy=HOW, detail=first)
    shown = " / ".join(line.strip()[:60] for line in lines if line.strip())[:160]
    raise UnsupportedFile(f"No Nsight Compute table found in this file, which begins: {shown}", remedy=HOW,
                          detail=first)


def _cells(line: str, delimiter: str) -> list[str]:
    """Cells of one line; none when it is not well-formed, as where a quoted cell is cut off."""
    try:
        return next(csv.reader(line.split("\n"), delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


RAW_NAME = re.compile(r"[a-z0-9]+__[a-z0-9_]+(?:\.[a-z0-9_]+)*(?: \[[^\]]*\])?")


def _kind(header: list[str]) -> str:
    names = {cell.strip() for cell in header}
    if "Metric Name" in names:
        if "Metric Value" in names:
            return "long"
        return "summary" if "Average" in names else ""
    raw = sum(1 for cell in names if RAW_NAME.fullmatch(cell))
    return "wide" if raw and (raw >= 2 or "Kernel Name" in names or len(names) == raw) else ""


def _delimited(line: str) -> tuple[str, str, list[str]] | None:
    """(kind, delimiter, header) when ``line`` is the header of a table."""
    if "__" not in line and "Metric Name" not in line:
        return None
    for delimiter in DELIMITERS:
        if delimiter in line or (delimiter == "," and RAW_NAME.fullmatch(line.strip().strip('"'))):
            header = [cell.strip() for cell in _cells(line, delimiter)]
            kind = _kind(header)
            if kind:
                return kind, delimiter, header
    return None


def find_tables(lines: list[str]) -> Iterator[Table]:
    """Every CSV table of the file, in order. A line that cannot belong to a table (program output, ==PROF==) is
    passed over."""
    table: Table | None = None
    record = ""
    for record in _records(lines):
        if not record or record.startswith("=="):
            continue
        header = _delimited(record)
        if header:
            if table is None or header[2] != table.header:
                if table is not None:
                    yield table
                table = Table(header[0], header[2], header[1])
        elif table is not None:
            _add(record, table)
    if table is not None:
        if table.kind == "wide" and len(table.header) > 1 and looks_numeric(record):
            table.cut += 1  # the last line, cut before its first delimiter
        yield table


def _add(record: str, table: Table) -> None:
    """Put a line into ``table`` when it is one of its rows, count it when it begins as one, else pass it over."""
    if table.delimiter not in record and len(table.header) > 1:
        return
    cells = _cells(record, table.delimiter)
    if _belongs(cells, table):
        table.rows.append(cells)
    elif _begins(record, table):
        table.cut += 1


def _belongs(cells: list[str], table: Table) -> bool:
    """Whether a line is a row of ``table`` rather than program output with commas in it, or parts of two rows."""
    if len(cells) > len(table.header):
        return False
    place = table.place
    if table.kind in ("long", "summary"):
        if len(cells) <= place["Metric Name"] or ("ID" in place and not cells[place["ID"]].strip().isdecimal()):
            return False
        return all(re.fullmatch(pattern, cells[place[name]].strip()) for name, pattern in _SHAPES if name in place)
    if "ID" in place:
        key = cells[place["ID"]].strip() if len(cells) > place["ID"] else "x"
        return (key.isdecimal() or key == "") and len(cells) > len(table.header) // 2
    return len(cells) == len(table.header) and (not table.rows or any(map(looks_numeric_or_none, cells)))


_SHAPES = (("CC", r"(?:\d+[.,]\d+)?"), ("Block Size", r"(?:\(.*\))?"), ("Grid Size", r"(?:\(.*\))?"))


def _begins(record: str, table: Table) -> bool:
    """Whether a line that is no row begins as one: with a quoted launch number, or with numbers only."""
    first, *rest = record.split(table.delimiter)
    if "ID" in table.place:
        return record.startswith('"') and first.strip('" ').isdecimal()
    return table.kind == "wide" and bool(rest) and all(looks_numeric(cell) for cell in (first, *rest))


def _records(lines: list[str]) -> Iterator[str]:
    """Lines, with those joined whose quoted cell goes on over a line break; a quote that never closes joins nothing."""
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith('"') and line.count('"') % 2:
            joined = line
            for extra in range(1, 30):
                if index + extra >= len(lines) or lines[index + extra].startswith("=="):
                    break
                joined += "\n" + lines[index + extra]
                if len(joined) > LONGEST_JOINED:
                    break
                if joined.count('"') % 2 == 0:
                    line, index = joined, index + extra
                    break
        yield line.rstrip("\n")
        index += 1
