"""The blocks of a causal score matrix: full, crossing the diagonal, skipped; and the patterns of other attentions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, style, units
from profiler.figures.place import text_width
from profiler.model.counts import ceil_div, key_interval
from profiler.spec import Mask

SKIPPED, CROSSING, FULL = 0, 1, 2


def kinds(mask: Mask, nq: int, nk: int, block_m: int, block_n: int) -> list[list[int]]:
    """SKIPPED, CROSSING or FULL for each block, query blocks in rows; the last key block may be cut by the end."""
    out = []
    for i in range(ceil_div(nq, block_m)):
        first, last = i * block_m, min((i + 1) * block_m, nq) - 1
        low, high = key_interval(mask, first, last, nq, nk)
        sure_low, sure_high = key_interval(mask, last, last, nq, nk)[0], key_interval(mask, first, first, nq, nk)[1]
        row = []
        for j in range(ceil_div(nk, block_n)):
            begin, end = j * block_n, (j + 1) * block_n
            seen = low < high and begin < high and end > low
            row.append(SKIPPED if not seen else FULL if sure_low <= begin and end <= sure_high else CROSSING)
        out.append(row)
    return out


def block_map(mask: Mask, nq: int, nk: int, block_m: int, block_n: int, words: Mapping[str, str], title: str,
              subtitle: str, foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """The Nq × Nk score matrix of one head cut into blocks, with the diagonal. words: full, crossing, skipped, keys,
    queries."""
    s = style.size_of(size)
    t = style.theme_of(theme)
    grid = kinds(mask, nq, nk, block_m, block_n)
    colours = [style.mix(t.ink, t.ground, 0.10), style.GRADIENTS, style.SCORES]
    ticks = [units.tick(v) for v in (nq, nk)]
    c = canvas.new(title, subtitle, foot, theme, size, left=canvas.beside(ticks, s.body) + 1.9 * s.body, above=2.8,
                   height=s.height + 20)
    xs = [min(j * block_n, nk) for j in range(ceil_div(nk, block_n) + 1)]
    ys = [min(i * block_m, nq) for i in range(ceil_div(nq, block_m) + 1)]
    names = [words["skipped"], words["crossing"], words["full"]]
    gap = 1.5 if max(len(xs), len(ys)) <= 80 else 0
    scale = [[edge / 3, colours[k]] for k in range(3) for edge in (k, k + 1)]
    c.figure.add_heatmap(
        x=xs, y=ys, z=grid, zmin=-0.5, zmax=2.5, colorscale=scale, showscale=False, xgap=gap, ygap=gap,
        text=[[names[k] for k in row] for row in grid],
        hovertemplate=f"{words['queries']} %{{y}}, {words['keys']} %{{x}}: %{{text}}<extra></extra>")
    if mask.right >= 0:
        delta = nk - nq
        line = [(i, i + delta) for i in (max(0, -delta), nq)]
        c.figure.add_scatter(x=[x for _, x in line], y=[y for y, _ in line], mode="lines", hoverinfo="skip",
                             line={"color": t.ink, "width": s.line}, name="diagonal")
    place = 0.0
    for k in (FULL, CROSSING, SKIPPED):
        c.figure.add_annotation(text=f"<span style='color:{colours[k]}'>■</span> {names[k]}", xref="paper",
                                yref="paper", x=0, xshift=place, y=1, yshift=8, xanchor="left", yanchor="bottom",
                                showarrow=False, font={"size": s.body, "color": t.ink}, borderpad=0)
        place += text_width(f"■ {names[k]}", s.body) + 2 * s.body
    c.figure.update_xaxes(range=[0, nk], title_text=words["keys"], showgrid=False, constrain="domain",
                          constraintoward="left")
    c.figure.update_yaxes(range=[nq, 0], title_text=words["queries"], showgrid=False, scaleanchor="x",
                          constrain="domain", constraintoward="top")
    if not 0.25 <= nq / max(nk, 1) <= 4:  # a strip would be unreadable at equal scales
        c.figure.update_yaxes(scaleanchor=False)
    rows = [{"query_block": i, "key_block": j, "kind": ("skipped", "crossing", "full")[k]}
            for i, row in enumerate(grid) for j, k in enumerate(row)]
    return canvas.finish(c, pd.DataFrame(rows))


def patterns(grids: Mapping[str, Any], labels: Sequence[str], title: str, subtitle: str, foot: str,
             theme: str = "light", size: str = "page") -> go.Figure:
    """Small square pictures in a row: which pairs of query (down) and key (across) are computed. Values 0 to 1."""
    s, t = style.size_of(size), style.theme_of(theme)
    c = canvas.new(title, subtitle, foot, theme, size, axis=False, above=2.4, height=335)
    count = len(grids)
    for i, (label, grid) in enumerate(zip(labels, grids.values())):
        low, high = i / count, (i + 0.88) / count
        axis = "" if i == 0 else str(i + 1)
        c.figure.add_heatmap(
            z=grid, zmin=0, zmax=1, showscale=False, hoverinfo="skip", xaxis=f"x{axis}", yaxis=f"y{axis}",
            colorscale=[[0, style.mix(t.ink, t.ground, 0.07)], [1, style.SCORES]])
        c.figure.update_layout({
            f"xaxis{axis}": {"domain": [low, high], "anchor": f"y{axis}", "visible": False, "constrain": "domain",
                             "constraintoward": "left"},
            f"yaxis{axis}": {"domain": [0, 1], "anchor": f"x{axis}", "visible": False, "autorange": "reversed",
                             "scaleanchor": f"x{axis}", "constrain": "domain", "constraintoward": "top"}})
        c.figure.add_annotation(text=label, xref="paper", yref="paper", x=low, y=1, yshift=6, xanchor="left",
                                yanchor="bottom", showarrow=False, font={"size": s.body, "color": t.ink}, borderpad=0)
    shares = [{"pattern": name, "share_computed": float(grid.mean())} for name, grid in grids.items()]
    return canvas.finish(c, pd.DataFrame(shares))
