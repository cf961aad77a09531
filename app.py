"""`streamlit run app.py`: the FlashScope dashboard."""

import streamlit as st

from profiler.dashboard import frame

page = st.navigation(frame.pages(), expanded=True)
st.set_page_config(page_title=f"{page.title} · FlashScope", page_icon=frame.ICON, layout="wide")
frame.run(page)
