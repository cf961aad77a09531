"""Learn: attention by hand, a chapter at a time, in English or Simplified Chinese. Needs no profile and no GPU."""

from importlib import import_module

import streamlit as st

from profiler.dashboard import state
from profiler.dashboard.components.learn import CHAPTERS
from profiler.learn import words

language = state.choose("lang", list(words.LANGUAGES), "en")
common = words.read(language, "page")
with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
    titles = {name: f"{i}. {common(name)}" for i, name in enumerate(CHAPTERS, 1)}
    chapter = state.select(common("chapter"), "chapter", titles, CHAPTERS[0], width=420)
    state.select(common("language"), "lang", words.LANGUAGES, "en", st.segmented_control)
st.title(common(chapter))
import_module(f"profiler.dashboard.components.learn.{chapter}").draw(words.read(language, chapter), common)

place = CHAPTERS.index(chapter)
with st.container(horizontal=True, horizontal_alignment="distribute"):
    for other, label in ((place - 1, "previous"), (place + 1, "next")):
        if 0 <= other < len(CHAPTERS):
            st.button(common(label, title=common(CHAPTERS[other])), key=f"fs.learn.{label}", on_click=state.put,
                      args=("chapter", CHAPTERS[other]))
