"""Five misconceptions beside the numbers of the loaded profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from profiler import evidence
from profiler.dashboard import store
from profiler.dashboard.components import boxes
from profiler.dashboard.components.claims import ICONS
from profiler.dashboard.components.learn import parts
from profiler.figures import units
from profiler.learn import beliefs
from profiler.learn.words import Words

VERDICTS = {beliefs.REFUTED: ":material/cancel:", beliefs.CONFIRMED: ":material/check_circle:",
            beliefs.UNKNOWN: ":material/help:"}


def draw(words: Words, common: Words) -> None:
    source = parts.source()
    if source is None:
        st.markdown(common("no_source"))
    else:
        st.markdown(words("lead", source=boxes.plain(source.label)))
    claims = {c.id: c for c in store.derive(source, evidence.evaluate)} if source else {}
    for key, ids in beliefs.CLAIMS.items():
        with st.container(border=True):
            st.subheader(words(key))
            st.markdown(words(f"{key}_why"))
            if source is None:
                continue
            if key in beliefs.OWN:
                found = store.derive(source, beliefs.OWN[key])
                st.markdown(f"{VERDICTS[found.verdict]} **{words(f'verdict_{found.verdict}')}**")
                said = words(f"{key}_found", **_values(found.values)) if found.values else words("not_decided")
                st.markdown(said)
            if ids:
                st.caption(words("claims_language"))
            for claim in (claims[one] for one in ids):
                st.markdown(f"{ICONS[claim.verdict]} **{claim.verdict}** · {boxes.plain(claim.statement)}")
                st.caption(boxes.plain(claim.missing or claim.sentence))


def _values(values: Mapping[str, Any]) -> dict[str, str]:
    """Numbers for a sentence: exponents and ratios short, times and FLOPs with their unit."""
    out = {name: units.whole(value) if isinstance(value, int) else str(value) for name, value in values.items()}
    out |= {name: f"{values[name]:.2f}" for name in ("slope", "median", "least", "most") if name in values}
    for name in ("first", "last"):
        if name in values:
            out[name] = units.flop(values[name]) if values["first"] >= 1e9 else units.duration(values[name])
    return out
