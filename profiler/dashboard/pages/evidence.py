"""Evidence: fewer bytes, not fewer FLOPs; the claim in one sentence, the ledger, five numbers, every check."""

import streamlit as st

from profiler import evidence
from profiler.dashboard import store
from profiler.dashboard.components import boxes, cards, charts, claims, roles, selectors, summary
from profiler.errors import BadInput
from profiler.figures.ledger import ledger

view = selectors.choose(default=("naive", "flash2", "hopper", "decode"), need_shape=False)
if view is None:
    boxes.end()
if view.shape is None:
    boxes.no_shapes(view.source, pages=("roofline", "launches"))
    roles.panel(view.source)
    boxes.lacking(view.bundle, "evidence")
    claims.show(store.derive(view.source, evidence.evaluate), view.source.label, expanded=True,
                cause=store.derive(view.source, evidence.shared_cause))
    boxes.end()

others = (view.source, *(s for s in store.recorded().values() if s.key != view.source.key))[:claims.MOST_SOURCES]
try:
    headline = store.derive(view.source, evidence.headline, view.shape, view.direction)
except BadInput as lack:
    boxes.missing(lack.what, lack.remedy, pages=("roofline", "occupancy", "scaling", "launches"))
    claims.show(store.derive(others, evidence.evaluate_beside, view.shape), view.source.label)
    boxes.end()
st.title(summary.sentence(headline))
st.caption(summary.basis(headline, view.direction))
claims.l2_resident(headline)
charts.show(view.source, ledger, view.shape, view.implementations, direction=view.direction, key="ledger")
# Below the figure: it asks every other profile, and the first figure should not wait for those to be read.
st.caption(summary.configuration(headline, store.derive(others, evidence.faster, view.shape, view.direction)))
cards.row(summary.cards(headline, view.direction))
claims.show(store.derive(others, evidence.evaluate_beside, view.shape), view.source.label)
