"""Text pages: what ncu prints on the terminal without --csv, as details or as a summary over invocations."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from profiler.metrics import units
from profiler.parse.numbers import looks_numeric_or_none
from profiler.parse.raw import SUMMED, RawFile, RawLaunch, triple

_HEAD = re.compile(
    r" {0,6}(?P<kernel>\S.*?)(?: (?P<grid>\(\d+, \d+, \d+\))x(?P<block>\(\d+, \d+, \d+\)))?"
    r"(?P<date>, \d{4}-\w{3}-\d{2} [\d:]{8})?(?:, Context \d+)?(?:, Stream \d+)?(?:, Device \d+)?"
    r"(?:, CC (?P<cc>\d+\.\d+))?(?:, Invocations (?P<invocations>\d+))?\s*")
_GPU = re.compile(r" {0,6}Device \d+(?:, CC (?P<cc>\d+\.\d+))?\s*")  # the heading of a summary by GPU
_RULE = re.compile(r"\s*-{3,}(?: +-{3,}){2,}\s*")
_TORN = re.compile(r"\w.*-{5,}|-{5,}.*\w")  # a line of dashes that something else is in
_NVTX = re.compile(r"\s*<\d+,(.*)>\s*")
HEADERS = (["Metric Value"], ["Minimum", "Maximum", "Average"])
_NAME = re.compile(r"[\w #()/.%+:,&'-]+")
LONGEST = 20_000


@dataclass(slots=True)
class Block:
    """One kernel's part of a page. rows: (name, unit, values...) as text; columns: the header words of the values."""

    kernel: str
    grid: str | None
    block: str | None
    cc: str | None
    invocations: str | None
    ranges: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    rows: list[tuple[str, str, list[str]]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    damaged: int = 0  # lines of a table that are not its rows, and a heading that is not one as ncu writes it
    rules: int = 0  # lines of dashes in the current section: one above and one below its rows, and one under a header

    @property
    def open(self) -> bool:
        return 0 < self.rules < (3 if self.columns else 2)

    def close(self) -> None:
        """The next section begins: this one has no lines of dashes, two, or three if it names its columns."""
        self.damaged += self.rules not in (0, 2, 3)
        self.rules, self.columns = 0, []


def find(lines: list[str]) -> list[Block]:
    """The kernels of a text page in order; lines that belong to none are passed over."""
    blocks: list[Block] = []
    cc: str | None = None
    spans: list[tuple[int, int]] | None = None
    for line in lines:
        if len(line) > LONGEST or line.startswith("=="):
            continue
        if blocks and line.startswith(" ") and _TORN.search(line) and not _RULE.fullmatch(line):
            blocks[-1].damaged += 1
        if gpu := _GPU.fullmatch(line):
            cc, spans = gpu["cc"], None
            continue
        head = _head(line)
        if head:
            head.cc = head.cc or cc
            for last in blocks[-1:]:
                last.close()
            blocks.append(head)
            spans = None
        elif not blocks:
            continue
        elif _RULE.fullmatch(line):
            spans = [m.span() for m in re.finditer(r"-+", line)]
            blocks[-1].rules += 1
        elif not line.strip() or line.strip().startswith("Section:"):
            spans = None
            if line.strip():
                blocks[-1].close()
        elif spans is None:
            match = _NVTX.fullmatch(line)
            if match:
                blocks[-1].ranges.append(("", (match[1],)))
        else:
            _row(line, spans, blocks[-1])
    return blocks


def _head(line: str) -> Block | None:
    if ", " not in line or not ("Context " in line or "Invocations " in line or "Device " in line):
        return None
    match = _HEAD.fullmatch(line)
    if not match or match["kernel"].startswith("["):
        return None
    block = Block(match["kernel"], triple(match["grid"] or ""), triple(match["block"] or ""), match["cc"],
                  match["invocations"])
    name = block.kernel  # older versions printed a date where the grid stands now
    block.damaged = (not block.grid and not match["date"]) or name.count("(") != name.count(")") or bool(
        re.search(r"\)x\(|, (?:Context|Device|CC) ", name))
    return block


def _row(line: str, spans: list[tuple[int, int]], block: Block) -> None:
    """A row keeps to the columns that the lines of dashes draw; anything else between them is counted as damaged."""
    name = line[:spans[0][1]].strip()
    edges = [end for _, end in spans]
    parts = [line[a:b].strip() for a, b in zip(edges, [*edges[1:-1], len(line)])]
    between = [line[:spans[0][0]], *(line[a:b] for (_, a), (b, _) in itertools.pairwise(spans))]
    if not name or len(parts) < 2 or any(map(str.strip, between)) or len(line.rstrip()) < edges[-1] or any(
            "  " in part or "---" in part for part in (name, *parts)):
        block.damaged += 1
        return
    if name == "Metric Name" or parts[0] == "Metric Unit" or parts[1:] in HEADERS:
        block.damaged += not (name == "Metric Name" and parts[0] == "Metric Unit" and parts[1:] in HEADERS)
        block.columns = parts[1:]
        return
    block.damaged += "__" not in name and not _NAME.fullmatch(name)
    block.damaged += bool(parts[0] and units.base(parts[0])) and not all(map(_value, parts[1:]))
    block.rows.append((name, parts[0], parts[1:]))


def _value(text: str) -> bool:
    """Whether a value with a unit is a number, with its parts behind it or not, or says that there is none."""
    return looks_numeric_or_none(text.removeprefix("(!)").strip().partition(" (")[0])


def cells(blocks: list[Block]) -> Iterator[tuple[str, str]]:
    """(value, unit) cells, for the number format."""
    return ((value, unit) for block in blocks for _, unit, values in block.rows for value in values)


def collect(blocks: list[Block], out: RawFile) -> None:
    """Append the kernels of a page to ``out``. A summary's value is the average; minimum and maximum stay beside it."""
    summed = 0
    if blocks:
        blocks[-1].damaged += blocks[-1].rules > 3
    if blocks and (blocks[-1].open or not blocks[-1].rules):
        out.notes.append("The page ends inside a table: it is cut short, and its last value may be too.")
    damaged = sum(block.damaged for block in blocks)
    if damaged:
        out.notes.append(f"{damaged} lines of the page are damaged or not ncu's; what they lack was left out.")
    for block in filter(lambda block: block.rows, blocks):
        launch = RawLaunch(block.kernel, cc=block.cc, grid=block.grid, block=block.block)
        if block.ranges:
            launch.ranges = [("", tuple(name for _, names in block.ranges for name in names))]
        summary = any(len(values) > 1 for _, _, values in block.rows)
        if summary:
            summed += 1
            launch.metrics.append(("Invocations", "", block.invocations or ""))
        for name, unit, values in block.rows:
            launch.metrics.append((name, unit, values[-1] if summary else values[0]))
            if summary and len(values) == 3:
                launch.metrics += [(f"{name} [minimum]", unit, values[0]), (f"{name} [maximum]", unit, values[1])]
        out.launches.append(launch)
    if summed:
        out.notes.append(SUMMED.format(summed))
