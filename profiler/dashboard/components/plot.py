"""A figure in the browser, drawn by Plotly into a place that stays: a choice redraws what it changes.

Streamlit's own chart is made anew for every figure and drawn twice, which takes half of what a control takes. So the
figure has a component of its own, with Plotly from the Python package of that name; `st.plotly_chart` stands in where
Streamlit is older than its second kind of components.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import streamlit as st

from profiler.figures.ready import Ready

OWN = hasattr(st.components, "v2") and "isolate_styles" in inspect.signature(st.components.v2.component).parameters
CONFIG = {"displaylogo": False, "showSendToCloud": False,  # nothing leaves this machine
          "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"]}

# The component: one element for all figures that follow each other in its place. `revision` tells them apart.
CHART = """
const CORNERS = {width: 24, height: 24, path: "M3 9V3h6v2H5v4zM15 3h6v6h-2V5h-4zM3 15h2v4h4v2H3zM19 15h2v6h-6v-2h4z"};
const turn = div => document.fullscreenElement ? document.exitFullscreen() : div.requestFullscreen();
const BUTTON = {name: "fullscreen", title: "Fullscreen", icon: CORNERS, click: turn};

function place(parent) {
  const div = document.createElement("div");
  div.className = "fs-chart";
  div.setAttribute("role", "figure");
  parent.append(div);
  return div;
}

function fit(Plotly, div) {
  const full = document.fullscreenElement === div, now = div._fullLayout;
  const [width, height] = [div.clientWidth, full ? div.clientHeight : div.fs.height];
  if (now && width && (now.width !== width || now.height !== height)) Plotly.relayout(div, {width, height});
}

export default async function ({data, parentElement, setStateValue}) {
  const div = parentElement.querySelector(".fs-chart") ?? place(parentElement);
  const gone = () => { div.fs.sizes?.disconnect(); window.Plotly?.purge(div); };
  const before = div.fs;
  div.fs = {...before, pick: launch => setStateValue("launch", {launch, drawn: data.revision})};
  if (before?.revision === data.revision) return gone;
  const {data: traces, layout} = JSON.parse(data.spec);
  Object.assign(div.fs, {revision: data.revision, height: layout.height});
  div.setAttribute("aria-label", data.alt);
  Object.assign(div.style, {height: `${layout.height}px`, background: layout.paper_bgcolor});
  const Plotly = await LOADED;
  if (div.fs.revision !== data.revision) return gone;  // another figure came meanwhile
  Object.assign(layout, {autosize: false, width: div.clientWidth, clickmode: "event"});
  const config = {...CONFIG, modeBarButtonsToAdd: [BUTTON], toImageButtonOptions: data.picture};
  await Plotly.react(div, traces, layout, div.fs.sizes ? undefined : config);  // another config would draw all anew
  div._context.toImageButtonOptions = data.picture;
  if (!div.fs.sizes) {
    div.fs.sizes = new ResizeObserver(() => fit(Plotly, div));
    div.fs.sizes.observe(div);
    div.on("plotly_click", ({points}) => {
      const first = [points[0]?.customdata].flat()[0];
      if (Number.isInteger(first)) div.fs.pick(first);
    });
  }
  return gone;
}
"""
# Plotly, fetched once for the page
LOADED = """(window.fsPlotly ??= new Promise((done, failed) => {
  const script = document.createElement("script");
  script.src = "ADDRESS";
  script.onload = () => done(window.Plotly);
  script.onerror = () => { window.fsPlotly = null; failed(Error("Plotly could not be loaded from this server.")); };
  document.head.append(script);
}))"""


def show(figure: Ready, *, key: str, alt: str, picture: dict[str, Any]) -> int | None:
    """Draw ``figure``; the launch behind the mark that was clicked, which a mark's custom data begins with.

    alt: the figure's name for screen readers. picture: what the camera makes, as Plotly's ``toImageButtonOptions``.
    """
    if not OWN:
        return _by_streamlit(figure, key, alt, picture)
    height = figure.to_dict()["layout"]["height"]
    revision = figure.to_dict()["layout"]["datarevision"]
    drawn = _component()(data={"spec": figure.json(), "revision": revision, "alt": alt, "picture": picture}, key=key,
                         height=height, on_launch_change=_heard)
    clicked = drawn.get("launch")
    return int(clicked["launch"]) if clicked and clicked.get("drawn") == revision else None


def _heard() -> None:
    """A click draws the page anew, which then asks for the launch."""


def _by_streamlit(figure: Ready, key: str, alt: str, picture: dict[str, Any]) -> int | None:
    named: dict[str, Any] = {"alt": alt} if "alt" in inspect.signature(st.plotly_chart).parameters else {}
    st.plotly_chart(figure, width="stretch", theme=None, key=key, on_select="rerun", selection_mode="points",
                    config={**CONFIG, "toImageButtonOptions": picture}, **named)
    points = (st.session_state.get(key) or {}).get("selection", {}).get("points", [])
    first = (points[0].get("customdata") or [None])[0] if points else None
    return first if isinstance(first, int) and not isinstance(first, bool) else None


@lru_cache(maxsize=1)
def loading() -> str:
    """JavaScript whose value is a promise of Plotly.

    Not run before the first figure comes: reading five megabytes would keep the browser from painting the headline.
    """
    from streamlit.components.v1 import declare_component

    package = find_spec("plotly")
    folder = Path(str(package.origin if package else "")).parent / "package_data"
    served = declare_component("plotly", path=str(folder))
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    return LOADED.replace("ADDRESS", f"{'/' if base else ''}{base}/component/{served.name}/plotly.min.js")


@lru_cache(maxsize=1)
def _component() -> Callable[..., Any]:
    import json

    script = CHART.replace("LOADED", loading()).replace("...CONFIG", f"...{json.dumps(CONFIG)}")
    return st.components.v2.component("flashscope_chart", js=script, isolate_styles=False)
