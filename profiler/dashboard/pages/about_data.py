"""About the data: where every source comes from and what reading it had to say."""

import json
from contextlib import suppress

import streamlit as st

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, honest, tables
from profiler.errors import FlashScopeError
from profiler.figures import labels

MOST_OPEN = 4  # of more sources the details are folded


def more(quantities, ceilings, key):
    """Which quantities a source has and lacks, and its measured ceilings."""
    for line in quantities:
        st.markdown(line)
    if ceilings:
        st.markdown(f"**{text.CEILINGS}**")
        tables.wrapped(tables.ceilings(ceilings), f"ceilings.{key}")


def profile(known):
    """All that was recorded about a source."""
    st.code(json.dumps(known, indent=1, ensure_ascii=False, default=str), language="json")


def columns():
    """What each column of the tables means."""
    st.markdown(text.COLUMNS_LEAD)
    for name in ("launches", "timings", "metrics"):
        st.markdown(f"`{name}`")
        tables.wrapped(tables.schema(name), f"schema.{name}")


st.title(text.ABOUT_DATA)
st.markdown(text.ABOUT_DATA_LEAD)
everything = store.sources()
if not everything:
    boxes.no_source()
readable = []
for source in everything.values():
    with suppress(FlashScopeError):  # said in the source's own box below
        readable.append((source.label, store.load(source)))
if readable:
    tables.wrapped(tables.overview(readable), "sources")
for source in everything.values():
    with st.container(border=True), boxes.guarded():
        bundle = store.load(source)
        st.header(boxes.plain(source.label))
        st.markdown(boxes.plain(boxes.provenance(bundle)))
        counts, *quantities = tables.contents(bundle)
        st.markdown(counts)
        boxes.fold(text.ABOUT_MORE, f"about.{source.key}", more, quantities, bundle.profile.get("ceilings"),
                   source.key, expanded=len(everything) <= MOST_OPEN)
        if bundle.notes:
            title = text.NOTES.format(count=labels.count(len(bundle.notes), "note"))
            said = "\n".join(f"- {boxes.plain(note)}" for note in bundle.notes)
            boxes.fold(title, f"notes.{source.key}", st.markdown, said)
        boxes.fold(text.PROFILE_JSON, f"profile.{source.key}", profile, bundle.profile)
honest.forms()
boxes.fold(text.COLUMNS_TITLE, "columns", columns)
