"""Rows of a bundle for one configuration: which launches and which timing belong to an implementation on a shape."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, TypeVar

import pandas as pd

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import units
from profiler.spec import AttentionShape, DeviceSpec, RunConfig

_SHAPE = ("batch", "heads", "kv_heads", "nq", "nk", "head_dim", "dtype", "mask")
_KEY = ("direction", "implementation", *_SHAPE)
T = TypeVar("T")
Row = dict[str, Any]
MOST_RECORDS = 20_000  # rows of a table that are kept as plain dicts too
_known: dict[int, tuple[Any, dict[str, Any]]] = {}


def matching(frame: pd.DataFrame, shape: AttentionShape, implementation: str | None = None,
             direction: str = "forward", free: tuple[str, ...] = ()) -> pd.DataFrame:
    """Rows of ``launches`` or ``timings`` with the shape, but for the columns in ``free``."""
    return frame.iloc[_where(frame, shape, implementation, direction, free)]


def matching_records(frame: pd.DataFrame, shape: AttentionShape, implementation: str | None = None,
                     direction: str = "forward", free: tuple[str, ...] = ()) -> list[Row]:
    """The same rows as plain dicts, None where a value is missing: few rows are read faster without a table."""
    at = _where(frame, shape, implementation, direction, free)
    if len(frame) > MOST_RECORDS:
        return table.records(frame.iloc[at])
    every = _with(frame, "records", lambda: table.records(frame))
    return [every[i] for i in at]


def _where(frame: pd.DataFrame, shape: AttentionShape, implementation: str | None, direction: str,
           free: tuple[str, ...]) -> list[int]:
    wanted: dict[str, Any] = {"direction": direction, **{name: getattr(shape, name) for name in _SHAPE}}
    if implementation is not None:
        wanted["implementation"] = implementation
    asked = [(_KEY.index(name), value) for name, value in wanted.items() if name not in free]
    found = [at for key, at in _with(frame, "positions", lambda: _positions(frame)).items()
             if all(key[i] == value for i, value in asked)]
    return sorted(chain.from_iterable(found))


def _with(frame: pd.DataFrame, what: str, find: Callable[[], T]) -> T:
    """What ``find`` finds of ``frame``, kept as long as that lives: comparing columns costs far more than a look."""
    name = id(frame)
    known = _known.get(name)
    if known is None or known[0]() is not frame:
        known = _known[name] = (weakref.ref(frame, lambda _: _known.pop(name, None) and None), {})
    if what not in known[1]:
        known[1][what] = find()
    return known[1][what]


def _positions(frame: pd.DataFrame) -> dict[tuple[Any, ...], list[int]]:
    """Configuration key -> its rows."""
    at: dict[tuple[Any, ...], list[int]] = {}
    keys = frame[list(_KEY)].astype(object)
    for row, key in enumerate(keys.where(keys.notna(), None).itertuples(index=False, name=None)):
        at.setdefault(key, []).append(row)
    return at


def best(bundle: Bundle, rows: pd.DataFrame) -> pd.DataFrame:
    """Of rows that differ in tuning parameters, those of the fastest configuration, profiled ones first."""
    ids = list(rows["config_id"].dropna().unique())
    if len(ids) < 2:
        return rows
    ids = [i for i in ids if bundle.launches["config_id"].eq(i).any()] or ids
    timed = bundle.timings[bundle.timings["config_id"].isin(ids)].dropna(subset=["median_ns"])
    chosen = timed.loc[timed["median_ns"].astype(float).idxmin(), "config_id"] if len(timed) else ids[0]
    return rows[rows["config_id"].eq(chosen)]


def best_records(bundle: Bundle, rows: list[Row]) -> list[Row]:
    """The same of records."""
    ids = list(dict.fromkeys(row["config_id"] for row in rows if row["config_id"] is not None))
    if len(ids) < 2:
        return rows
    profiled, medians = held(bundle, "tunings", lambda: (
        set(bundle.launches["config_id"].dropna()),
        bundle.timings.dropna(subset=["config_id", "median_ns"]).groupby("config_id")["median_ns"].min().to_dict()))
    ids = [i for i in ids if i in profiled] or ids
    chosen = min((i for i in ids if i in medians), key=lambda i: float(medians[i]), default=ids[0])
    return [row for row in rows if row["config_id"] == chosen]


def launches(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str = "forward") -> pd.DataFrame:
    """The launches of an implementation on a shape, in order; of several tunings the fastest. Read, never change."""
    return held(bundle, ("launches", shape, implementation, direction), lambda: best(
        bundle, matching(bundle.launches, shape, implementation, direction)).sort_values("launch"))


def records(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str = "forward") -> list[Row]:
    """The same launches as plain dicts."""
    return held(bundle, ("records", shape, implementation, direction), lambda: sorted(
        best_records(bundle, matching_records(bundle.launches, shape, implementation, direction)),
        key=lambda row: row["launch"]))


def timing(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str = "forward") -> Row | None:
    """The unprofiled measurement of an implementation on a shape; None where there is none."""
    rows = held(bundle, ("timing", shape, implementation, direction), lambda: best_records(
        bundle, matching_records(bundle.timings, shape, implementation, direction)))
    return rows[0] if rows else None


def held(bundle: Bundle, key: Hashable, find: Callable[[], T]) -> T:
    """What ``find`` finds in ``bundle``, found once and kept with it: every figure asks for the same few rows."""
    kept: dict[Hashable, Any] = bundle.__dict__.setdefault("_once", {})
    if key not in kept:
        kept[key] = find()
    return kept[key]


def config(row: Any) -> RunConfig:
    """The configuration of a row of ``launches`` or ``timings``."""
    batch, heads, kv_heads, nq, nk, head_dim = (int(row[name]) for name in _SHAPE[:6])
    shape = AttentionShape(batch, heads, nq, nk, head_dim, kv_heads, row["dtype"], row["mask"])
    text = row["parameters"]
    return RunConfig(row["implementation"], shape, row["direction"], {} if units.missing(text) else json.loads(text))


def device(bundle: Bundle, row: Any = None) -> DeviceSpec:
    """What the bundle knows of its GPU; ``row``, one launch, adds peaks at its measured clock."""
    gpu = bundle.profile.get("gpu") or {}
    known = {} if row is None else {k: v for k, v in dict(row).items() if not units.missing(v)}
    return DeviceSpec(
        name=str(gpu.get("name") or known.get("device") or ""), cc=str(gpu.get("cc") or known.get("cc") or ""),
        sm_count=gpu.get("sm_count") or known.get("sm_count"),
        l2_size_bytes=gpu.get("l2_size_bytes") or known.get("l2_size_bytes"),
        sm_clock_hz=known.get("sm_clock_hz"), dram_bytes_per_s=known.get("dram_peak_bytes_per_s"),
        l2_bytes_per_s=known.get("l2_peak_bytes_per_s"), tensor_flops_per_s=known.get("tensor_peak_flops_per_s"),
        source="report counters")


def total(values: pd.Series) -> float | None:
    """Σ of a column; None where it is empty or any value is missing, so that a part never passes as the whole."""
    return None if values.empty or values.isna().any() else float(values.sum())


def summed(rows: list[Row], column: str) -> float | None:
    """The same of a column of records."""
    values = [row[column] for row in rows]
    return None if not values or None in values else float(sum(values))
