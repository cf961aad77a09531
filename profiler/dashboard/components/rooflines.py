"""Rooflines of a source: attention on one shape, or every launch of any report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from profiler import devices, table
from profiler.bundle import Bundle
from profiler.figures import labels
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.roofline import roofline
from profiler.model import Roof, roofs
from profiler.spec import AttentionShape

NOT_DRAWN = ["label", "launches", "why_not_drawn"]
NUMBERS = ["label", "flops", "bytes", "bytes_kind", "ns", "time_kind", "intensity", "flops_per_s", "launches"]


def attention(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str], *, direction: str, level: str,
              stages: bool, theme: str) -> Any:
    """Implementations on one shape, one point each (ΣFLOP over Σbytes and time); `stages`: the steps of naive too."""
    naive = [name for name in implementations if stages and labels.is_naive(name)][:1]
    points = attention_points(bundle, shape, implementations, level=level, stages=naive, direction=direction)
    return roofline(points, attention_roofs(bundle, shape, implementations, direction), bundle.profile,
                    about=labels.shape(shape), level=level, theme=theme)


def launches(bundle: Bundle, *, level: str, theme: str) -> Any:
    """Every launch of a report under the roofs of its GPU."""
    return roofline(launch_points(bundle, level=level), device_roofs(bundle), bundle.profile, level=level, theme=theme)


def device_roofs(bundle: Bundle) -> dict[str, list[Roof]]:
    """GPU name -> its roofs, from the counters of a launch (one that names the tensor peak, if any), the ceilings
    measured beside it, and the data sheet where exactly that GPU is known."""
    found = {}
    for device, rows in bundle.launches.groupby("device", dropna=False, sort=False):
        peaked = rows[rows["tensor_peak_flops_per_s"].notna()]
        row = table.records((peaked if len(peaked) else rows).head(1))[0]
        name, dtype = "" if pd.isna(device) else str(device), row["tensor_dtype"]
        sheet = devices.find(name, row["cc"], row["sm_count"])
        spec = sheet.spec(dtype or "fp16") if sheet else None
        if spec and str(dtype).startswith("int"):  # integer operations are no FLOPs: no tensor roof stands over them
            spec = replace(spec, tensor_flops_per_s=None)
        found[name] = roofs(counters=row, ceilings=bundle.profile.get("ceilings", ()), dtype=dtype, device=spec)
    return {"": next(iter(found.values()))} if len(found) == 1 else found
