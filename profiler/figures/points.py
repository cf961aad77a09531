"""Points under the roofs: one row a launch, or one an implementation as ΣFLOP over Σbytes and Σtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from profiler.bundle import Bundle
from profiler.figures import labels, select, units
from profiler.figures.ceilings import INTEGER
from profiler.metrics.beside import l1_bytes
from profiler.model import Roof, knows, predict, roofs
from profiler.spec import AttentionShape

COLUMNS = ["label", "implementation", "stage", "whole", "source", "device", "launch", "launches", "count", "kernel",
           "flops", "bytes", "bytes_counted", "bytes_compulsory", "bytes_kind", "ns", "time_kind", "intensity",
           "flops_per_s", "why_not_drawn", "work", "unit", "in_l2", "special_per_s"]
LEVEL_COLUMNS = {"dram": ("dram_read_bytes", "dram_write_bytes"), "l2": ("l2_to_xbar_bytes",), "l1": ("l1_bytes",)}
LEVEL_NAMES = {"dram": "HBM", "l2": "L2", "l1": "L1"}
FLOP_COLUMNS = ("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops")
CORES = {"fp32_flops": "fp32", "fp16_flops": "fp16", "fp64_flops": "fp64"}  # column: roof of the CUDA cores
LONGEST = 32  # characters of a kernel's name beside its point
REUSE = 2  # L2 serves this many times the bytes of HBM or more: the data is used from L2
MOST = 2_000  # of more launches than this a point is a kernel
PROFILED, UNPROFILED = "under the profiler", "unprofiled median"


def attention_points(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str], *, level: str = "dram",
                     stages: Sequence[str] = ("naive",), direction: str = "forward") -> pd.DataFrame:
    """Points of attention on one shape: each implementation as a whole, and the launches of those in ``stages``.

    FLOPs are the tensor cores' counter. Bytes of a whole implementation at "dram" are at least compulsory (L2 may still
    hold what was written); ``bytes_counted`` stands beside. Time: the unprofiled median for a whole, the profiler's for
    a launch.
    """
    out: list[dict[str, Any]] = []
    for name in implementations:
        rows = select.records(bundle, shape, name, direction)
        if not rows:
            continue
        if name in stages and len(rows) > 1:
            for row in rows:
                out.append(_raw([row], level, label=labels.stage(row["stage"], short=True), stage=row["stage"]))
        timed = select.timing(bundle, shape, name, direction)
        whole = _raw(rows, level, label=labels.implementation(name), whole=True)
        if timed is not None and not units.missing(timed["median_ns"]):
            whole |= {"ns": timed["median_ns"], "time_kind": UNPROFILED}
        if level == "dram" and knows(name, direction):
            whole["bytes_compulsory"] = predict(select.config(rows[0])).compulsory_bytes
        out.append(whole)
    return _derive(pd.DataFrame(out, columns=COLUMNS), level)


def _raw(rows: list[select.Row], level: str, **what: Any) -> dict[str, Any]:
    """Sums of one or several launches; null where one of them was not counted."""
    moved = [select.summed(rows, c) for c in LEVEL_COLUMNS[level] if c in rows[0]] or [None]
    first, ns = rows[0], select.summed(rows, "duration_ns")
    return {"implementation": first["implementation"], "whole": False, "source": first["source"],
            "device": first["device"],
            "launch": first["launch"], "launches": ", ".join(str(r["launch"]) for r in rows), "time_kind": PROFILED,
            "count": len(rows),
            "kernel": first["kernel"] if len(rows) == 1 else f"{len(rows)} kernels",
            "flops": select.summed(rows, "tensor_flops"), "ns": ns,
            "bytes_counted": None if None in moved else sum(m for m in moved if m is not None),
            "work": f"tensor {next((r['tensor_dtype'] for r in rows if r['tensor_dtype'] is not None), '')}".strip(),
            "unit": "FLOP", "in_l2": len(rows) == 1 and _fits_l2(first),
            "special_per_s": _rate(select.summed(rows, "special_ops"), ns), **what}


def _rate(amount: float | None, ns: float | None) -> float | None:
    return amount / ns * 1e9 if amount is not None and ns else None


def _fits_l2(row: select.Row) -> bool:
    """``_in_l2`` of one launch."""
    known = [row[name] for name in (*LEVEL_COLUMNS["dram"], "l2_size_bytes", "l2_to_sm_bytes")]
    if None in known:
        return False
    read, written, l2, handed = known
    return bool(0 < read + written <= l2 and handed >= REUSE * (read + written))


def _in_l2(rows: pd.DataFrame) -> pd.Series:
    """Whether the bytes of HBM would all fit in L2, and L2 hands the SMs so many more that they are used from there."""
    moved = rows[list(LEVEL_COLUMNS["dram"])].astype("Float64").sum(axis=1, skipna=False)
    return (moved.le(rows["l2_size_bytes"]) & moved.gt(0) & rows["l2_to_sm_bytes"].ge(REUSE * moved)).fillna(False)


def launch_points(bundle: Bundle, *, level: str = "dram") -> pd.DataFrame:
    """Each launch of any source as a point: FLOPs of tensor and CUDA cores as far as counted, the profiler's time.

    A launch with integer tensor operations has another point for those; ``flops`` then are operations, ``unit`` "op".
    work: the unit that did most of it, named as its roof; in_l2: whether its working set is used from L2.

    Of more than MOST launches each kernel is a point: ΣFLOP over Σbytes and Σtime, null where a launch lacks a counter.
    """
    rows = bundle.launches
    shown = {kernel: labels.kernel(kernel, LONGEST) for kernel in rows["kernel"].unique()}
    names = [shown[kernel] if units.missing(stage) else
             f"{labels.implementation(implementation)}: {labels.stage(stage, short=True)}"
             for kernel, implementation, stage in zip(rows["kernel"], rows["implementation"], rows["stage"])]
    amounts = rows[list(FLOP_COLUMNS)].astype("Float64")
    level_bytes = l1_bytes(bundle) if level == "l1" else \
        rows[list(LEVEL_COLUMNS[level])].astype("Float64").sum(axis=1, skipna=False)
    common = pd.DataFrame({
        "label": names, "implementation": rows["implementation"], "stage": rows["stage"], "whole": False,
        "source": rows["source"], "device": rows["device"], "launch": rows["launch"],
        "launches": rows["launch"].astype("string"), "count": 1,
        "kernel": rows["kernel"], "flops": amounts.sum(axis=1, min_count=1), "bytes_counted": level_bytes,
        "ns": rows["duration_ns"], "time_kind": PROFILED, "work": _work(rows, amounts), "unit": "FLOP",
        "in_l2": _in_l2(rows), "special_per_s": rows["special_ops"] / rows["duration_ns"] * 1e9,
    }, columns=COLUMNS)
    whole = rows["tensor_ops"].gt(0).fillna(False)
    integer = common[whole].assign(  # operations, not FLOPs: a point of their own, under a roof of their own
        flops=rows["tensor_ops"], unit="op", work="integer " + rows["tensor_dtype"].fillna("int8"))
    out = pd.concat([common[~(whole & amounts.sum(axis=1).eq(0))], integer], ignore_index=True) if whole.any() \
        else common
    return _derive(_by_kernel(out) if len(rows) > MOST else out, level)


def _work(rows: pd.DataFrame, amounts: pd.DataFrame) -> pd.Series:
    """Which unit did most of a launch's FLOPs: "tensor bf16", "fp32" or "fp64"; null where none did any."""
    units_of = {"tensor_flops": "tensor", **CORES}
    counted = amounts.astype(float).fillna(0.0)
    most = counted.idxmax(axis=1).map(units_of).astype("string").mask(counted.sum(axis=1).eq(0))
    dtype = rows["tensor_dtype"].astype("string").mask(rows["tensor_dtype"].isin(INTEGER))
    return most.where(most.ne("tensor").fillna(True), ("tensor " + dtype.fillna("")).str.strip())


