"""Evidence: fewer bytes, not fewer FLOPs; the claim in one sentence, the ledger, five numbers, every check."""

import streamlit as st

from profiler import evidence
from profiler.dashboard import store
from profiler.dashboard.components import boxes, cards, charts, selectors, summary
from profiler.figures.ledger import ledger

view = selectors.choose(default=("naive", "flash2"))
if view is None:
    boxes.end()
headline = store.derive(view.source, evidence.headline, view.shape, view.direction)

st.title(summary.sentence(headline))
st.markdown(summary.basis(headline))
charts.show(view.source, ledger, view.shape, view.implementations, direction=view.direction, key="ledger")
cards.row(summary.cards(headline))

claims = store.derive(view.source, evidence.evaluate, view.shape)
with st.expander(summary.verdicts(claims), icon=":material/fact_check:"):
    for claim in claims:
        st.markdown(f"{summary.ICONS[claim.verdict]} **{claim.verdict}** · {claim.statement}")
        st.caption(boxes.plain(claim.sentence + (f" {claim.missing}" if claim.missing else "")))
