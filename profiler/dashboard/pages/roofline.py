"""Roofline: how much work each byte pays for, under the roofs of the GPU."""

import streamlit as st

from profiler.dashboard import state, text
from profiler.dashboard.components import boxes, charts, rooflines, selectors, tables
from profiler.figures import labels, units

view = selectors.choose(need_shape=False)
if view is None:
    boxes.end()
with view.controls.container(horizontal=True, vertical_alignment="bottom"):
    level = state.select(text.ROOFLINE_LEVEL, "level", text.ROOFLINE_LEVELS, "dram", st.segmented_control)
    if view.shape:
        stages = state.flag(text.ROOFLINE_STAGES, "steps", True, help=text.ROOFLINE_STAGES_HELP)
if view.shape:
    figure = charts.show(view.source, rooflines.attention, view.shape, view.implementations, direction=view.direction,
                         level=level, stages=stages, key="roofline")
else:
    figure = charts.show(view.source, rooflines.launches, level=level, key="roofline")
    boxes.lacking(view.bundle, "roofline")

points = figure[figure["kind"] == "point"] if "kind" in figure else figure
absent = points[points["why_not_drawn"].notna()] if len(points) else points
if len(absent):
    with st.expander(text.NOT_DRAWN.format(count=labels.count(len(absent), "launch", "launches"))):
        st.dataframe(tables.named(absent[rooflines.NOT_DRAWN]), hide_index=True)
if len(points) > len(absent):
    with st.expander(text.POINTS):
        drawn = points[points["why_not_drawn"].isna()][rooflines.NUMBERS]
        drawn = drawn.assign(flops=drawn["flops"].map(units.flop), bytes=drawn["bytes"].map(units.nbytes),
                             ns=drawn["ns"].map(units.duration), intensity=drawn["intensity"].map(units.intensity),
                             flops_per_s=drawn["flops_per_s"].map(units.flops))
        st.dataframe(tables.named(drawn), hide_index=True)
