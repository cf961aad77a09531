"""`streamlit run app.py`: the FlashScope dashboard."""

import gc
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import streamlit as st
from streamlit import runtime


@asynccontextmanager
async def started(_: Any) -> AsyncIterator[None]:
    """Around the server's life: while the first visitor's browser loads its scripts, the first page is got ready."""

    def ready() -> None:
        gc.disable()  # as below
        from profiler.dashboard import ahead

        ahead.first()

    threading.Thread(target=ready, daemon=True, name="first").start()
    yield


if not runtime.exists() and hasattr(st, "App"):  # newer Streamlit reads this file once before it serves
    app = st.App(__file__, lifespan=started)
else:
    if "profiler.dashboard.frame" not in sys.modules:
        # nothing of what is imported is garbage, and looking takes a fifth of a cold start; run() enables it
        gc.disable()

    from profiler.dashboard import frame

    page = st.navigation(frame.pages(), expanded=True)
    st.set_page_config(page_title=f"{page.title} · FlashScope", page_icon=frame.ICON, layout="wide")
    frame.run(page)
