"""What every reader hands over: launches with their raw metrics, before any meaning is given to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RawLaunch:
    """One kernel launch. metrics: (name, unit, value): value is a number, or the text as it came; ranges: (domain,
    names from outermost to innermost) of each NVTX domain; grid, block: "x,y,z"."""

    kernel: str | None = None
    cc: str | None = None
    grid: str | None = None
    block: str | None = None
    ranges: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    metrics: list[tuple[str, str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class RawFile:
    """All launches of one file. form: which of the forms it was; decimal: its decimal mark; notes: what reading had
    to say.

    session: what a report says of the run (ncu version, driver, ...), in the keys of profile.json. header: names of the
    columns of CSV tables.
    """

    form: str
    launches: list[RawLaunch] = field(default_factory=list)
    decimal: str = "."
    notes: list[str] = field(default_factory=list)
    session: dict[str, Any] = field(default_factory=dict)
    text: bool = False
    header: set[str] = field(default_factory=set)


OWN_DOMAIN = "flashscope"
SUMMED = "{} rows are summaries: each holds averages over all invocations of a kernel, not one launch."


def innermost(ranges: list[tuple[str, tuple[str, ...]]]) -> tuple[str | None, str | None, str | None]:
    """(range, domain, range_path) of a launch: our own domain where there is one, else the deepest."""
    filled = [(domain, names) for domain, names in ranges if names]
    if not filled:
        return None, None, None
    domain, names = next((r for r in filled if r[0] == OWN_DOMAIN), None) or max(filled, key=lambda r: len(r[1]))
    return names[-1], domain, "/".join(names)


def triple(text: str) -> str | None:
    """"(256, 1, 1)" → "256,1,1"; None for anything else."""
    parts = [part.strip() for part in text.strip().strip("()[]").replace("x", ",").split(",")]
    return ",".join(parts) if len(parts) == 3 and all(re.fullmatch("[0-9]{1,10}", part) for part in parts) else None
