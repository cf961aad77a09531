"""Memory IO: bytes over N, between the levels, over the block size, and predicted beside measured."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, selectors, summary, tables
from profiler.figures.bounds import time_bounds
from profiler.figures.parity import parity
from profiler.figures.pyramid import pyramid
from profiler.figures.scaling import scaling
from profiler.figures.theorem import over_n, theorem
from profiler.figures.traffic import traffic
from profiler.figures.what_if import curves

bar = st.container(horizontal=True)
with bar:
    show = state.select(text.MEMORY_SHOW, "show", text.MEMORY_SHOWS, "scaling", st.segmented_control,
                        label_visibility="collapsed")
    if show in text.IO_QUANTITIES and show != "scaling":  # over N it depends on what the source measured
        options = text.IO_QUANTITIES[show]
        quantity = state.select(text.QUANTITY, f"quantity-{show}", options, next(iter(options)), st.segmented_control,
                                label_visibility="collapsed")
st.caption(text.MEMORY_WHY[show])
all_lengths = show == "scaling" or (show == "theorem" and quantity == "n")
view = selectors.source_only() if show == "parity" else selectors.choose(over_n=all_lengths,
                                                                         compare=show != "theorem")
if view is None:
    boxes.end()

if show == "scaling":
    quantity = selectors.quantity(bar, view, "quantity-scaling", text.IO_QUANTITIES[show])
    drawn = charts.show(view.source, scaling, view.shape, quantity, view.implementations, direction=view.direction,
                        key="memory")
    if len(drawn):
        tables.fold(text.VALUES, "values", tables.over_n, drawn)
elif show == "theorem":
    blocked = [name for name in view.available if not name.startswith(("naive", "sdpa"))]
    if not blocked:
        boxes.missing(text.NO_BLOCKS.format(source=view.source.label), text.NO_BLOCKS_REMEDY)
        boxes.end()
    which = "flash2" if "flash2" in blocked else blocked[0]
    charts.show(view.source, theorem if quantity == "block" else over_n, view.shape, which, key="theorem")
    summary.paper()
elif show == "parity":
    charts.show(view.source, parity, quantity, key="parity")
    summary.worst(view.source, quantity)
elif show == "what_if":
    charts.show(view.source, curves, view.shape, view.implementations, quantity, direction=view.direction,
                key="what-if")
else:
    figure = {"traffic": traffic, "pyramid": pyramid, "bounds": time_bounds}[show]
    charts.show(view.source, figure, view.shape, view.implementations, direction=view.direction, key=show)
    if show == "pyramid":
        tables.fold(text.PYRAMID, "levels", store.derive, view.source, tables.pyramid, view.shape, view.direction)
        summary.beside_matmuls(view.source, view.shape, view.direction)