def _by_kernel(points: pd.DataFrame) -> pd.DataFrame:
    """Launches of one kernel as one point; ``launch`` is its first."""
    names = ["source", "device", "implementation", "stage", "label", "kernel", "unit"]
    groups = points.groupby(names, sort=False, dropna=False)
    sums = ["flops", "bytes_counted", "ns"]
    total, known, size = groups[sums].sum(), groups[sums].count(), groups.size()
    out = total.where(known.eq(size, axis=0)).assign(
        launch=groups["launch"].min(), count=size, work=groups["work"].first(),
        in_l2=groups["in_l2"].all()).reset_index()
    text = out["launch"].astype("string")
    others = (out["count"] - 1).map(units.whole)
    return out.assign(launches=text.where(out["count"].eq(1), text + " and " + others + " more"), whole=False,
                      time_kind=PROFILED).reindex(columns=COLUMNS)


def _derive(points: pd.DataFrame, level: str) -> pd.DataFrame:
    """Bytes no lower than compulsory, intensity and FLOP/s; and why a point cannot be drawn (None: it can)."""
    words = LEVEL_NAMES[level]
    flops, counted, need, ns = (points[c].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
                                for c in ("flops", "bytes_counted", "bytes_compulsory", "ns"))
    moved = np.where(np.isnan(counted) | np.isnan(need), counted, np.fmax(counted, need))
    why = np.select([np.isnan(counted), np.isnan(flops), np.isnan(ns), flops == 0, moved == 0, ns == 0],
                    [f"{words} bytes not collected", "FLOPs not collected", "time not measured", "no FLOPs",
                     f"no {words} bytes", "no time"], default="")
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity, rate = (np.where(why == "", v, np.nan) for v in (flops / moved, flops / ns * 1e9))
    return points.assign(
        bytes=moved, intensity=intensity, flops_per_s=rate,
        bytes_kind=np.where(moved > counted, "predicted, compulsory", "measured"), whole=points["whole"].astype(bool),
        why_not_drawn=pd.array([text or None for text in why], "string"), launch=points["launch"].astype("Int64"),
        implementation=points["implementation"].astype("string"), stage=points["stage"].astype("string"),
        work=points["work"].astype("string"), unit=points["unit"].astype("string"),
        in_l2=points["in_l2"].astype("boolean").fillna(False).astype(bool))[COLUMNS]


def attention_roofs(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
                    direction: str = "forward") -> list[Roof]:
    """The roofs for one shape: peaks from the counters of the last implementation that has them, measured ceilings."""
    ceilings = bundle.profile.get("ceilings", ())
    for name in reversed(implementations):
        rows = select.records(bundle, shape, name, direction)
        rows = [row for row in rows if row["tensor_peak_flops_per_s"] is not None] or rows
        if rows:
            return roofs(counters=rows[-1], ceilings=ceilings, dtype=shape.dtype, head_dim=shape.head_dim)
    return roofs(ceilings=ceilings, dtype=shape.dtype, head_dim=shape.head_dim)
