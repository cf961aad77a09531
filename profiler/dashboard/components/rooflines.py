"""Rooflines of a source: attention on one shape, or every launch of any report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.bundle import Bundle
from profiler.figures import labels
from profiler.figures.ceilings import device_roofs
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.roofline import roofline
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
