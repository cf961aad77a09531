"""Many labels of one look at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.figures.canvas import Canvas


def annotate(canvas: Canvas, notes: Sequence[dict[str, Any]], shapes: Sequence[dict[str, Any]] = ()) -> None:
    """Add labels (in body text and ink, without arrow, where a note does not say otherwise) and shapes."""
    common = {"showarrow": False, "borderpad": 0, "font": {"size": canvas.size.body, "color": canvas.theme.ink}}
    for note in notes:
        canvas.figure.add_annotation(**(common | note))
    for shape in shapes:
        canvas.figure.add_shape(**shape)
