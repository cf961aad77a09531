"""Five misconceptions beside the numbers of the loaded profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    sources = parts.sources()
    if sources:
        st.markdown(words("lead", source=boxes.plain(sources[0].label)))
    else:
        st.markdown(common("no_source"))
    for key, ids in beliefs.CLAIMS.items():
        with st.container(border=True):
            st.subheader(words(key))
            st.markdown(words(f"{key}_why"))
            if not sources:
                continue
            if key in beliefs.OWN:
                own = beliefs.OWN[key]
                found, where = _first(sources, partial(_derived, own), beliefs.UNKNOWN)
                st.markdown(f"{VERDICTS[found.verdict]} **{words(f'verdict_{found.verdict}')}**"
                            + _origin(words, where, sources))
                said = words(f"{key}_found", **_values(found.values)) if found.values else words("not_decided")
                st.markdown(said)
            if ids:
                st.caption(words("claims_language"))
            for name in ids:
                claim, where = _first(sources, partial(_claim, name), evidence.CANNOT_TELL)
                verdict = words(f"claim_{claim.verdict.replace(' ', '_')}")
                st.markdown(f"{ICONS[claim.verdict]} **{verdict}** · {boxes.plain(words(f'says_{name}'))}"
                            + _origin(words, where, sources))
                st.caption(boxes.plain(claim.missing or claim.sentence))


def _claims(source: store.Source) -> dict[str, evidence.Claim]:
    return {claim.id: claim for claim in store.derive(source, evidence.evaluate)}


def _derived(own: Callable[..., Any], source: store.Source) -> Any:
    return store.derive(source, own)


def _claim(name: str, source: store.Source) -> Any:
    return _claims(source)[name]


def _first(sources: Sequence[store.Source], ask: Callable[[store.Source], Any],
           undecided: str) -> tuple[Any, store.Source]:
    """The chosen source's answer; where it cannot tell, that of the first source that can."""
    own = ask(sources[0])
    if own.verdict != undecided:
        return own, sources[0]
    others = ((ask(one), one) for one in sources[1:])
    return next(((said, one) for said, one in others if said.verdict != undecided), (own, sources[0]))


def _origin(words: Words, where: store.Source, sources: Sequence[store.Source]) -> str:
    return "" if where is sources[0] else f" · {words('from', source=boxes.plain(where.label))}"


def _values(values: Mapping[str, Any]) -> dict[str, str]:
    """Numbers for a sentence: exponents and ratios short, times and FLOPs with their unit."""
    out = {name: units.whole(value) if isinstance(value, int) else str(value) for name, value in values.items()}
    out |= {name: f"{values[name]:.2f}" for name in ("slope", "median", "least", "most") if name in values}
    for name in ("first", "last"):
        if name in values:
            out[name] = units.flop(values[name]) if values["first"] >= 1e9 else units.duration(values[name])
    return out
