"""Points under the roofs: one row a launch, or one an implementation as ΣFLOP over Σbytes and Σtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import labels, select, units
from profiler.model import Roof, knows, predict, roofline_point, roofs
from profiler.spec import AttentionShape

COLUMNS = ["label", "implementation", "stage", "whole", "source", "launch", "launches", "kernel", "flops", "bytes",
           "bytes_counted", "bytes_compulsory", "bytes_kind", "ns", "time_kind", "intensity", "flops_per_s",
           "why_not_drawn"]
LEVEL_COLUMNS = {"dram": ("dram_read_bytes", "dram_write_bytes"), "l2": ("l2_to_xbar_bytes",)}
LEVEL_NAMES = {"dram": "HBM", "l2": "L2"}
FLOP_COLUMNS = ("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops")
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
        rows = select.launches(bundle, shape, name, direction)
        if rows.empty:
            continue
        if name in stages and len(rows) > 1:
            for row in rows.to_dict("records"):
                one = pd.DataFrame([row])
                out.append(_point(f"{labels.stage(row['stage'], short=True)}", name, row["stage"], one, level,
                                  ("tensor_flops",), row["duration_ns"], PROFILED, None))
        timed = select.timing(bundle, shape, name, direction)
        median = None if timed is None else timed["median_ns"]
        ns, kind = (select.total(rows["duration_ns"]), PROFILED) if units.missing(median) else (median, UNPROFILED)
        need = None
        if level == "dram" and knows(name, direction):
            need = predict(select.config(rows.iloc[0])).compulsory_bytes
        out.append(_point(labels.implementation(name), name, None, rows, level, ("tensor_flops",), ns, kind, need))
    return pd.DataFrame(out, columns=COLUMNS)


def launch_points(bundle: Bundle, *, level: str = "dram") -> pd.DataFrame:
    """Each launch of any source as a point: FLOPs of tensor and CUDA cores as far as counted, the profiler's time."""
    out = []
    for row in bundle.launches.to_dict("records"):
        known = tuple(c for c in FLOP_COLUMNS if not units.missing(row[c]))
        label = labels.kernel(row["kernel"]) if units.missing(row["stage"]) else \
            f"{labels.implementation(row['implementation'])}: {labels.stage(row['stage'], short=True)}"
        out.append(_point(label, row["implementation"], row["stage"], pd.DataFrame([row]), level, known,
                          row["duration_ns"], PROFILED, None))
    return pd.DataFrame(out, columns=COLUMNS)


def _point(label: str, implementation: Any, stage: Any, rows: pd.DataFrame, level: str, flop_columns: Sequence[str],
           ns: Any, kind: str, need: float | None) -> dict[str, Any]:
    flops = _sum(rows, flop_columns)
    counted = _sum(rows, LEVEL_COLUMNS[level])
    moved = counted if counted is None or need is None else max(counted, need)
    ns = None if units.missing(ns) else float(ns)
    why = next((text for text, bad in (
        (f"{LEVEL_NAMES[level]} bytes not collected", counted is None), ("FLOPs not collected", flops is None),
        ("time not measured", ns is None), ("no FLOPs", flops == 0), (f"no {LEVEL_NAMES[level]} bytes", moved == 0))
        if bad), None)
    point = roofline_point(flops, moved, ns) if why is None and flops and moved and ns else None
    numbers = [int(n) for n in rows["launch"]]
    return {
        "label": label, "implementation": None if units.missing(implementation) else implementation,
        "stage": None if units.missing(stage) else stage, "whole": stage is None and implementation is not None,
        "source": rows["source"].iloc[0], "launch": numbers[0], "launches": ", ".join(map(str, numbers)),
        "kernel": rows["kernel"].iloc[0] if len(numbers) == 1 else f"{len(numbers)} kernels", "flops": flops,
        "bytes": moved, "bytes_counted": counted, "bytes_compulsory": need, "ns": ns, "time_kind": kind,
        "bytes_kind": "measured" if moved == counted else "predicted, compulsory",
        "intensity": point.intensity if point else None, "flops_per_s": point.flops_per_s if point else None,
        "why_not_drawn": why,
    }


def _sum(rows: pd.DataFrame, columns: Sequence[str]) -> float | None:
    """Σ over rows and columns; None where any value is missing or there is no column."""
    parts = [select.total(rows[c]) for c in columns]
    return None if not parts or any(p is None for p in parts) else float(sum(p for p in parts if p is not None))


def attention_roofs(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
                    direction: str = "forward") -> list[Roof]:
    """The roofs for one shape: peaks from the counters of the last implementation that has them, measured ceilings."""
    ceilings = bundle.profile.get("ceilings", ())
    for name in reversed(implementations):
        rows = select.launches(bundle, shape, name, direction)
        rows = rows[rows["tensor_peak_flops_per_s"].notna()] if rows["tensor_peak_flops_per_s"].notna().any() else rows
        if len(rows):
            return roofs(counters=table.records(rows.tail(1))[0], ceilings=ceilings, dtype=shape.dtype,
                         head_dim=shape.head_dim)
    return roofs(ceilings=ceilings, dtype=shape.dtype, head_dim=shape.head_dim)
