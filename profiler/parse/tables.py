"""Finding CSV tables in what ncu printed, among whatever a program printed around them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator

from profiler import metrics
from profiler.errors import DamagedFile
from profiler.metrics import units
from profiler.parse.numbers import looks_numeric, looks_numeric_or_none
from profiler.parse.raw import triple

DELIMITERS = (",", ";", "\t")
LONGEST_JOINED = 1 << 20  # characters of a row that goes on over line breaks
WANTED = metrics.raw_names() | metrics.SHOWN_NAMES
IDENTITY = frozenset((
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Kernel Time", "Invocations", "Section Name", "Rule Name", "Rule Type", "Rule Description",
    "Estimated Speedup Type", "Estimated Speedup"))
csv.field_size_limit(1 << 24)


class Table:
    """A CSV table as found. kind: "long", "summary" or "wide"; full: its header; rows: cells of the kept columns.

    header, place: names and numbers of the kept columns (all of them, unless lean); cut: lines that begin as rows and
    are not whole; left_out: metrics that were not kept.
    """

    def __init__(self, kind: str, full: list[str], delimiter: str, lean: bool = False):
        self.kind, self.full, self.delimiter = kind, full, delimiter
        self.rules = kind == "long" and "Rule Name" in full
        self.quoted = False  # whether cells are: then one more that is not is program output inside a row
        self.bare = 0  # cells of the header that are not quoted all the same, as an index that a spreadsheet added
        self.full_place = {name: i for i, name in enumerate(full)}
        self.rows: list[list[str]] = []
        self.cut = 0
        self.again = 0  # times that the same header came again, less those that the row under it did
        self.left_out: set[str] = set()
        self._picked: list[int] | None = None
        self._wanted = WANTED if lean else None
        self.header = full
        if lean and kind == "wide":
            self._picked = [i for i, name in enumerate(full) if name in WANTED or "__" not in name]
            self.header = [full[i] for i in self._picked]
            self.left_out = set(full) - set(self.header)
        self.place = {name: i for i, name in enumerate(self.header)}

    def add(self, record: str) -> None:
        """Keep a line that is a row of the table, count one that begins as a row, pass over any other."""
        if self._scrap(record):
            self.cut += 1
            return
        if self.delimiter not in record and len(self.full) > 1:
            return
        cells = _cells(record, self.delimiter)
        if self.quoted and not self.bare and not record.startswith('"') and (start := _ROW.search(record)):
            record = record[start.start():]
            cells = _cells(record, self.delimiter)
        if self.quoted and self.rules and record.endswith(self.delimiter):
            cells = cells[:-1]  # the row of a metric ends so
        torn = self.quoted and record.count(f'"{self.delimiter}"') < len(cells) - 1 - self.bare
        if torn or not _belongs(cells, self):
            self.cut += _begins(record, self)
            self.again -= bool(self.rows and cells == self.rows[0])
            return
        if self._picked is not None:
            cells = [cells[i] for i in self._picked if i < len(cells)]
        elif self._wanted is not None and self.kind != "wide":
            name = cells[self.place["Metric Name"]].strip()
            if "__" in name and name not in self._wanted:
                self.left_out.add(name)
                return
        self.rows.append(cells)


    def _scrap(self, record: str) -> bool:
        """Whether a line is the end of the header, of the units or of a row, or no more than the number of one."""
        if record.count('"') % 2 and _SCRAP.fullmatch(record):
            return True
        whole = [self.delimiter.join(cells) for cells in (self.full, *self.rows[:1])]
        tail = len(record) > 3 and any(one != record and one.endswith(record) for one in whole)
        return tail or (self.quoted and len(self.full) > 1 and re.fullmatch(r'"\d+"', record) is not None)


def _cells(line: str, delimiter: str) -> list[str]:
    """Cells of one line; none when it is not well-formed, as where a quoted cell is cut off."""
    try:
        return next(csv.reader(line.split("\n"), delimiter=delimiter, strict=True, skipinitialspace=True), [])
    except csv.Error:
        return []


# How quoted rows and headers begin, behind what a program printed without a line break.
_ROW = re.compile(r'"\d+"[,;\t]"\d+"[,;\t]"')
_SCRAP = re.compile(r'[\d.,;\s"]+')  # with half of a pair of quotes: the end of a row whose beginning is lost
_HEADER = re.compile(r'"(?:ID"[,;\t]"Process ID|Process ID"[,;\t]"Process Name)"[,;\t]')
RAW_NAME = re.compile(r"[a-z0-9]+__[a-z0-9_]+(?:\.[a-z0-9_]+)*(?: \[[^\]]*\])?")


def _repeated(header: list[str]) -> str:
    """A name that only one column can have and two do: then cells and names have come apart; "" when there is none."""
    own = [name for name in header if name in IDENTITY or name.startswith("Metric ")]
    return next((name for name in own if own.count(name) > 1), "")


def _kind(header: list[str]) -> str:
    names = {cell.strip() for cell in header}
    if "Metric Name" in names:
        if "Metric Value" in names:
            return "long"
        return "summary" if "Average" in names else ""
    raw = sum(1 for cell in names if RAW_NAME.fullmatch(cell))
    return "wide" if raw and (raw >= 2 or "Kernel Name" in names or len(names) == raw) else ""


def delimited(line: str) -> tuple[str, str, list[str]] | None:
    """(kind, delimiter, header) when ``line`` is the header of a table."""
    if "__" not in line and "Metric Name" not in line:
        return None
    if not line.startswith(('"', *DELIMITERS)) and (start := _HEADER.search(line)):
        line = line[start.start():]
    for delimiter in DELIMITERS:
        if delimiter in line or (delimiter == "," and RAW_NAME.fullmatch(line.strip().strip('"'))):
            header = [cell.strip() for cell in _cells(line, delimiter)]
            kind = _kind(header)
            if kind and not any(cell.isdecimal() for cell in header):  # a row that damage joined to a header is none
                return kind, delimiter, header
    return None


def find(lines: list[str], lean: bool = False, progress: Callable[[int, int], None] = lambda done, total: None,
         ) -> Iterator[Table]:
    """Every CSV table of the file, in order. A line that cannot belong to a table (program output, ==PROF==) is
    passed over. lean: of a wide table or a long one keep only the metrics that something uses."""
    table: Table | None = None
    record = ""
    for number, record in enumerate(_records(lines)):
        if number % 5000 == 0:
            progress(number, len(lines))
        if not record or record.startswith("=="):
            continue
        header = delimited(record)
        if header:
            if twice := _repeated(header[2]):
                raise DamagedFile(f"The header of a table names the column {twice!r} twice: the file is damaged, and "
                                  "which value belongs to which column cannot be told.",
                                  remedy="Export it again with ncu.")
            if table is None or header[2] != table.full:
                if table is not None:
                    yield table
                table = Table(header[0], header[2], header[1], lean)
                joints = record.count(f'"{header[1]}"')
                table.quoted = 2 * joints > len(header[2])
                table.bare = sum(1 for cell in (header[2][0], header[2][-1]) if not cell)
            else:
                table.again += 1
        elif table is not None:
            table.add(record)
    if table is not None:
        if table.kind == "wide" and len(table.full) > 1 and looks_numeric(record):
            table.cut += 1  # the last line, cut before its first delimiter
        yield table


def _belongs(cells: list[str], table: Table) -> bool:
    """Whether a line is a row of ``table`` rather than program output with commas in it, or parts of two rows."""
    if len(cells) > len(table.full):
        return False
    place = table.full_place
    if table.kind in ("long", "summary"):
        if len(cells) <= place["Metric Name"] or ("ID" in place and not cells[place["ID"]].strip().isdecimal()):
            return False
        upto = place["Metric Value" if table.kind == "long" else "Average"] + 1  # a rule's text may hold line breaks
        return _shaped(cells, place) and not any("\n" in cell for cell in cells[:upto]) and _measured(cells, place)
    if any("\n" in cell for cell in cells):
        return False
    if "ID" in place:
        key = cells[place["ID"]].strip() if len(cells) > place["ID"] else "x"
        return (key.isdecimal() or key == "") and len(cells) > len(table.full) // 2 and _shaped(cells, place)
    return len(cells) == len(table.full) and (not table.rows or any(map(looks_numeric_or_none, cells)))


_SHAPES = (("CC", r"(?:\d+[.,]?\w*)?"), ("Block Size", r"(?:\([^)]*\))?"), ("Grid Size", r"(?:\([^)]*\))?"),
           ("Process ID", r"\d*"))


def _shaped(cells: list[str], place: dict[str, int]) -> bool:
    """Whether the cells that identify a launch look as they must: under a damaged header they are other columns'."""
    return all(place[name] < len(cells) and re.fullmatch(pattern, cells[place[name]].strip())
               for name, pattern in _SHAPES if name in place)


