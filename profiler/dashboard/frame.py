"""What surrounds every page: the list of pages, the sidebar, the link, and the box an error ends in."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from profiler.dashboard import ahead, state, store, text
from profiler.dashboard.components import boxes, charts, upload, window
from profiler.figures import style

PAGES = Path(__file__).parent / "pages"
LIST = {  # section -> (file, title); the first page is the default. One section: Streamlit's headings are no valid list
    "": (
        ("evidence", text.EVIDENCE),
        ("roofline", text.ROOFLINE),
        ("memory_io", text.MEMORY_IO),
        ("occupancy", text.OCCUPANCY),
        ("scaling", text.SCALING),
        ("tuning", text.TUNING),
        ("launches", text.LAUNCHES),
        ("compare", text.COMPARING),
        ("learn", text.LEARN),
        ("run", text.RUN),
        ("about_data", text.ABOUT_DATA),
        ("present", text.PRESENT),
        ("export", text.EXPORT),
    ),
}


# A point under a roof. Drawn here, and no page has an icon: Streamlit would fetch that icon from another server.
MARK = """<path d="M3 28 15 9h14" fill="none" stroke="{roof}" stroke-width="4" stroke-linecap="round"
 stroke-linejoin="round"/><circle cx="22" cy="20" r="5" fill="#D55E00"/>"""
ICON = f"""<svg viewBox="0 0 32 32" xmlns="http://www.w3.org/2000/svg">{MARK.format(roof="#0072B2")}</svg>"""
LOGO = f"""<svg viewBox="0 0 190 32" width="190" height="32" xmlns="http://www.w3.org/2000/svg">{MARK}
<text x="42" y="25" font-family="Inter, system-ui, sans-serif" font-size="23" font-weight="650"
 fill="{{ink}}">FlashScope</text></svg>"""
WHOLE = "fs.whole"  # whether this run began with the app, not with the page's fragment
ROOF = {"light": "#0072B2", "dark": "#56B4E9"}


def address(name: str) -> str:
    """The page's part of the address: memory_io is at /memory-io."""
    return name.replace("_", "-")


def asked() -> str:
    """The page's part of the address in the visitor's browser; empty for the first page."""
    return urlsplit(st.context.url or "").path.rstrip("/").rpartition("/")[2]


def pages() -> dict[str, list[Any]]:
    """The pages for `st.navigation`, each with an address of its own; one more, not listed, for any other address."""
    first = next(iter(LIST.values()))[0][0]
    listed = {
        section: [
            st.Page(PAGES / f"{name}.py", title=title, url_path=FIRST if name == first else address(name),
                    default=name == first)
            for name, title in entries
        ]
        for section, entries in LIST.items()
    }
    wanted = asked()
    known = {FIRST, *(address(name) for entries in LIST.values() for name, _ in entries if name != first)}
    if HIDDEN and re.fullmatch("[A-Za-z0-9._~-]{1,100}", wanted) and wanted not in known:
        listed[""].append(st.Page(not_found, title=text.NO_PAGE_TITLE, url_path=wanted, **HIDDEN))
    return listed


def not_found() -> None:
    """The page of an address that leads nowhere: what was asked for, and every page there is."""
    names = [name for entries in LIST.values() for name, _ in entries]
    if asked() == address(names[0]):  # the first page is at / and people write its name
        st.switch_page(PAGES / f"{names[0]}.py")
    boxes.missing(text.NO_PAGE.format(name=asked()), text.NO_PAGE_REMEDY, pages=tuple(names))


