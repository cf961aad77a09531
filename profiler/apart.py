"""Rows of a bundle that cannot be, kept apart and named, so that the rest can be shown.

One row may be wrong in a table that is right: a mask that is none, a negative N, a key of which a part is missing. The
launches of its configuration are kept apart with it: their sums would lack it and pass for a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from profiler import table
from profiler.errors import BadInput
from profiler.spec import DIRECTIONS, AttentionShape

MOST_SAID = 20
PREFIX = "Kept apart: "  # how the notes about such rows begin
NEEDED = ("implementation", "batch", "heads", "nq", "nk", "head_dim", "dtype", "mask")
KEY = (*NEEDED, "kv_heads", "direction")


def keep(name: str, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows of the table ``name`` that can be, in the schema, and a note for each that cannot.

    Raises BadInput where there are rows and none can be, or a column is not of the schema.
    """
    frame, wrong = _typed(name, frame)
    frame = table.validate(name, frame)
    for row, what in table.faults(name, frame):
        wrong.setdefault(row, what)
    if name != "metrics":
        for row, what in _of_key(frame):
            wrong.setdefault(row, what)
    if name == "launches":
        for row in frame.index[frame["launch"].duplicated(keep=False) & frame["launch"].notna()]:
            wrong.setdefault(int(row), f"launch {frame['launch'][row]} stands more than once")
    if not wrong:
        return frame, []
    first = min(wrong)
    with_it = frame["config_id"].isin(frame["config_id"][list(wrong)].dropna()) if name == "launches" else None
    bad = frame.index.isin(list(wrong)) if with_it is None else frame.index.isin(list(wrong)) | with_it.to_numpy()
    if bad.all():
        raise BadInput(f"table {name}, {wrong[first]} in row {first}.",
                       remedy="No row of the table can be used: import the original reports again.")
    return frame[~bad].reset_index(drop=True), _notes(name, frame, wrong, int(bad.sum()))


def _notes(name: str, frame: pd.DataFrame, wrong: dict[int, str], count: int) -> list[str]:
    said = []
    for row in sorted(wrong)[:MOST_SAID]:
        owner = frame["config_id"][row] if "config_id" in frame else None
        of = f" ({str(owner)[:120]})" if isinstance(owner, str) else ""
        said.append(f"{PREFIX}row {row} of {name}{of}: {wrong[row]}.")
    if len(wrong) > MOST_SAID:
        said.append(f"{PREFIX}{len(wrong) - MOST_SAID} more rows of {name}.")
    if count > len(wrong):
        said.append(f"{PREFIX}{count - len(wrong)} launches of the same configurations, whose sums would else be too "
                    "small.")
    return said


def _typed(name: str, frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str]]:
    """``frame`` with numbers where the schema has numbers; a value that is none is null, and its row wrong."""
    frame, wrong = frame.reset_index(drop=True), {}
    for c in table.TABLES[name]:
        if c.name not in frame or c.dtype not in table.LARGEST or frame[c.name].dtype == c.dtype:
            continue
        kind = "whole numbers" if c.dtype == table.WHOLE else "numbers"
        numbers = pd.to_numeric(frame[c.name], errors="coerce").astype(table.REAL)
        bad = frame[c.name].notna() & numbers.isna()
        if c.dtype == table.WHOLE:
            bad |= (numbers % 1 != 0).fillna(False)
        if bad.any():
            for row in frame.index[bad]:
                wrong[int(row)] = f"column {c.name}: expected {kind}, got {str(frame[c.name][row])[:60]}"
            frame = frame.assign(**{c.name: numbers.mask(bad)})
    return frame, wrong


def _of_key(frame: pd.DataFrame) -> list[tuple[int, str]]:
    """Rows whose key names no attention call, or only a part of one, or not the one of its configuration."""
    present = frame[list(NEEDED)].notna()
    if not present.any(axis=None):
        return []
    columns = [table.values(frame[name]) for name in KEY]
    why = _once(_wrong)
    calls: dict[str, tuple[Any, ...]] = {}
    found = []
    for row, (config, key) in enumerate(zip(table.values(frame["config_id"]), zip(*columns))):
        what = why(key)
        if not what and config is not None and key[0] is not None and calls.setdefault(config, key) != key:
            what = "its key is not that of the other rows of its configuration"
        if what:
            found.append((row, what))
    return found


def _wrong(key: Sequence[Any]) -> str:
    """What is wrong with a key of KEY's columns; "" for a good one and for one that is null throughout."""
    lacking = [name for name, value in zip(NEEDED, key) if value is None]
    if len(lacking) == len(NEEDED):
        return ""
    if lacking:
        return f"names only a part of its attention call: {', '.join(lacking)} missing"
    _, batch, heads, nq, nk, head_dim, dtype, mask, kv_heads, direction = key
    if direction is not None and direction not in DIRECTIONS:
        return f"direction: expected one of {', '.join(DIRECTIONS)}, got {direction[:60]!r}"
    try:
        AttentionShape(batch, heads, nq, nk, head_dim, kv_heads or 0, dtype, mask)
    except BadInput as problem:
        return problem.what.rstrip(".")
    return ""


def _once(function: Callable[[Any], str]) -> Callable[[Any], str]:
    kept: dict[Any, str] = {}

    def asked(key: Any) -> str:
        if key not in kept:
            kept[key] = function(key)
        return kept[key]

    return asked
