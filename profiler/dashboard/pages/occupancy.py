"""Occupancy and Tensor Cores: who has many warps resident, who keeps the pipes busy, and what binds."""

import streamlit as st

from profiler.dashboard import state, text
from profiler.dashboard.components import boxes, charts, selectors, tables
from profiler.figures.bounds import time_bounds
from profiler.figures.quadrant import quadrant

view = selectors.choose(need_shape=False)
if view is None:
    boxes.end()
launches = view.bundle.launches
if view.shape is None:
    boxes.lacking(view.bundle, "occupancy")
    st.dataframe(tables.occupancy(launches), hide_index=True, column_config=tables.config("launches", launches),
                 **tables.EMPTY)
    boxes.end()

show = state.select(text.OCCUPANCY_SHOW, "bound", text.OCCUPANCY_SHOWS, "quadrant", view.controls.segmented_control)
figure = quadrant if show == "quadrant" else time_bounds
charts.show(view.source, figure, view.shape, view.implementations, direction=view.direction, key=show)
st.markdown(text.OCCUPANCY_WHY)
rows = tables.of_shape(launches, view.shape, view.direction, view.implementations)
with st.expander(text.OCCUPANCY_TABLE, expanded=True):
    st.dataframe(tables.occupancy(rows), hide_index=True, column_config=tables.config("launches", rows), **tables.EMPTY)