def _measured(cells: list[str], place: dict[str, int]) -> bool:
    """Whether name, unit and value of a long row are such; in a row that lost or gained a cell they are others."""
    name, unit = (cells[place[title]].strip() if title in place else "" for title in ("Metric Name", "Metric Unit"))
    value = place.get("Metric Value", place.get("Average", 0))
    if triple(unit) or re.search(r"\d, \d+\)$", name):
        return False
    if name.startswith("(") or looks_numeric(name) or looks_numeric(unit):
        return False
    return value >= len(cells) or units.base(unit) is not None or looks_numeric_or_none(cells[value]) or not name


def _begins(record: str, table: Table) -> bool:
    """Whether a line that is no row was one before it was damaged: it begins as one, or has half of its cells."""
    half = len(table.full) // 2
    if table.quoted:
        return record.count(f'"{table.delimiter}"') >= half or bool(re.match(r'"\d+"', record))
    pieces = record.split(table.delimiter)
    if "ID" in table.full_place:
        return bool(re.match(r'"\d+"', record)) or (len(pieces) >= half and pieces[0].strip().isdecimal())
    return table.kind == "wide" and len(pieces) > half and 2 * sum(map(looks_numeric, pieces)) >= len(pieces)


def _records(lines: list[str]) -> Iterator[str]:
    """Lines, with those joined whose quoted cell goes on over a line break; a quote that never closes joins nothing."""
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith('"') and line.count('"') % 2:
            joined = line
            for extra in range(1, 30):
                following = lines[index + extra] if index + extra < len(lines) else "=="
                if following.startswith("==") or _ROW.match(following):
                    break
                joined += "\n" + following
                if len(joined) > LONGEST_JOINED:
                    break
                if joined.count('"') % 2 == 0:
                    line, index = joined, index + extra
                    break
        yield line.rstrip("\n")
        index += 1
