"""Scaling: time and throughput over N, and every implementation side by side on one shape."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, selectors, tables
from profiler.figures import scaling_words
from profiler.figures.bars import bars
from profiler.figures.scaling import scaling

bar = st.container(horizontal=True)
with bar:
    show = state.select(text.SCALING_SHOW, "axis", text.SCALING_SHOWS, "n", st.segmented_control,
                        label_visibility="collapsed")
view = selectors.choose(over_n=show == "n")
if view is None or view.shape is None:
    boxes.end()
if show == "n":
    quantity = selectors.quantity(bar, view, "speed", text.SCALING_QUANTITIES)
    drawn = charts.show(view.source, scaling, view.shape, quantity, view.implementations, direction=view.direction,
                        key="scaling")
    chosen = (view.shape, view.implementations, view.direction)
    for words in (scaling_words.gains, scaling_words.beside_peers):
        if said := store.derive(view.source, words, *chosen):
            st.markdown(boxes.plain(said))
    slopes = store.derive(view.source, scaling_words.slopes, *chosen)
    if len(slopes):
        with st.expander(text.SCALING_SLOPES, expanded=True):
            tables.wrapped(slopes, "slopes")
    if len(drawn):
        tables.fold(text.VALUES, "values", tables.over_n, drawn)
else:
    charts.show(view.source, bars, view.shape, view.implementations, ("time", "tflops", "peak_memory"),
                direction=view.direction, key="bars")
    boxes.fold(text.TIMINGS_TABLE, "timings", tables.timings, view.bundle, view.shape, view.direction,
               view.implementations)
