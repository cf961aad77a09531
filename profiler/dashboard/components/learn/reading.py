"""The checklist for reading a kernel, each point beside the lines of ours; a line's address opens its function."""

from __future__ import annotations

import textwrap

import streamlit as st

from profiler.dashboard import state
from profiler.dashboard.components import boxes
from profiler.learn import reading
from profiler.learn.words import Words


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    opened = state.wish("code") or ""
    for point in reading.POINTS:
        with st.container(border=True):
            left, right = st.columns([1, 2])
            left.markdown(words(point))
            left.markdown(words(f"{point}_say"))
            with right, boxes.guarded():
                for place in reading.places(point):
                    _place(words, place, opened)
    st.markdown(words("if_absent"))


def _place(words: Words, place: reading.Place, opened: str) -> None:
    """The lines around one, and a button that opens or closes the whole function in their place."""
    whole = reading.function(place.address) if place.address == opened else None
    if whole:
        state.use("code", opened)
    label = words("close" if whole else "open", address=place.address)
    st.button(label, key=f"fs.code.{place.address}", type="tertiary", icon=":material/code:", on_click=state.put,
              args=("code", None if whole else place.address))
    # plain: the colours of highlighted code lack contrast
    st.code(_numbered(whole or place), language=None, wrap_lines=True, height=420 if whole else "content")


def _numbered(place: reading.Place) -> str:
    """The excerpt without its common indent, with line numbers of the file; the line that was asked for is marked."""
    lines = textwrap.dedent(place.excerpt).splitlines()
    return "\n".join(f"{'→' if place.first + i == place.line else ' '}{place.first + i:>4}  {line}".rstrip()
                     for i, line in enumerate(lines))
