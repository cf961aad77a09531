"""What surrounds every page: the list of pages, the sidebar, the link, and the box an error ends in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, upload

PAGES = Path(__file__).parent / "pages"
LIST = {  # section -> (file, title, icon); the first page is the default
    "": (
        ("evidence", text.EVIDENCE, ":material/balance:"),
        ("roofline", text.ROOFLINE, ":material/show_chart:"),
        ("memory_io", text.MEMORY_IO, ":material/swap_vert:"),
        ("launches", text.LAUNCHES, ":material/table_rows:"),
        ("about_data", text.ABOUT_DATA, ":material/info:"),
    ),
}


def address(name: str) -> str:
    """The page's part of the address: memory_io is at /memory-io."""
    return name.replace("_", "-")


def pages() -> dict[str, list[Any]]:
    """The pages for `st.navigation`, each with an address of its own."""
    first = next(iter(LIST.values()))[0][0]
    return {
        section: [
            st.Page(PAGES / f"{name}.py", title=title, icon=icon, url_path=address(name), default=name == first)
            for name, title, icon in entries
        ]
        for section, entries in LIST.items()
    }


STYLE = """<style>
.stMainBlockContainer { padding: 3.2rem 2.6rem 3rem 2.6rem; }
h1 { text-wrap: balance; }
[data-testid="stMetricValue"] { font-size: 1.35rem; font-weight: 600; }
[data-testid="stMetricValue"] *, [data-testid="stMetricLabel"] * { white-space: normal; overflow: visible; }
[data-testid="stSidebarUserContent"] { padding-bottom: 2rem; }
</style>"""


def run(page: Any) -> None:
    """Draw the sidebar and the page; whatever goes wrong ends in a box that says what and what to do."""
    state.begin()
    st.html(STYLE)
    token = store.token()
    if token and not store.shelves().knows(token):
        state.put(store.TOKEN_PARAMETER, None)
        state.note(text.ADDED_GONE)
    with boxes.guarded():
        upload.sidebar()
    notes = st.container()
    with boxes.guarded():
        page.run()
    for sentence in state.notes():
        notes.info(boxes.plain(sentence), icon=":material/link:")
    if token := store.token():
        state.use(store.TOKEN_PARAMETER, token)
    state.commit()
