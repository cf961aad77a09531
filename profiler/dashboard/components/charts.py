"""Drawing a figure and handing out its data."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes
from profiler.figures.canvas import to_frame

FORMULA = ("=", "+", "-", "@")


def theme() -> str:
    """"light" or "dark", as the visitor's browser shows the app."""
    return "dark" if st.context.theme.type == "dark" else "light"


def show(source: store.Source | tuple[store.Source, ...], function: Callable[..., Any], *arguments: Any, key: str,
         **named: Any) -> pd.DataFrame:
    """Draw `function(bundle, ..., theme=...)` with the download of exactly what it draws; that table."""
    figure = store.derive(source, function, *arguments, theme=theme(), **named)
    if not figure.data:
        words = {note.name: note.text for note in figure.layout.annotations}
        boxes.missing(_plain(words.get("title", "")), boxes.plain(_plain(words.get("subtitle", ""))))
        return to_frame(figure)
    label = "-".join(s.label for s in source) if isinstance(source, tuple) else source.label
    name = filename(f"{key}-{label}")
    st.plotly_chart(
        figure, width="stretch", theme=None, key=f"chart.{key}",
        config={"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
                "toImageButtonOptions": {"format": "svg", "filename": name}})
    frame = to_frame(figure)
    if len(frame):
        st.download_button(text.DOWNLOAD_DATA, csv(frame), f"{name}.csv", "text/csv", key=f"data.{key}",
                           type="tertiary", icon=":material/download:", on_click="ignore")
    return frame


def _plain(words: str) -> str:
    """The text of a figure's label without its markup."""
    return html.unescape(re.sub(r"<br>", " ", words).replace("<b>", "").replace("</b>", ""))


def csv(frame: pd.DataFrame) -> bytes:
    """`frame` as CSV for a spreadsheet: a text that would run as a formula gets an apostrophe before it."""
    safe = frame.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = safe[name].map(_text, na_action="ignore")
    safe.columns = [_text(name) for name in safe.columns]
    return safe.to_csv(index=False, lineterminator="\n").encode("utf-8")


def _text(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", " ")  # a bare one would end the row
    return f"'{cell}" if cell.lstrip().startswith(FORMULA) else cell


def filename(words: str) -> str:
    """`words` as a file name that every system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-.")[:80] or "flashscope"
