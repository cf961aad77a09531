"""Roofline: how much work each byte pays for, under the roofs of the GPU."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, roles, rooflines, selectors, summary, tables
from profiler.figures import labels

view = selectors.choose(need_shape=False)
if view is None:
    boxes.end()
levels = store.derive(view.source, rooflines.levels, view.shape is not None)
with view.controls.container(horizontal=True, vertical_alignment="bottom"):
    level = state.select(text.ROOFLINE_LEVEL, "level", levels, "dram", st.segmented_control)
    if view.shape:
        stages = state.flag(text.ROOFLINE_STAGES, "steps", True, help=text.ROOFLINE_STAGES_HELP)
place = st.container()
entered = rooflines.own_roofs(view.source, view.bundle)
with place:
    if view.shape:
        figure = charts.show(view.source, rooflines.attention, view.shape, view.implementations,
                             direction=view.direction, level=level, stages=stages, entered=entered, key="roofline")
    else:
        figure = charts.show(view.source, rooflines.launches, level=level, entered=entered, key="roofline")
        boxes.lacking(view.bundle, "roofline")
    if view.shape and level == "dram" and (said := store.derive(
            view.source, summary.ratios_on, view.shape, view.direction)):
        st.caption(said)
    for note in store.derive(view.source, rooflines.clock_notes):
        st.caption(note)
roles.panel(view.source)

points = figure[figure["kind"] == "point"] if "kind" in figure else figure
absent = points[points["why_not_drawn"].notna()] if len(points) else points
if len(absent):
    title = text.NOT_DRAWN.format(count=labels.count(len(absent), "launch", "launches"))
    tables.fold(title, "absent", tables.named, absent[rooflines.NOT_DRAWN])
if len(points) > len(absent):
    tables.fold(text.POINTS, "points", rooflines.numbers, points)
tables.fold(text.ROOFS_TITLE, "roofs", store.derive, view.source, rooflines.roofs_table, entered)
