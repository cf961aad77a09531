"""One answer about one launch, and how a missing counter is told."""

from __future__ import annotations

from dataclasses import dataclass

from profiler import metrics, table
from profiler.evidence.facts import Row

FINE, LOOK, CANNOT_TELL = "fine", "look here", "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about a launch. value in unit decides; change: what to change, "" when nothing; nsight: where Nsight
    Compute's own rule says otherwise; missing: the counter that is not there, and how to collect it."""

    id: str
    question: str
    verdict: str
    sentence: str
    value: float | None = None
    unit: str = ""
    change: str = ""
    nsight: str = ""
    missing: str = ""


def lacking(id_: str, question: str, row: Row, *columns: str, what: str = "") -> Finding:
    absent = [c for c in columns if row.get(c) is None]
    flag = metrics.missing_flag(absent, row["cc"])
    text = what or f"not counted: {', '.join(table.column('launches', c).meaning for c in absent)}"
    how = f"; collect with {flag}" if flag else ""
    return Finding(id_, question, CANNOT_TELL, "The report does not say.", missing=text + how)
