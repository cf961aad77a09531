"""`streamlit run app.py`: the FlashScope dashboard."""

import streamlit as st

from profiler.dashboard import frame

st.set_page_config(page_title="FlashScope", page_icon=":material/query_stats:", layout="wide")
frame.run(st.navigation(frame.pages()))
