"""Which marks and labels of a figure appear at which step, and a title of one's own."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from profiler.figures import canvas, labels
from profiler.figures.place import text_height, text_width, wrap
from profiler.figures.style import SIZES


def order(figure: go.Figure, steps: Sequence[str]) -> dict[str, Any]:
    """Step of every trace, annotation and shape (0: at once), and how many steps there are.

    A name appears with the first pattern it matches in full; a plain label with the point it stands on. Steps that
    reveal nothing are left out.
    """
    patterns = [re.compile(pattern) for pattern in steps]

    def named(name: Any) -> int:
        return next((i + 1 for i, p in enumerate(patterns) if name and p.fullmatch(str(name))), 0)

    traces = [named(trace.name) for trace in figure.data]
    notes = [
        named(note.name) if note.name != "label" else _with_point(figure, note, traces)
        for note in figure.layout.annotations
    ]
    shapes = [named(shape.name) for shape in figure.layout.shapes]
    used = sorted({0, *traces, *notes, *shapes})
    return {
        "traces": [used.index(i) for i in traces],
        "annotations": [used.index(i) for i in notes],
        "shapes": [used.index(i) for i in shapes],
        "count": len(used) - 1,
    }


def _with_point(figure: go.Figure, note: Any, steps: Sequence[int]) -> int:
    """The step of the trace that has a point where the label stands; lines give way to markers."""
    logs = [figure.layout[axis].type == "log" for axis in ("xaxis", "yaxis")]
    at = [10**v if log else v for v, log in zip((note.x, note.y), logs)]
    found = [
        (i, trace)
        for i, trace in enumerate(figure.data)
        if trace.type == "scatter"
        and any(
            math.isclose(x, at[0], rel_tol=1e-9) and math.isclose(y, at[1], rel_tol=1e-9)
            for x, y in zip(trace.x, trace.y)
        )
    ]
    marked = [steps[i] for i, trace in found if "markers" in (trace.mode or "")]
    return min(marked or [steps[i] for i, _ in found], default=0)


def retitle(figure: go.Figure, title: str) -> None:
    """Put ``title`` in place of the generated one, and make room for its lines."""
    meta = dict(figure.layout.meta[canvas.DATA])
    size = SIZES[meta["size"]]
    note = next(a for a in figure.layout.annotations if a.name == "title")
    text = wrap(f"<b>{labels.escape(title)}</b>", size.title, size.narrow - 2 * size.edge)
    more = text_height(text, size.title) - text_height(note.text, size.title)
    note.text, note.yshift = text, note.yshift + more
    figure.layout.margin.t += more
    figure.layout.meta = {canvas.DATA: {**meta, "title": title}}


def link(figure: go.Figure, address: str) -> None:
    """Add the address of the view to the provenance line, on a line of its own where it finds no room."""
    size = SIZES[figure.layout.meta[canvas.DATA]["size"]]
    note = next(a for a in figure.layout.annotations if a.name == "foot")
    last = f"{note.text.split('<br>')[-1]} · {address}"
    if text_width(last, size.small) <= size.narrow - 2 * size.edge:
        note.text = f"{note.text} · {labels.escape(address)}"
        return
    more = text_height("<br>", size.small) - text_height("", size.small)
    note.text, note.yshift = f"{note.text}<br>{labels.escape(address)}", note.yshift - more
    figure.layout.margin.b += more


def bare(figure: go.Figure) -> go.Figure:
    """A copy without title and subtitle, for a slide that writes them itself; marks and provenance stay as they are."""
    out = go.Figure(figure)
    head = [a for a in out.layout.annotations if a.name in ("title", "subtitle")]
    size = SIZES[figure.layout.meta[canvas.DATA]["size"]]
    gone = sum(text_height(a.text, a.font.size) for a in head) + 0.5 * size.body + size.edge - size.body
    out.layout.annotations = [a for a in out.layout.annotations if a.name not in ("title", "subtitle")]
    out.layout.margin.t, out.layout.height = out.layout.margin.t - gone, out.layout.height - gone
    return out
