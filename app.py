"""`streamlit run app.py`: the FlashScope dashboard."""

import gc
import sys

import streamlit as st

if "profiler.dashboard.frame" not in sys.modules:
    gc.disable()  # nothing of what is imported is garbage, and looking takes a fifth of a cold start; run() enables it

from profiler.dashboard import frame

page = st.navigation(frame.pages(), expanded=True)
st.set_page_config(page_title=f"{page.title} · FlashScope", page_icon=frame.ICON, layout="wide")
frame.run(page)