FIRST = "first"  # the default page is at /; Streamlit tells pages apart by this all the same
# Older Streamlit lists every page: there an unknown address shows its own notice over the first page
HIDDEN: dict[str, Any] = {"visibility": "hidden"} if "visibility" in inspect.signature(st.Page).parameters else {}
STYLE = """<style>
.stMainBlockContainer {{ padding: 2.4rem 2.6rem 3rem 2.6rem; }}
h1 {{ text-wrap: balance; }}
[data-testid="stMetricValue"] {{ font-size: 1.35rem; font-weight: 600; }}
.stApp :is([data-testid="stMetricValue"], [data-testid="stMetricLabel"]) * {{
  white-space: normal !important; overflow: visible; }}
.stApp .stMarkdown [data-testid="stCaptionContainer"] {{ opacity: 1; }}
.stApp .stMarkdown [data-testid="stCaptionContainer"] :is(p, li) {{ color: {muted}; }}
[data-testid="stBaseButton-primary"], [data-testid="stBaseButton-primary"] * {{ color: {on_primary}; }}
.stApp :is(a, button, summary, label):is(:focus-visible, :has(input:focus-visible)) {{
  outline: 2px solid {focus} !important; outline-offset: 2px; }}
[class*="st-key-dense"] :is(td, th) {{ padding: 0.3rem 0.45rem !important; font-size: 0.8rem;
  overflow-wrap: break-word; word-break: normal; }}
[class*="st-key-dense"] table {{ width: 100%; }}
[data-testid="stButtonGroup"] :is([role="toolbar"], [role="radiogroup"]) {{
  flex-wrap: wrap; overflow: visible; mask: none; }}
.katex-display {{ padding-top: 0.2rem; }}
.fs-chart {{ width: 100%; }}
[data-testid="stElementContainer"]:has(> .stBidiComponent) {{ overflow: visible; }}
@media print {{ .fs-chart .svg-container {{ width: 100% !important; max-width: 100% !important; }} }}
.fs-pictures {{ font-size: 0.875rem; }}
.fs-pictures button {{ all: unset; cursor: pointer; padding: 0.2rem 0.35rem; border-radius: 0.3rem;
  text-decoration: underline; }}
.fs-pictures button:hover {{ color: {focus}; }}
.fs-pictures button:focus-visible {{ outline: 2px solid {focus}; }}
[data-testid="stSidebarUserContent"] {{ padding-bottom: 2rem; }}
</style>"""


def run(page: Any) -> None:
    """Draw the sidebar and the page; whatever goes wrong ends in a box that says what and what to do."""
    state.begin(page.url_path)
    st.session_state[WHOLE] = True
    theme = charts.theme()
    st.html(STYLE.format(muted=style.THEMES[theme].muted, on_primary=style.text_on(ROOF[theme]),
                         focus=ROOF[theme]))
    st.logo(LOGO.format(roof=ROOF[theme], ink=style.THEMES[theme].ink), size="large")
    token = store.token()
    if token and not store.shelves().knows(token):
        state.put(store.TOKEN_PARAMETER, None)
        state.note(text.ADDED_GONE)
    try:
        with boxes.guarded():
            upload.sidebar()
        with st.sidebar:
            window.watch()
        _body(page)
    finally:
        _settle()


@st.fragment
def _body(page: Any) -> None:
    """All but the sidebar, a fragment: a choice on the page draws the page anew and nothing around it."""
    if not st.session_state.pop(WHOLE, False):
        state.begin(page.url_path)
    notes = st.container()
    with boxes.guarded(), ahead.page():
        page._can_be_called = True  # Streamlit lets a page be drawn once an app run, and a fragment runs without one
        page.run()
    if page.url_path != "present":
        st.session_state[state.CAME_FROM] = page.url_path
    _next(page)
    for sentence in state.notes():
        notes.info(boxes.plain(sentence), icon=":material/link:")
    if token := store.token():
        state.use(store.TOKEN_PARAMETER, token)
    state.commit()


def _settle() -> None:
    """Modules are never garbage: a collection takes a tenth of the time once it skips them."""
    loaded = len(sys.modules)
    if _settled.get("modules") != loaded:
        _settled["modules"] = loaded
        gc.freeze()
    gc.enable()


_settled: dict[str, int] = {}


def _next(page: Any) -> None:
    """At the foot of a page, the one to read after it and the question that it answers."""
    names = [name for entries in LIST.values() for name, _ in entries]
    name = next((name for name in names if address(name) == (page.url_path or names[0])), "")
    if name in text.NEXT:
        following, question = text.NEXT[name]
        st.page_link(PAGES / f"{following}.py", label=question, icon=":material/arrow_forward:")
