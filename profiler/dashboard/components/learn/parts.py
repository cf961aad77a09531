"""What the chapters share: controls held in the link, a figure with its data, tables of words, the loaded profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import state, store
from profiler.dashboard.components import charts
from profiler.figures import canvas, labels, units
from profiler.figures.ready import ready
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
    """Draw a figure of this page with the downloads that every figure has, in the reader's language."""
    common = words.read(language(), "page")
    charts.draw(ready(drawn), canvas.to_frame(drawn), charts.filename(f"learn-{key}"), key=f"learn.{key}",
                alt=canvas.title(drawn), data=common("download"), picture=common("picture"))


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


def stamp(shown: Sequence[store.Source], kinds: str) -> str:
    """The provenance line of a figure: what the sources agree on whose values it shows, and which kind all values are.

    Without a source there is only the kind.
    """
    if not shown:
        return kinds
    bundles = [store.load(source) for source in shown]
    facts = [{**b.profile, "created": str(b.profile.get("created") or "")[:10], "gpu": gpu_name(b)} for b in bundles]
    agreed = {name: value for name, value in facts[0].items() if all(one.get(name) == value for one in facts)}
    gpus = labels.join(list(dict.fromkeys(one["gpu"] for one in facts if one["gpu"])))
    return canvas.foot({**agreed, "gpu": {"name": gpus}}, kinds)


def gpu_name(bundle: Bundle) -> str:
    """The GPU of a bundle; "" where it is not named."""
    return str((bundle.profile.get("gpu") or {}).get("name") or "")
