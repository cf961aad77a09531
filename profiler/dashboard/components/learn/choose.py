"""Which implementation to use, and exact attention beside the families that compute something else."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components import charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_blocks
from profiler.learn import masks
from profiler.learn.words import Words

SITUATIONS = ("s1", "s2", "s3", "s4", "s5")


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    parts.table([words("situation"), words("use"), words("watch")],
                [[words(one), words(f"{one}_use"), words(f"{one}_watch")] for one in SITUATIONS])
    grids = masks.patterns()
    parts.figure(learn_blocks.patterns(grids, [words(f"pattern_{name}") for name in grids], words("pattern_title"),
                                       words("pattern_subtitle"), common("foot_drawn"), charts.theme()), "patterns")
    st.markdown(words("patterns"))
    st.markdown(words("types"))
