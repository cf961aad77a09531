"""The checklist for reading a kernel, each point beside the lines of ours."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components import boxes
from profiler.learn import reading
from profiler.learn.words import Words


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    for point in reading.POINTS:
        with st.container(border=True):
            left, right = st.columns([2, 3])
            left.markdown(words(point))
            left.markdown(words(f"{point}_say"))
            with right, boxes.guarded():
                for place in reading.places(point):
                    st.caption(f"`{place.address}`")
                    st.code(place.excerpt, language="python")
    st.markdown(words("if_absent"))
