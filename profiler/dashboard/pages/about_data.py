"""About the data: where every source comes from and what reading it had to say."""

import json
from contextlib import suppress

import streamlit as st

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, honest, tables
from profiler.errors import FlashScopeError
from profiler.figures import labels

MOST_OPEN = 4  # of more sources the details are folded

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
        with boxes.folded(text.ABOUT_MORE, f"about.{source.key}", expanded=len(everything) <= MOST_OPEN) as open_:
            if open_:
                for line in quantities:
                    st.markdown(line)
                if ceilings := bundle.profile.get("ceilings"):
                    st.markdown(f"**{text.CEILINGS}**")
                    tables.wrapped(tables.ceilings(ceilings), f"ceilings.{source.key}")
        if bundle.notes:
            title = text.NOTES.format(count=labels.count(len(bundle.notes), "note"))
            with boxes.folded(title, f"notes.{source.key}") as open_:
                if open_:
                    st.markdown("\n".join(f"- {boxes.plain(note)}" for note in bundle.notes))
        with boxes.folded(text.PROFILE_JSON, f"profile.{source.key}") as open_:
            if open_:
                st.code(json.dumps(bundle.profile, indent=1, ensure_ascii=False, default=str), language="json")
honest.forms()
with boxes.folded(text.COLUMNS_TITLE, "columns") as open_:
    if open_:
        st.markdown(text.COLUMNS_LEAD)
        for name in ("launches", "timings", "metrics"):
            st.markdown(f"`{name}`")
            tables.wrapped(tables.schema(name), f"schema.{name}")
