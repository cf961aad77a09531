"""FlashAttention 1 to 4, and the four layers of the idea."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components.learn import parts
from profiler.learn.words import Words

VERSIONS = ("fa1", "fa2", "fa3", "fa4")
COLUMNS = ("hardware", "bottleneck", "changed")


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    parts.table([words("version"), *(words(column) for column in COLUMNS)],
                [[f"**{words(name)}**", *(words(f"{name}_{column}") for column in COLUMNS)] for name in VERSIONS])
    st.markdown(words("roof"))
    st.subheader(words("layers_title"))
    st.markdown(words("layers"))
    st.markdown(words("tuning"))
