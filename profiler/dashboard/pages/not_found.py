"""An address that leads nowhere: what was asked for, and every page there is."""

import streamlit as st

from profiler.dashboard import frame, text
from profiler.dashboard.components import boxes

names = [name for entries in frame.LIST.values() for name, _ in entries]
if frame.asked() == frame.address(names[0]):  # the first page is at / and people write its name
    st.switch_page(frame.PAGES / f"{names[0]}.py")
boxes.missing(text.NO_PAGE.format(name=frame.asked()), text.NO_PAGE_REMEDY, pages=tuple(names))
