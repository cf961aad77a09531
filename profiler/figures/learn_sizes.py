"""How large S, P and the other tensors are beside the levels of memory; what a forward keeps for its backward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, style, units
from profiler.figures.learn_notes import annotate
from profiler.figures.place import ABOVE, text_width

Bar = tuple[str, float, str]  # label, bytes, tensor whose colour it has


def beside_levels(bars: Sequence[Bar], levels: Mapping[str, float], axis: str, title: str, subtitle: str, foot: str,
                  theme: str = "light", size: str = "page") -> go.Figure:
    """Points of bytes on a log axis, with a line at the capacity of each level of memory."""
    s = style.size_of(size)
    names = [name for name, *_ in bars]
    c = canvas.new(title, subtitle, foot, theme, size, left=canvas.beside(names, s.body), right=80, above=5.4,
                   height=285 + 46 * len(bars))
    values = [v for _, v, _ in bars] + list(levels.values())
    low, high = min(values) / 8, max(values) * 2
    notes: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for name, value, tensor in bars:
        colour = style.tensor_colour(tensor)
        c.figure.add_scatter(x=[low, value], y=[name, name], mode="lines+markers", line={"color": colour, "width": 4},
                             marker={"size": [0, 1.3 * s.marker], "color": colour, "opacity": 1},
                             hovertemplate=f"{name}: {units.nbytes(value)}<extra></extra>")
        notes.append({"x": math.log10(value), "y": name, "text": f"<b>{units.nbytes(value, 4)}</b>", "xanchor": "left",
                      "xshift": 14, "bgcolor": c.theme.ground, "borderpad": 1})
    axis_range = [math.log10(low), math.log10(high)]
    width = s.narrow - c.left - c.right
    taken: list[tuple[float, float, int]] = []
    for name, value in sorted(levels.items(), key=lambda item: item[1]):
        label = f"{name} {units.nbytes(value)}"
        at = (math.log10(value) - axis_range[0]) / (axis_range[1] - axis_range[0]) * width
        half = text_width(label, s.small) / 2 + 4
        line = next(n for n in range(len(levels)) if not any(
            at - half < end and start < at + half and row == n for start, end, row in taken))
        taken.append((at - half, at + half, line))
        lines.append({"type": "line", "x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
                      "line": {"color": c.theme.muted, "width": 1.5, "dash": "dash"}})
        notes.append({"x": math.log10(value), "y": 1, "yref": "paper", "text": label, "yanchor": "bottom",
                      "xanchor": "center", "yshift": 2 + line * 1.5 * s.small, "bgcolor": c.theme.ground,
                      "font": {"size": s.small, "color": c.theme.ink}})
    annotate(c, notes, lines)
    c.figure.update_xaxes(**canvas.log_axis(low, high, "B"), title_text=axis)
    c.figure.update_yaxes(autorange="reversed", showgrid=False, ticklabelstandoff=6)
    rows = [{"what": name, "bytes": value, "kind": "derived"} for name, value, _ in bars]
    rows += [{"what": name, "bytes": value, "kind": "capacity"} for name, value in levels.items()]
    return canvas.finish(c, pd.DataFrame(rows))


def over_n(lines: Mapping[str, tuple[Sequence[float], str]], ns: Sequence[int], at: int, axis: str, title: str,
           subtitle: str, foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """Bytes over N, log-log. lines: label -> (bytes at each N, tensor whose colour it has); `at`: the N marked."""
    s = style.size_of(size)
    low = min(v for values, _ in lines.values() for v in values) / 2
    high = max(v for values, _ in lines.values() for v in values) * 3
    ticks = canvas.decades(low, high)
    c = canvas.new(title, subtitle, foot, theme, size, right=canvas.beside(lines, s.body),
                   left=canvas.beside([units.tick(v, "B") for v in ticks], s.body) + 1.9 * s.body, height=470)
    x_axis = canvas.log_axis(ns[0] / 1.1, ns[-1] * 1.1, ticks=ns)
    y_axis = canvas.log_axis(low, high, "B", ticks)
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    for values, _ in lines.values():
        placer.avoid_line(ns, values)
    rows = []
    for label, (values, tensor) in lines.items():
        colour = style.tensor_colour(tensor)
        c.figure.add_scatter(x=list(ns), y=list(values), mode="lines", line={"color": colour, "width": s.line},
                             name=label, customdata=[[units.nbytes(v)] for v in values],
                             hovertemplate=f"{label}, N %{{x}}: %{{customdata[0]}}<extra></extra>")
        c.figure.add_annotation(x=math.log10(ns[-1]), y=math.log10(values[-1]), text=label, xanchor="left", xshift=8,
                                showarrow=False, font={"size": s.body, "color": c.theme.ink})
        chosen = values[list(ns).index(at)]
        c.figure.add_scatter(x=[at], y=[chosen], mode="markers", hoverinfo="skip",
                             marker={"size": s.marker, "color": c.theme.ground, "line": {"color": colour, "width": 3}})
        canvas.write(c, placer.put(f"<b>{units.nbytes(chosen)}</b>", at, chosen, s.body, distance=s.marker,
                                   sides=(ABOVE, (-1, 1), (1, -1), (0, -1))), s.body, x_log=True, y_log=True)
        rows += [{"what": label, "n": n, "bytes": v} for n, v in zip(ns, values)]
    c.figure.update_xaxes(**x_axis, title_text="N")
    c.figure.update_yaxes(**y_axis, title={"text": axis, "standoff": s.body / 2})
    return canvas.finish(c, pd.DataFrame(rows))
