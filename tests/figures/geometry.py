"""Where a figure's text lies, from its layout alone: an account independent of the placer that put it there."""

from __future__ import annotations

import plotly.graph_objects as go

from profiler.figures.place import Box, text_height, text_width


def text_boxes(figure: go.Figure, width: float) -> list[tuple[str, Box]]:
    """Every annotation's text with its box on a canvas of ``width`` pixels."""
    layout = figure.layout
    m, found = layout.margin, []
    for a in layout.annotations:
        if not a.text:
            continue
        x = m.l + _share(layout, a.xref or "x", "x", a.x) * (width - m.l - m.r)
        y = layout.height - m.b - _share(layout, a.yref or "y", "y", a.y) * (layout.height - m.t - m.b)
        x += a.ax if a.showarrow else a.xshift or 0
        y += a.ay if a.showarrow else -(a.yshift or 0)
        w, h = text_width(a.text, a.font.size), text_height(a.text, a.font.size)
        if a.textangle in (90, -90):
            w, h = h, w
        left = x - w * {"left": 0, "right": 1}.get(a.xanchor, 0.5)
        top = y - h * {"top": 0, "bottom": 1}.get(a.yanchor, 0.5)
        found.append((a.text, Box(left, top, left + w, top + h)))
    return found


def _share(layout: go.Layout, ref: str, letter: str, value: float) -> float:
    """Position along the plot area, 0 to 1 from left or bottom."""
    if ref == "paper":
        return value
    axis = layout[f"{letter}axis{ref[1:]}"]
    domain = axis.domain or (0, 1)
    low, high = axis.range
    return domain[0] + (domain[1] - domain[0]) * (value - low) / (high - low)


def problems(figure: go.Figure, width: float) -> list[str]:
    """Texts that overlap another or leave the canvas."""
    boxes, found = text_boxes(figure, width), []
    for i, (text, box) in enumerate(boxes):
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > figure.layout.height:
            found.append(f"cut: {text} {box}")
        found += [f"overlap: {text} / {other}" for other, b in boxes[i + 1:]
                  if min(box.x1, b.x1) - max(box.x0, b.x0) > 1 and min(box.y1, b.y1) - max(box.y0, b.y0) > 0.2 * 15]
    return found


