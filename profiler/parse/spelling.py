"""Names that damage made: one letter away from a name that is used, which is then missing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from profiler import metrics
from profiler.parse import nvtx
from profiler.parse.tables import IDENTITY

# How counters are rolled up: any other part after a dot is none of ncu's.
_ROLLED = (r"sum|avg|min|max|pct|ratio|max_rate|per_second|per_pass|per_cycle_(?:in_)?(?:elapsed|active|region|frame)|"
           r"(?:pct_of_)?peak_(?:sustained|burst)(?:_(?:active|elapsed|region|frame))?(?:_per_second)?")
_SHAPE = re.compile(rf"(?:\w+:)?(?:[A-Za-z0-9]\w*?__\w+|[a-z0-9][a-z0-9_]*__[a-z0-9_]+(?:\.(?:{_ROLLED}))+)"
                    r"(?: ?[\[(].*)?")
_NO_UNIT = re.compile(rf"(?!\w*?__)\w+\.(?:{_ROLLED})(?:\..*)?")  # rolled up, and no part of the GPU named before it
_NVTX = re.compile(r":(?:PL|CLR|Msg)_Type\b")  # of a column of ranges whose name is no longer that of one
OPERATIONS = ("mma", "add", "mul", "fma")  # one letter before these is an operand type: hmma and dmma are both right
KNOWN = metrics.raw_names() | metrics.SHOWN_NAMES
# Parts of a GPU that counters are of: by the names that are used, and others of the same counters.
UNITS = {name.partition("__")[0] for name in KNOWN} | {
    "c2clink", "ctc", "derived", "device", "fbpa", "fe", "gcc", "gpc", "gr", "idc", "launch", "lrc", "ltc", "mcc",
    "numa", "nvlink", "nvlrx", "nvltx", "pcie", "pm", "profiler", "sass", "source", "sys", "tpc", "vpc"}
WORDS = {"Metric Name", "Metric Unit", "Metric Value", "Minimum", "Maximum", "Average"}  # of the header of a table


def notes(found: Iterable[str], header: Iterable[str] = ()) -> list[str]:
    """What there is to say of the metric names ``found`` and of the column names ``header`` of a CSV table.

    A flipped bit in a name moves its values to a name that nothing uses; no other sign of it is left in the file.
    """
    columns = set(header)
    names = set(found) | columns
    known = KNOWN | IDENTITY | WORDS if columns else KNOWN
    said = []
    for name in sorted(name for name in names - KNOWN - IDENTITY - WORDS if not nvtx.is_push_pop(name)
                       and not nvtx.is_start_end(name)):
        gaps = (gap for gap in _gaps(name) if not gap[1].startswith(OPERATIONS))
        near = {one for gap in gaps for one in _index(bool(columns)).get(gap, ())} & known
        if "__" in name:
            near -= names  # counters may differ by a letter, words of the details page do not
        elif len(name) < 8:
            near = set()
        if near:
            missing = "" if min(near) in names else ", which is missing"
            said.append(f"{name!r} is no name that is used and one letter from {min(near)!r}{missing}: "
                        "the file may be damaged there.")
        elif alike := _alike(name) & known - names:
            said.append(f"{name[:120]!r} begins like no part of a GPU and is else {min(alike)!r}, which is missing: "
                        "the file may be damaged there.")
        elif not _shaped(name):
            said.append(f"{name[:120]!r} is not shaped as ncu's names are: the file may be damaged there.")
    return said


def _shaped(name: str) -> bool:
    """Whether a name is one that ncu could write: of a part of the GPU, in small letters where it is rolled up."""
    if _NVTX.search(name) or not name.isprintable() or _NO_UNIT.fullmatch(name):
        return False
    unit = name.partition("__")[0]
    near = any(gap in _units() for gap in _gaps(unit)) if len(unit) > 4 and unit not in UNITS else False
    return "__" not in name or bool(not near and _SHAPE.fullmatch(name))


def _alike(name: str) -> set[str]:
    """Known names that differ from ``name`` in the part of the GPU alone, where it names none that is known."""
    unit, _, rest = name.partition("__")
    return _ends().get(rest, set()) if rest and unit not in UNITS else set()


@functools.lru_cache(maxsize=1)
def _units() -> set[tuple[str, str]]:
    return {gap for unit in UNITS for gap in _gaps(unit)}


def _gaps(name: str) -> Iterable[tuple[str, str]]:
    return ((name[:i], name[i + 1:]) for i in range(len(name)))


@functools.lru_cache(maxsize=2)
def _index(columns: bool) -> dict[tuple[str, str], list[str]]:
    """Known names by what is left of them without each of their letters."""
    index: dict[tuple[str, str], list[str]] = {}
    for name in KNOWN | IDENTITY | WORDS if columns else KNOWN:
        for gap in _gaps(name):
            index.setdefault(gap, []).append(name)
    return index


@functools.lru_cache(maxsize=1)
def _ends() -> dict[str, set[str]]:
    """Known names by what stands behind the part of the GPU."""
    ends: dict[str, set[str]] = {}
    for name in KNOWN:
        ends.setdefault(name.partition("__")[2], set()).add(name)
    return ends
