"""Drawing a figure and handing out its data."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, plot
from profiler.figures import memory_kind, style
from profiler.figures.canvas import plain, to_frame
from profiler.figures.ready import Ready, ready
from profiler.figures.spreadsheet import csv

SCRIPTS = "unsafe_allow_javascript" in inspect.signature(st.html).parameters
LATER = "callable" in (st.download_button.__doc__ or "")


def theme() -> str:
    """"light" or "dark", as the visitor's browser shows the app."""
    return "dark" if st.context.theme.type == "dark" else "light"


# Plotly draws the picture in the browser: a button presses the camera of the figure before it, in the wished format
PICTURES = """<span class="fs-pictures">LABEL
<button type="button" data-picture="svg" aria-label="LABEL (SVG)">SVG</button>
<button type="button" data-picture="png" aria-label="LABEL (PNG)">PNG</button></span><script>
if (!window.fsPictures) {
  window.fsPictures = true;
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-picture]");
    if (!button) return;
    const above = [...document.querySelectorAll(".js-plotly-plot")].filter(
      plot => plot.compareDocumentPosition(button) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    if (!above) return;
    const options = above._context.toImageButtonOptions, form = button.dataset.picture;
    above._context.toImageButtonOptions = {...options, format: form, scale: form === "png" ? 2 : 1};
    above.querySelector(".modebar-btn[data-title^='Download']").click();
    above._context.toImageButtonOptions = options;
  });
}
</script>"""


@dataclass(frozen=True)
class Drawn:
    """A figure as it is kept: ready to send, the table of what it draws; title and subtitle."""

    figure: Any
    frame: pd.DataFrame
    title: str
    subtitle: str

    @property
    def empty(self) -> bool:
        return not self.figure.to_dict()["data"]


def show(source: store.Source | tuple[store.Source, ...], function: Callable[..., Any], *arguments: Any, key: str,
         **options: Any) -> pd.DataFrame:
    """Draw `function(bundle, ..., theme=...)` with the download of exactly what it draws; that table."""
    drawn = store.derive(source, _draw, function, *arguments, theme=theme(), **options)
    if drawn.empty:
        timed = not any(store.load(one).has_counters for one in (source if isinstance(source, tuple) else (source,)))
        boxes.missing(drawn.title, boxes.plain(drawn.subtitle) + (_timings_only(drawn) if timed else ""),
                      pages=text.TIMINGS_PAGES if timed else ())
        return drawn.frame
    label = "-".join(s.label for s in source) if isinstance(source, tuple) else source.label
    launch, below = draw(drawn.figure, drawn.frame, filename(f"{key}-{label}"), key=key, alt=drawn.title)
    if launch is not None and not isinstance(source, tuple):
        state.put("launch", str(launch))
        below.page_link("profiler/dashboard/pages/launches.py", label=text.TO_LAUNCH.format(launch=launch),
                        icon=":material/arrow_forward:")
    return drawn.frame


def _timings_only(drawn: Drawn) -> str:
    """What a source without counters holds, and how to record them where the figure does not say so itself."""
    remedy = "" if "--no-counters" in drawn.subtitle else f"\n\n{text.NO_COUNTERS_REMEDY}"
    return f" {text.TIMINGS_ONLY}{remedy}"


def draw(figure: Ready, frame: pd.DataFrame, name: str, *, key: str, alt: str, data: str = text.DOWNLOAD_DATA,
         picture: str = text.PICTURE) -> tuple[int | None, Any]:
    """Draw ``figure`` and offer below it ``frame``, where that has rows, and the picture, as files called ``name``.

    alt: the figure's name for screen readers. data, picture: the words of the two offers. Returns the launch behind
    the mark that was clicked, and the row below the figure.
    """
    launch = plot.show(figure, key=f"chart.{key}", alt=alt, picture={
        "format": "svg", "filename": name, "width": style.SIZES["page"].width,
        "height": figure.to_dict()["layout"]["height"]})
    below = st.container(horizontal=True, vertical_alignment="center")
    with below:
        if len(frame):
            st.download_button(data, later(lambda: csv(frame)), f"{name}.csv", "text/csv", key=f"data.{key}",
                               type="tertiary", icon=":material/download:", on_click="ignore")
        if SCRIPTS:
            st.html(PICTURES.replace("LABEL", picture), width="content", unsafe_allow_javascript=True)
    return launch, below


def _draw(bundle: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> Drawn:
    figure = function(bundle, *arguments, **named)
    spec = memory_kind.called(ready(figure).to_dict(), memory_kind.of(bundle))
    words = {note.get("name"): note["text"] for note in spec["layout"]["annotations"]}
    title, subtitle = (plain(words.get(name, "")) for name in ("title", "subtitle"))
    return Drawn(Ready(spec), to_frame(figure), title, subtitle)


def later(make: Callable[[], bytes]) -> Any:
    """What a download button hands out, made when it is clicked where this version of Streamlit can."""
    return make if LATER else make()


def filename(words: str) -> str:
    """`words` as a file name that every system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", words).strip("-.")[:80] or "flashscope"
