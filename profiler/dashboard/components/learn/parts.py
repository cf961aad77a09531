"""What the chapters share: controls held in the link, a figure with its data, tables of words, the loaded profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import state, store
from profiler.dashboard.components import charts, plot
from profiler.figures import units
from profiler.figures.canvas import title, to_frame
from profiler.figures.ready import ready
from profiler.figures.spreadsheet import csv
from profiler.learn import words

POWERS = tuple(2**i for i in range(4, 18))


def slider(label: str, name: str, options: Sequence[int], default: int, **more: Any) -> int:
    """A whole number among `options`, held in the link as `name`."""
    said = {str(option): units.whole(option) for option in options}
    return int(state.select(label, name, said, str(default), st.select_slider, **more))


def language() -> str:
    """The language that the page is read in."""
    wished = state.wish("lang")
    return wished if wished in words.LANGUAGES else "en"


def figure(drawn: Any, key: str) -> None:
    """Draw a figure of this page with the download of what it draws."""
    name = charts.filename(f"learn-{key}")
    plot.show(ready(drawn), key=f"chart.learn.{key}", alt=title(drawn), picture={"format": "svg", "filename": name})
    frame = to_frame(drawn)
    if len(frame):
        label = words.read(language(), "page")("download")
        st.download_button(label, charts.later(lambda: csv(frame)), f"{name}.csv", "text/csv", key=f"data.learn.{key}",
                           type="tertiary", icon=":material/download:", on_click="ignore")


def cards(entries: Sequence[tuple[str, str, str]]) -> None:
    """Number cards side by side: label, value, what it comes from."""
    for column, (label, value, basis) in zip(st.columns(len(entries)), entries):
        with column.container(border=True, height="stretch"):
            st.metric(label, value)
            st.caption(basis)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of words that wrap, as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    st.markdown("\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
                          for line in lines))


def sources() -> list[store.Source]:
    """Every source: first the one chosen on other pages, else the first recorded one; empty where nothing is loaded."""
    everything = store.sources()
    if not everything:
        return []
    recorded = [key for key, one in everything.items() if one.origin == "recorded"]
    key = state.choose(store.SOURCE_PARAMETER, list(everything), (recorded or list(everything))[0])
    return [everything[key], *(one for other, one in everything.items() if other != key)]


def gpu_name(bundle: Bundle) -> str:
    """The GPU of a bundle; "" where it is not named."""
    return str((bundle.profile.get("gpu") or {}).get("name") or "")
