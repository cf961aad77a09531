"""Two pictures of a kernel: what moves in which order, and which program computes which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, style
from profiler.figures.learn_notes import annotate

Message = tuple[int, int, str, str]  # from lane, to lane, text, tensor whose colour the arrow has


def sequence(lanes: Sequence[str], messages: Sequence[Message], loop: tuple[int, int, str], title: str, subtitle: str,
             foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """A sequence diagram, time downwards. loop: first and last message that repeat, and what to call that.

    A message within one lane is a step of computation there.
    """
    c = canvas.new(title, subtitle, foot, theme, size, axis=False, above=2.6, height=215 + 46 * len(messages))
    last = len(messages) - 0.3
    begin, end, name = loop
    c.figure.add_shape(type="rect", x0=-0.42, x1=len(lanes) - 0.58, y0=begin - 0.62, y1=end + 0.42, layer="below",
                       fillcolor=style.mix(c.theme.ink, c.theme.ground, 0.045),
                       line={"color": c.theme.muted, "width": 1, "dash": "dot"})
    notes: list[dict[str, Any]] = [{"x": len(lanes) - 1.5, "y": begin, "text": f"<i>{name}</i>"}]
    lines = []
    for i, lane in enumerate(lanes):
        lines.append({"type": "line", "x0": i, "x1": i, "y0": -0.6, "y1": last, "layer": "below",
                      "line": {"color": c.theme.muted, "width": 1.5}})
        notes.append({"x": i, "y": 1, "yref": "paper", "text": f"<b>{lane}</b>", "yanchor": "bottom", "yshift": 4})
    within = [(m[0], y, style.tensor_colour(m[3])) for y, m in enumerate(messages) if m[0] == m[1]]
    c.figure.add_scatter(x=[x for x, *_ in within], y=[y for _, y, _ in within], mode="markers", hoverinfo="skip",
                         marker={"size": 11, "color": [colour for *_, colour in within]})
    for y, (source, target, text, tensor) in enumerate(messages):
        if source == target:
            notes.append({"x": source, "y": y, "text": text, "xanchor": "left", "xshift": 11, "borderpad": 2,
                          "bgcolor": c.theme.ground})
            continue
        notes.append({"x": target, "y": y, "ax": source, "ay": y, "xref": "x", "yref": "y", "axref": "x",
                      "ayref": "y", "text": "", "showarrow": True, "arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 2.5,
                      "arrowcolor": style.tensor_colour(tensor)})
        beside = source + (0.5 if target > source else -0.5)  # between two lanes, so on none of them
        notes.append({"x": beside, "y": y, "text": text, "yanchor": "bottom", "yshift": 2})
    annotate(c, notes, lines)
    c.figure.update_xaxes(range=[-0.5, len(lanes) - 0.4], visible=False)
    c.figure.update_yaxes(range=[last, -0.8], visible=False)
    return canvas.finish(c, pd.DataFrame([{"step": i + 1, "from": lanes[a], "to": lanes[b], "what": text}
                                          for i, (a, b, text, _) in enumerate(messages)]))


def programs(table: Sequence[Mapping[str, int]], chosen: int, words: Mapping[str, str], title: str, subtitle: str,
             foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """A grid of programs: batch and head across, query block down; the number in a cell is its program_id.

    table: one row a program with program, batch, head, block. words: head (with {batch} and {head}), block (with
    {block}).
    """
    s = style.size_of(size)
    frame = pd.DataFrame(table)
    columns = sorted({(r["batch"], r["head"]) for r in table})
    blocks = sorted({r["block"] for r in table})
    c = canvas.new(title, subtitle, foot, theme, size, axis=False, above=2.4,
                   left=canvas.beside([words["block"].format(block=blocks[-1])], s.body), height=200 + 44 * len(blocks))
    ids = {(r["batch"], r["head"], r["block"]): r["program"] for r in table}
    grid = [[ids[(b, h, block)] for b, h in columns] for block in blocks]
    most = max(ids.values()) or 1
    low = style.mix(style.INPUTS, c.theme.ground, 0.12)
    high = style.mix(style.INPUTS, c.theme.ground, 0.62)
    c.figure.add_heatmap(z=grid, x=list(range(len(columns))), y=blocks, zmin=0, zmax=most, showscale=False, xgap=3,
                         ygap=3, colorscale=[[0, low], [1, high]], hovertemplate="program_id %{z}<extra></extra>",
                         text=[[f"<b>{v}</b>" if v == chosen else str(v) for v in row] for row in grid],
                         texttemplate="%{text}", textfont={"size": s.body, "color": c.theme.ink})
    at = next((x, y) for y, row in zip(blocks, grid) for x, value in enumerate(row) if value == chosen)
    c.figure.add_shape(type="rect", x0=at[0] - 0.48, x1=at[0] + 0.48, y0=at[1] - 0.46, y1=at[1] + 0.46,
                       line={"color": style.SCORES, "width": 4})
    c.figure.update_xaxes(tickvals=list(range(len(columns))), side="top", showgrid=False,
                          ticktext=[words["head"].format(batch=b, head=h) for b, h in columns])
    c.figure.update_yaxes(autorange="reversed", tickvals=blocks, showgrid=False,
                          ticktext=[words["block"].format(block=b) for b in blocks])
    return canvas.finish(c, frame)
