"""The list of checked claims, each with its verdict, its numbers, and what is missing where it cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from profiler.dashboard import text
from profiler.dashboard.components import boxes
from profiler.evidence import CANNOT_TELL, FAILS, HOLDS, Claim

ICONS = {HOLDS: ":material/check_circle:", FAILS: ":material/cancel:", CANNOT_TELL: ":material/help:"}


def show(found: Sequence[Claim]) -> None:
    """Draw the claims, folded under how many hold, fail and cannot be told."""
    counts = {verdict: sum(claim.verdict == verdict for claim in found) for verdict in ICONS}
    said = " · ".join(text.VERDICT_COUNTS[verdict].format(n=n) for verdict, n in counts.items() if n)
    with st.expander(text.CLAIMS_TITLE.format(counts=said), icon=":material/fact_check:"):
        for verdict in ICONS:
            for claim in found:
                if claim.verdict == verdict:
                    _one(claim)


def _one(claim: Claim) -> None:
    st.markdown(f"{ICONS[claim.verdict]} **{claim.verdict}** · {boxes.plain(claim.statement)}")
    said = claim.missing or claim.sentence
    if claim.verdict != CANNOT_TELL:
        said = claim.sentence + " " + text.CLAIM_TOLERANCE.format(tolerance=claim.tolerance, kind=claim.kind)
    st.caption(boxes.plain(said))
