"""The checklist for reading a kernel, each point beside the lines of ours."""

from __future__ import annotations

import textwrap

import streamlit as st

from profiler.dashboard.components import boxes
from profiler.learn import reading
from profiler.learn.words import Words


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    for point in reading.POINTS:
        with st.container(border=True):
            left, right = st.columns([1, 2])
            left.markdown(words(point))
            left.markdown(words(f"{point}_say"))
            with right, boxes.guarded():
                for place in reading.places(point):
                    st.caption(f"`{place.address}`")
                    st.code(_numbered(place), language=None, wrap_lines=True)  # plain: the colours lack contrast
    st.markdown(words("if_absent"))


def _numbered(place: reading.Place) -> str:
    """The excerpt without its common indent, with line numbers of the file."""
    lines = textwrap.dedent(place.excerpt).splitlines()
    return "\n".join(f"{place.first + i:>4}  {line}".rstrip() for i, line in enumerate(lines))
