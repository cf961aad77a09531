"""Memory IO: bytes and memory over N, measured beside predicted, with fitted slopes."""

import streamlit as st

from profiler.dashboard import state, text
from profiler.dashboard.components import boxes, charts, selectors, tables
from profiler.figures.scaling import scaling

view = selectors.choose(over_n=True)
if view is None:
    boxes.end()
quantity = state.select(text.SCALING_QUANTITY, "quantity", text.MEMORY_QUANTITIES, "dram_bytes",
                        view.controls.segmented_control)
drawn = charts.show(view.source, scaling, view.shape, quantity, view.implementations, direction=view.direction,
                    key="memory")
if len(drawn):
    with st.expander(text.VALUES):
        st.dataframe(tables.over_n(drawn), hide_index=True)
