"""Present: the deck over the whole window, one figure a screen, in the app's theme, at what the last page showed."""

import streamlit as st

from profiler.dashboard import state, text
from profiler.dashboard.components import boxes, charts, talk
from profiler.export import deck

STAGE = """<style>
[data-testid="stSidebar"], [data-testid="stHeader"], [data-testid="stExpandSidebarButton"] { display: none; }
[data-testid="stMain"] { overflow: hidden; }
[data-testid="stMain"] iframe { position: fixed; inset: 0; width: 100vw !important; height: 100vh !important;
  border: 0; z-index: 999980; }
.st-key-leave { position: fixed; right: 12px; top: 8px; width: auto; z-index: 999990; opacity: 0.75; }
</style>"""

found = talk.wished()
if found is None:
    boxes.end()
source, plan = found
with st.spinner(text.TALK_DRAWING):
    told = talk.tell(source, plan)
screens = [s.id for s in told.screens]
came_from = talk.FIRST.get(st.session_state.get(state.CAME_FROM, ""), screens[0])
first = state.choose("screen", screens, came_from if came_from in screens else screens[0])
st.html(STAGE)
st.title(text.PRESENT)
with st.container(key="leave"):
    st.page_link("profiler/dashboard/pages/evidence.py", label=text.TALK_LEAVE, icon=":material/close:")
talk.frame(deck.html(told, charts.theme(), start=f"?screen={first}"))
