"""Where introductions err: the claim, and what is so."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components.learn import parts
from profiler.learn.words import Words

# claim -> the chapter that shows it
CLAIMS = {"c1": "memory", "c2": "memory", "c3": "memory", "c4": "sram", "c5": "sram", "c6": "sram", "c7": "backward",
          "c8": "backward", "c9": "faults", "c10": "faults", "c11": "faults", "c12": "choose", "c13": "choose",
          "c14": "sram", "c15": "kernel", "c16": "choose", "c17": "faults"}


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    parts.table([words("claim"), words("so"), words("where")],
                [[words(key), words(f"{key}_so"), common(chapter)] for key, chapter in CLAIMS.items()])
