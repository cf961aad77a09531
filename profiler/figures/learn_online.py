"""Online softmax as a picture: the terms of l after each block, and how α shrinks the old ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, style, units
from profiler.figures.learn_notes import annotate
from profiler.figures.place import text_width


def terms(steps: Sequence[Sequence[float]], news: Sequence[int], labels: Sequence[str], axis: str, title: str,
          subtitle: str, foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """One bar a block: every term exp(x − m) seen so far, side by side, together l.

    steps: the terms after each block. news: how many of them are of that block (drawn in full colour, the older ones in
    the tint). labels: one a bar.
    """
    s = style.size_of(size)
    c = canvas.new(title, subtitle, foot, theme, size, left=canvas.beside(labels, s.body), right=90,
                   height=235 + 46 * len(steps))
    rows, notes = [], []
    reach = max((sum(parts) for parts in steps), default=1) or 1
    pixels = (s.narrow - c.left - c.right) / reach
    for label, parts, new in zip(labels, steps, news):
        start = 0.0
        for i, part in enumerate(parts):
            fresh = i >= len(parts) - new
            colour = style.PROBABILITIES if fresh else style.tint(style.PROBABILITIES, c.theme)
            value = f"{part:.4f}"
            fits = part * pixels >= text_width(value, s.body) + 6
            c.figure.add_bar(
                x=[part], y=[label], base=[start], orientation="h", width=0.62, text=value if fits else None,
                textposition="inside",
                marker={"color": colour, "line": {"color": c.theme.ground, "width": 1.5}}, insidetextanchor="middle",
                textangle=0, textfont={"color": style.text_on(colour)}, name=f"term {i + 1}",
                hovertemplate=f"exp(x{i + 1} − m) = {value}<extra></extra>")
            rows.append({"bar": label, "key": i + 1, "term": part, "new": fresh})
            start += part
        notes.append({"x": start, "y": label, "text": f"<b>l = {start:.4f}</b>", "xanchor": "left", "xshift": 8})
    annotate(c, notes)
    c.figure.update_layout(barmode="overlay")
    ticks = [canvas.step(reach) * i for i in range(int(reach / canvas.step(reach)) + 1)]
    c.figure.update_xaxes(range=[0, reach], title_text=axis, tickvals=ticks, ticktext=[units.tick(v) for v in ticks])
    c.figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=list(labels), showgrid=False,
                           ticklabelstandoff=6)
    return canvas.finish(c, pd.DataFrame(rows))
