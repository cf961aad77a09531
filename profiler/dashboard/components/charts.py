"""Drawing a figure and handing out its data."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes
from profiler.figures.canvas import to_frame
from profiler.figures.spreadsheet import csv


def theme() -> str:
    """"light" or "dark", as the visitor's browser shows the app."""
    return "dark" if st.context.theme.type == "dark" else "light"


def show(source: store.Source | tuple[store.Source, ...], function: Callable[..., Any], *arguments: Any, key: str,
         **named: Any) -> pd.DataFrame:
    """Draw `function(bundle, ..., theme=...)` with the download of exactly what it draws; that table."""
    figure = store.derive(source, _draw, function, *arguments, theme=theme(), **named)
    if not figure.data:
        words = {note.name: note.text for note in figure.layout.annotations}
        boxes.missing(_plain(words.get("title", "")), boxes.plain(_plain(words.get("subtitle", ""))))
        return to_frame(figure)
    label = "-".join(s.label for s in source) if isinstance(source, tuple) else source.label
    name = filename(f"{key}-{label}")
    chart = f"chart.{key}"
    st.plotly_chart(
        figure, width="stretch", theme=None, key=chart, on_select="rerun", selection_mode="points",
        config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
                "toImageButtonOptions": {"format": "svg", "filename": name}})
    frame = to_frame(figure)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(text.DOWNLOAD_DATA, csv(frame), f"{name}.csv", "text/csv", key=f"data.{key}",
                           type="tertiary", icon=":material/download:", on_click="ignore")
        launch = _clicked(chart)
        if launch is not None and not isinstance(source, tuple):
            state.put("launch", str(launch))
            st.page_link("profiler/dashboard/pages/launches.py", label=text.TO_LAUNCH.format(launch=launch),
                         icon=":material/arrow_forward:")
    return frame


def _clicked(chart: str) -> int | None:
    """The launch behind the mark that was clicked; figures carry it first in a mark's custom data."""
    points = (st.session_state.get(chart) or {}).get("selection", {}).get("points", [])
    first = (points[0].get("customdata") or [None])[0] if points else None
    return first if isinstance(first, int) and not isinstance(first, bool) else None


def _draw(bundle: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The figure, in which the other marks stay as they are when one is clicked."""
    figure = function(bundle, *arguments, **named)
    for trace in figure.data:
        if trace.type == "bar" or (trace.type == "scatter" and "markers" in (trace.mode or "")):
            trace.update(unselected={"marker": {"opacity": 1}})
    return figure


def _plain(words: str) -> str:
    """The text of a figure's label without its markup."""
    return html.unescape(re.sub(r"<br>", " ", words).replace("<b>", "").replace("</b>", ""))


def filename(words: str) -> str:
    """`words` as a file name that every system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-.")[:80] or "flashscope"
