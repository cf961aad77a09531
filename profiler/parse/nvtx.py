"""NVTX ranges in text: the cell of a CSV export and the lines of a text page."""

from __future__ import annotations

import re

# domain:range:payload type:payload:colour type:colour:message type:message, where the message repeats the range
_REPEATED = re.compile(r"([^:]*):(.*):\w+:[^:]*:\w+:[^:]*:\w+:\2", re.DOTALL)
_FIELDS = re.compile(r"([^:]*):(.*):\w+:[^:]*:\w+:[^:]*:\w+:.*", re.DOTALL)
_WRITTEN = re.compile(r":(?:none|RGB|ARGB|REGISTERED|ASCII|UNICODE)\b")  # marks of those fields
LONGEST = 4_000  # characters: a longer cell is not ranges


def from_cell(cell: str) -> list[tuple[str, tuple[str, ...]]]:
    """Ranges of one CSV cell, such as ``77  "attn:naive:none:none:RGB:0xff:REGISTERED:naive"``, by domain, outermost
    first."""
    by_domain: dict[str, tuple[str, ...]] = {}
    if len(cell) > LONGEST:
        return []
    for quoted in re.findall(r'"([^"]*)"', cell):
        match = _REPEATED.fullmatch(quoted) or _FIELDS.fullmatch(quoted)
        domain, name = (match[1], match[2]) if match else tuple(quoted.split(":", 1)) if ":" in quoted else ("", quoted)
        by_domain[domain] = (*by_domain.get(domain, ()), name)
    return list(by_domain.items())


def is_damaged(cell: str) -> bool:
    """Whether a cell holds a range with fields that are not as ncu writes them."""
    return len(cell) <= LONGEST and any(
        _WRITTEN.search(quoted) and not _FIELDS.fullmatch(quoted) for quoted in re.findall(r'"([^"]*)"', cell))


def is_push_pop(header: str) -> bool:
    return "Push/Pop_Range" in header


def is_start_end(header: str) -> bool:
    return "Start/Stop_Range" in header or "Start/End_Range" in header
