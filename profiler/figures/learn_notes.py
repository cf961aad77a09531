"""Many labels at once: Plotly copies what a figure holds for every label or line that is added alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.figures.canvas import Canvas


def annotate(canvas: Canvas, notes: Sequence[dict[str, Any]], shapes: Sequence[dict[str, Any]] = ()) -> None:
    """Add labels (in body text and ink, without arrow, where a note does not say otherwise) and shapes."""
    common = {"showarrow": False, "borderpad": 0, "font": {"size": canvas.size.body, "color": canvas.theme.ink}}
    held = canvas.figure.layout
    canvas.figure.update_layout(annotations=[*held.annotations, *(common | note for note in notes)],
                                shapes=[*held.shapes, *shapes])
