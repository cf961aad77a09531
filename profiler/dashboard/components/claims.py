"""Lists of verdicts: checked claims of a source, and the findings on one launch, each with its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from profiler.dashboard import text
from profiler.dashboard.components import boxes
from profiler.evidence import CANNOT_TELL, FAILS, HOLDS, Claim, Finding
from profiler.evidence.diagnosis import FINE, LOOK

ICONS = {HOLDS: ":material/check_circle:", FAILS: ":material/cancel:", CANNOT_TELL: ":material/help:"}
FINDINGS = {LOOK: ":material/search:", FINE: ":material/check_circle:", CANNOT_TELL: ":material/help:"}


def show(found: Sequence[Claim]) -> None:
    """Draw the claims, folded under how many hold, fail and cannot be told."""
    title = text.CLAIMS_TITLE.format(counts=_counts(found, text.VERDICT_COUNTS))
    with st.expander(title, icon=":material/fact_check:"):
        for claim in sorted(found, key=lambda claim: list(ICONS).index(claim.verdict)):
            _one(claim)


def diagnosis(found: Sequence[Finding]) -> None:
    """Draw the findings on one launch, what deserves a look first."""
    title = text.DIAGNOSIS.format(counts=_counts(found, text.FINDING_COUNTS))
    with st.expander(title, icon=":material/stethoscope:", expanded=True):
        for finding in sorted(found, key=lambda finding: list(FINDINGS).index(finding.verdict)):
            st.markdown(f"{FINDINGS[finding.verdict]} **{finding.verdict}** · {boxes.plain(finding.question)}")
            said = [finding.missing or finding.sentence]
            said += [text.FINDING_CHANGE.format(change=finding.change.rstrip("."))] if finding.change else []
            said += [f"{finding.nsight.rstrip('.')}."] if finding.nsight else []
            st.caption(boxes.plain(" ".join(said)))


def _counts(found: Sequence[Claim] | Sequence[Finding], words: Mapping[str, str]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in words}
    return " · ".join(words[verdict].format(n=n) for verdict, n in counts.items() if n)


def _one(claim: Claim) -> None:
    st.markdown(f"{ICONS[claim.verdict]} **{claim.verdict}** · {boxes.plain(claim.statement)}")
    said = claim.missing or claim.sentence
    if claim.verdict != CANNOT_TELL:
        said = claim.sentence + " " + text.CLAIM_TOLERANCE.format(tolerance=claim.tolerance, kind=claim.kind)
    st.caption(boxes.plain(said))
