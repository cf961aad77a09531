"""Light or dark: when the visitor's system changes over, the app is drawn anew, for figures have colours of their own.

Streamlit recolours its own elements at once but runs no script for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import streamlit as st

from profiler.dashboard.components import plot

# Streamlit hears of the change in the same moment; a run asked for before it has, would be told the old theme
WATCH = """
export default function ({setTriggerValue}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const changed = () => setTimeout(() => setTriggerValue("changed", true), 200);
  dark.addEventListener("change", changed);
  return () => dark.removeEventListener("change", changed);
}
"""


def watch() -> None:
    """Draw nothing; run the app again whenever the system turns from light to dark or back."""
    if plot.OWN:
        _component()(key="fs.scheme", height=1, on_changed_change=_heard)


def _heard() -> None:
    """The run that follows is all that is needed: it asks for the theme."""


@lru_cache(maxsize=1)
def _component() -> Callable[..., Any]:
    return st.components.v2.component("flashscope_scheme", js=WATCH, isolate_styles=False)
