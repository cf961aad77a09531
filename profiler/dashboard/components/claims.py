"""Lists of verdicts: checked claims of a source, and the findings on one launch, each with its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import streamlit as st

from profiler.dashboard import text
from profiler.dashboard.components import boxes, charts
from profiler.evidence import CANNOT_TELL, FAILS, HOLDS, Claim, Finding, Headline
from profiler.evidence.claim import UNDECIDED, digits
from profiler.evidence.diagnosis import FINE, LOOK
from profiler.evidence.facts import FAR
from profiler.figures import units

MOST_SOURCES = 8  # asked beside the one on screen for what it cannot decide
ICONS = {HOLDS: ":material/check_circle:", FAILS: ":material/cancel:", CANNOT_TELL: ":material/help:"}
FINDINGS = {LOOK: ":material/search:", FINE: ":material/check_circle:", CANNOT_TELL: ":material/help:"}


def show(found: Sequence[Claim], label: str, *, cause: str = "", expanded: bool = False) -> None:
    """Draw the claims, folded under how many hold, fail and cannot be told; cause: what keeps all from being told.

    What cannot be told for one and the same reason stands together, with the reason once.
    """
    title = text.CLAIMS_TITLE.format(counts=_counts(found, text.VERDICT_COUNTS))
    boxes.fold(title, "claims", _each, found, label, cause, icon=":material/fact_check:", expanded=expanded)


def _each(found: Sequence[Claim], label: str, cause: str) -> None:
    if cause:
        st.markdown(cause)
    for verdict in (HOLDS, FAILS):
        for claim in (c for c in found if c.verdict == verdict):
            _one(claim)
    undecided: dict[str, list[Claim]] = {}
    for claim in (c for c in found if c.verdict == CANNOT_TELL):
        undecided.setdefault(claim.missing, []).append(claim)
    for missing, claims in undecided.items():
        _undecided(missing, claims)
    st.download_button(text.CLAIMS_DOWNLOAD, charts.later(lambda: _json(found)),
                       f"{charts.filename(f'claims-{label}')}.json", "application/json", type="tertiary",
                       icon=":material/download:", on_click="ignore")


def l2_resident(headline: Headline) -> None:
    """A badge where an N×N matrix fits in L2, or nearly: HBM bytes then say nothing about S and P."""
    l2, matrix = headline.l2_size_bytes, headline.matrix_bytes
    if not l2 or matrix >= FAR * l2:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(text.IN_L2 if matrix <= l2 else text.NEAR_L2.format(ratio=units.times(matrix / l2)),
                 icon=":material/memory:", color="orange")
        st.caption(text.IN_L2_WHY.format(matrix=units.nbytes(matrix), l2=units.nbytes(l2)), width="content")


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
    where = f" · {text.CLAIM_SOURCE.format(source=boxes.plain(claim.source))}" if claim.source else ""
    gap = "" if claim.unit == "%" else " "
    value = f" · {digits(claim.value)}{gap}{claim.unit}".replace("-", "−") if claim.value is not None else ""
    said = boxes.plain(claim.statement.rstrip(".") + value)
    st.markdown(f"{ICONS[claim.verdict]} **{claim.verdict}**{where} · {said}")
    about = [text.CLAIM_TOLERANCE.format(tolerance=claim.tolerance, kind=claim.kind)]
    about += [text.CLAIM_INPUTS.format(inputs="; ".join(claim.inputs))] if claim.inputs else []
    st.caption(boxes.plain(claim.sentence), help=boxes.plain(" ".join(about)))


def _undecided(missing: str, claims: Sequence[Claim]) -> None:
    """Claims that lack the same, and what is known of each all the same."""
    st.markdown(f"{ICONS[CANNOT_TELL]} **{CANNOT_TELL}** · "
                + " · ".join(boxes.plain(claim.statement.rstrip(".")) for claim in claims))
    known = [c.sentence.split(" It needs ")[0] for c in claims if not c.sentence.startswith(UNDECIDED)]
    lacking = text.CLAIM_LACKS.format(missing=missing.replace("`", ""))  # `plain` would show the marks of code
    st.caption(boxes.plain(" ".join([*known, lacking])))


def _json(found: Sequence[Claim]) -> bytes:
    """Every check with its figure, tolerance, inputs and cases."""
    return json.dumps([claim.to_json() for claim in found], indent=1, ensure_ascii=False).encode("utf-8")
