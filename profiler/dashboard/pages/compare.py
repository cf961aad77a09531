"""Compare: sources side by side; first how they differ in recording, then their points and numbers."""

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, compare, roles, rooflines, selectors, tables
from profiler.figures import labels

sources = selectors.several_sources()
if len(sources) < 2:
    if store.sources():
        boxes.missing(text.COMPARE_NEEDS_TWO, text.COMPARE_NEEDS_TWO_REMEDY)
    boxes.end()
bundles = {source.label: store.load(source) for source in sources}
known = {source.label: store.load(source).once(selectors.configurations) for source in sources}
with st.container(horizontal=True, vertical_alignment="bottom"):
    view = selectors.common_shape(bundles, known)
    counted = rooflines.levels_of(sources, whole=view is not None)
    level = state.select(text.ROOFLINE_LEVEL, "level", counted, "dram", st.segmented_control)
    under = state.select(text.COMPARE_VIEW, "under", text.COMPARE_VIEWS, "own", st.segmented_control)
shape, direction = (view.shape, view.direction) if view else (None, "forward")

recorded = store.derive(sources, compare.recorded)
differing = recorded[recorded[text.SAME_OR_NOT] == text.DIFFERS][text.WHAT]
if len(differing):
    st.info(text.COMPARE_DIFFERS.format(names=", ".join(differing)), icon=":material/compare_arrows:")
if shape and (lacking := store.derive(sources, compare.without, shape, direction)):
    st.caption(boxes.plain(text.COMPARE_WITHOUT.format(names=labels.join(lacking))))
tables.fold(text.COMPARE_RECORDED, "recorded", store.derive, sources, compare.recorded)
charts.show(sources, compare.shared_roofline, shape, direction, level=level, view=under, key="compare")
if shape:
    tables.wrapped(store.derive(sources, compare.numbers, shape, direction), "numbers")
steps = store.derive(sources, compare.by_role, shape, direction, level)
if len(steps):
    st.markdown(f"**{text.COMPARE_ROLES}**")
    tables.wrapped(steps, "steps")
    st.caption(text.COMPARE_ROLE_NOTE)
for source in sources:
    roles.panel(source, several=True)
