"""Tuning: block sizes × warps × stages on one shape as heatmaps; which is fastest and why the rest lose. What each
switch is worth, where a source varies one thing at a time, and the ideas of FlashAttention-3 one after another."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, selectors, tables, tuned
from profiler.figures import labels, switches, tuning, tuning_rows

view = selectors.choose(compare=False, prefer="tuning")
if view is None or view.shape is None:
    boxes.end()
found = {name: store.derive(view.source, tuning_rows.frame, view.shape, name, view.direction)
         for name in view.available}
switched = [name for name in view.available
            if len(store.derive(view.source, switches.frame, view.shape, name, view.direction)) > 1]
stepped = tuned.steps(view)
for name in switched:
    charts.show(view.source, switches.switches, view.shape, name, direction=view.direction, key=f"switches-{name}")
names = {name: labels.implementation(name) for name, rows in found.items() if len(rows) > 1 and name not in switched
         and not (stepped and name == "hopper")}
if (switched or stepped) and not names:
    boxes.end()
if not names:
    boxes.missing(text.NO_TUNING.format(source=view.source.label), text.NO_TUNING_REMEDY, text.NO_TUNING_COMMAND)
    boxes.end()

with st.container(horizontal=True):
    quantity = state.select(text.QUANTITY, "tuned", text.TUNING_QUANTITIES, "time", st.segmented_control,
                            label_visibility="collapsed")
    if len(names) > 1:
        state.select(text.IMPLEMENTATION, "kernel", names, None, st.segmented_control, label_visibility="collapsed")
chosen = state.choose("kernel", list(names), next(iter(names)))
rows = found[chosen]
charts.show(view.source, tuning.heatmap, view.shape, quantity, implementation=chosen, direction=view.direction,
            key="tuning")
st.markdown(text.TUNING_SHIPPED.format(said=boxes.plain(tuned.beside(view, rows, chosen))))
if why := tuning_rows.sentence(rows):
    st.markdown(text.TUNING_LOSE.format(said=boxes.plain(why)))
with st.expander(text.TUNING_TABLE, expanded=True):
    tables.wrapped(tables.tuned(rows), "tuned")
tables.fold(text.TUNING_SHAPES, "shapes", tuned.shapes, view, chosen)
pairs = store.derive(view.source, tuning_rows.block_pairs, view.shape, chosen, view.direction)
if pairs["here"].notna().any():
    with st.expander(text.BLOCK_PAIRS_TITLE, expanded=True):
        st.markdown(boxes.plain(tuning_rows.pairs_sentence(pairs)))
        tables.wrapped(tables.block_pairs(pairs), "pairs")
        st.caption(text.BLOCK_PAIRS_NOTE)
