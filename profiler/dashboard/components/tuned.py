"""The tuned configurations beside the one that the kernels ship with, which another source may have run."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, charts, selectors
from profiler.figures import labels, tuning_rows, units
from profiler.figures.ladder import ladder, ran
from profiler.spec import AttentionShape


def shipped(view: selectors.View, shape: AttentionShape, name: str) -> tuple[dict[str, Any], str] | None:
    """What ``name`` runs with where nothing is asked for, and the source that timed it on the same GPU: the view's own
    first. None where no source has it."""
    gpu = (view.bundle.profile.get("gpu") or {}).get("name")
    others = [one for one in store.sources().values() if one.key != view.source.key]
    for source in (view.source, *others):
        found = store.derive(source, tuning_rows.default, shape, name, view.direction)
        if found and gpu and found["gpu"] == gpu:
            return found, source.label
    return None


def beside(view: selectors.View, rows: pd.DataFrame, name: str) -> str:
    """The fastest beside the shipped configuration, or that it cannot be told."""
    found = shipped(view, view.shape, name) if view.shape else None
    if not found:
        return text.TUNING_NOT_SHIPPED
    return tuning_rows.beside_default(rows, *found, created=str(view.bundle.profile.get("created") or ""))


def steps(view: selectors.View) -> bool:
    """The Hopper kernel's ideas one at a time: drawn where the view's source has them on its shape, and then True;
    else folded, from another source, or how to record one."""
    if view.shape and view.direction == "forward" and store.derive(view.source, ran, view.shape):
        charts.show(view.source, ladder, view.shape, direction=view.direction, key="ladder")
        return True
    boxes.fold(text.LADDER, "ladder", _elsewhere, view)
    return False


def _elsewhere(view: selectors.View) -> None:
    """The ideas one at a time from the first source that has them on a shape like the view's."""
    for source in (view.source, *(one for one in store.sources().values() if one.suite == "ladder")):
        if view.shape and (shape := nearest(store.derive(source, stepped), view.shape)):
            st.caption(boxes.plain(text.LADDER_FROM.format(source=source.label)))
            charts.show(source, ladder, shape, key="ladder")
            return
    boxes.missing(text.NO_LADDER, text.NO_LADDER_REMEDY, text.NO_LADDER_COMMAND)


def stepped(bundle: Bundle) -> list[AttentionShape]:
    """The shapes on which the Hopper kernel ran in steps."""
    return [s for s in (AttentionShape(**{name: row[name] for name in (*selectors.SHAPE, "mask")})
                        for row in selectors.rows_of(bundle) if row["implementation"] == "hopper")
            if ran(bundle, s)]


def nearest(found: list[AttentionShape], shape: AttentionShape) -> AttentionShape | None:
    """Of the shapes that were ``found`` the one that has most in common with ``shape``; None without one."""
    return max(found, key=lambda s: (s.head_dim == shape.head_dim, s.mask == shape.mask, s.dtype == shape.dtype),
               default=None)


def shapes(view: selectors.View, name: str) -> pd.DataFrame:
    """The fastest and the slowest of each shape, and what the shipped configuration takes there."""
    out = []
    for shape, best, worst in store.derive(view.source, tuning_rows.per_shape, name, view.direction):
        found = shipped(view, shape, name)
        beside = units.NOT_AVAILABLE
        if found:
            beside = (f"{units.duration(found[0]['time'])} in {found[1]}: "
                      f"{units.times(found[0]['time'] / best['time'])}, {tuning_rows.name(found[0])}")
        out.append((labels.shape(shape), tuning_rows.name(best), units.duration(best["time"]),
                    units.times(worst["versus_best"]), beside))
    return pd.DataFrame(out, columns=list(text.TUNED_SHAPES))
