"""Occupancy and Tensor Cores: why few warps are resident, whether that is fine, what binds."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, selectors, tables
from profiler.figures import occupancy_words
from profiler.figures.bounds import time_bounds
from profiler.figures.quadrant import quadrant

view = selectors.choose(need_shape=False)
if view is None:
    boxes.end()
rows = view.bundle.launches
show = "quadrant"
if view.shape is None:
    boxes.lacking(view.bundle, "occupancy")
else:
    show = state.select(text.OCCUPANCY_SHOW, "bound", text.OCCUPANCY_SHOWS, "quadrant",
                        view.controls.segmented_control)
    rows = tables.of_shape(rows, view.shape, view.direction, view.implementations)
charts.show(view.source, quadrant if show == "quadrant" else time_bounds, view.shape, view.implementations,
            direction=view.direction, key=show)
st.markdown(text.OCCUPANCY_WHY)
for question, said in store.derive(view.source, occupancy_words.answers, view.shape, view.implementations,
                                   view.direction):
    st.markdown(f"**{question}** {boxes.plain(said)}")
if len(rows):
    with st.expander(text.OCCUPANCY_TABLE, expanded=True):
        tables.wrapped(tables.occupancy(rows), "occupancy")
