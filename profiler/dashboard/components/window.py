"""What the app asks of the browser's window: to tell when it turns light or dark, and one step back for one page.

Streamlit recolours its own elements when the visitor's system changes over but runs no script for it, and figures have
colours of their own. And it makes an entry of the browser's history for every change of the link: a page that was just
opened changes it once more, to what it shows, so that the first step back led to the same page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import streamlit as st

from profiler.dashboard.components import plot

# Streamlit hears of the change in the same moment; a run asked for before it has, would be told the old theme
WATCH = """
function fillInPlace() {
  if (history.fsPush) return;
  history.fsPush = history.pushState;
  history.pushState = (state, title, url) => {
    const filled = !location.search && new URL(url, location.href).pathname === location.pathname;
    (filled ? history.replaceState : history.fsPush).call(history, state, title, url);
  };
}

export default function ({setTriggerValue}) {
  fillInPlace();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => setTimeout(() => setTriggerValue("changed", true), 200);
  dark.addEventListener("change", changed);
  return () => dark.removeEventListener("change", changed);
}
"""


def watch() -> None:
    """Draw nothing; run the app again whenever the system turns from light to dark or back, and let a page that was
    just opened fill in its link without an entry of the history."""
    if plot.OWN:
        _component()(key="fs.window", height=1, on_changed_change=_heard)


def _heard() -> None:
    """The run that follows is all that is needed: it asks for the theme."""


@lru_cache(maxsize=1)
def _component() -> Callable[..., Any]:
    return st.components.v2.component("flashscope_window", js=WATCH, isolate_styles=False)
