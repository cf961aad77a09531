"""Memory IO: bytes over N, between the levels, over the block size, and predicted beside measured."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, selectors, tables
from profiler.evidence import pyramid
from profiler.figures.parity import parity
from profiler.figures.scaling import scaling
from profiler.figures.theorem import theorem
from profiler.figures.traffic import traffic

with st.container(horizontal=True):
    show = state.select(text.MEMORY_SHOW, "show", text.MEMORY_SHOWS, "scaling", st.segmented_control,
                        label_visibility="collapsed")
    if show in text.IO_QUANTITIES:
        options = text.IO_QUANTITIES[show]
        quantity = state.select(text.QUANTITY, f"quantity-{show}", options, next(iter(options)), st.segmented_control,
                                label_visibility="collapsed")
st.caption(text.MEMORY_WHY[show])
view = selectors.choose(over_n=show == "scaling", compare=show in ("scaling", "traffic"))
if view is None:
    boxes.end()

if show == "scaling":
    drawn = charts.show(view.source, scaling, view.shape, quantity, view.implementations, direction=view.direction,
                        key="memory")
    if len(drawn):
        with st.expander(text.VALUES):
            st.dataframe(tables.over_n(drawn), hide_index=True)
elif show == "traffic":
    charts.show(view.source, traffic, view.shape, view.implementations, direction=view.direction, key="traffic")
    with st.expander(text.PYRAMID):
        st.dataframe(tables.pyramid(store.derive(view.source, pyramid, view.shape, view.direction)), hide_index=True)
elif show == "theorem":
    blocked = [name for name in view.available if not name.startswith(("naive", "sdpa"))]
    if not blocked:
        boxes.missing(text.NO_BLOCKS.format(source=view.source.label), text.NO_BLOCKS_REMEDY)
        boxes.end()
    charts.show(view.source, theorem, view.shape, blocked[0], key="theorem")
else:
    charts.show(view.source, parity, quantity, key="parity")
