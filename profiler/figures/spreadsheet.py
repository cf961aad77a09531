"""A table as CSV that a spreadsheet opens without running anything in it."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

FORMULA = ("=", "+", "-", "@")


def csv(frame: pd.DataFrame) -> bytes:
    """``frame`` as CSV with every digit; a text or heading that would run as a formula gets an apostrophe."""
    safe = frame.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = safe[name].map(_text, na_action="ignore")
    safe.columns = [_text(name) for name in safe.columns]
    return safe.to_csv(index=False, lineterminator="\n").encode("utf-8")


def _text(cell: Any) -> Any:
    """Text on one line: a bare carriage return would end the row."""
    if not isinstance(cell, str):
        return cell
    cell = re.sub(r"[\r\n]+", " ", cell)
    return f"'{cell}" if cell.lstrip().startswith(FORMULA) else cell
