"""Block rows against bytes from L2 to the SMs, with the largest block that the on-chip memory holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, style, units
from profiler.figures.place import LOWER_LEFT, UPPER_RIGHT

TICKS = (16, 32, 64, 128, 256, 512)


def blocks_and_bytes(rows: Sequence[int], moved: Sequence[float], floor: float, unfused: float, chosen: int,
                     largest: int, measured: Mapping[int, float], words: Mapping[str, str], title: str, subtitle: str,
                     foot: str, theme: str = "light", size: str = "page") -> go.Figure:
    """rows, moved: the predicted line. floor, unfused: HBM bytes of flash and of the best unfused form. chosen: block
    rows of the hollow marker; largest: the most that fit on chip, 0 for none. measured: block rows -> counted bytes.
    words: x, y, moved, floor, unfused, fits, measured."""
    s, look = style.size_of(size), style.mark("flash2")
    every = [*moved, floor, unfused, *measured.values()]
    low, high = min(every) / 2, max(every) * 2
    ticks = canvas.decades(low, high)
    c = canvas.new(title, subtitle, foot, theme, size, height=520,
                   left=canvas.beside([units.tick(v, "B") for v in ticks], s.body) + 1.9 * s.body)
    x_axis = canvas.log_axis(rows[0] / 1.15, rows[-1] * 1.15, ticks=rows)
    y_axis = canvas.log_axis(low, high, "B", ticks)
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    flat = ((floor, words["floor"], c.theme.muted), (unfused, words["unfused"], style.mark("naive").colour))
    for value, _, colour in flat:
        placer.avoid_line([rows[0], rows[-1]], [value, value])
        c.figure.add_scatter(x=[rows[0], rows[-1]], y=[value, value], mode="lines", hoverinfo="skip",
                             line={"color": colour, "width": s.line, "dash": "dash"})
    placer.avoid_line(rows, moved)
    c.figure.add_scatter(x=list(rows), y=list(moved), mode="lines", line={"color": look.colour, "width": s.line},
                         customdata=[[units.nbytes(v)] for v in moved],
                         hovertemplate=f"{words['moved']}, %{{x}}: %{{customdata[0]}}<extra></extra>")
    if largest:
        edge = math.sqrt(largest * largest * 2)  # between the largest that fits and the next power of two
        if edge < rows[-1]:
            c.figure.add_shape(type="line", x0=edge, x1=edge, y0=0, y1=1, yref="paper",
                               line={"color": c.theme.ink, "width": 1.5, "dash": "dot"})
            placer.avoid_line([edge, edge], [low, high])
    if measured:
        c.figure.add_scatter(x=list(measured), y=list(measured.values()), mode="markers",
                             hovertemplate=f"{words['measured']}, %{{x}}<extra></extra>",
                             marker={"symbol": look.symbol, "size": s.marker, "color": look.colour})
    at = moved[list(rows).index(chosen)]
    c.figure.add_scatter(x=[chosen], y=[at], mode="markers", hoverinfo="skip",
                         marker={"symbol": "circle-open", "size": s.marker * 1.6, "color": look.colour,
                                 "line": {"width": 3}})
    for block, value in measured.items():
        canvas.write(c, placer.put(f"{words['measured']}: <b>{units.nbytes(value)}</b>", block, value, s.body,
                                   distance=s.marker * 1.2, sides=(LOWER_LEFT, UPPER_RIGHT)), s.body, x_log=True,
                     y_log=True)
    if chosen not in measured:
        canvas.write(c, placer.put(f"<b>{units.nbytes(at)}</b>", chosen, at, s.body, distance=s.marker * 1.2,
                                   sides=(UPPER_RIGHT, LOWER_LEFT)), s.body, x_log=True, y_log=True)
    middle = len(rows) // 2
    for x, y, text in ((rows[1], floor, words["floor"]), (rows[1], unfused, words["unfused"]),
                       (rows[middle], moved[middle], words["moved"])):
        canvas.write(c, placer.put(text, x, y, s.body, distance=7, sides=((1, 1), (1, -1), (0, 1), (0, -1))), s.body,
                     x_log=True, y_log=True)
    if largest and largest < rows[-1]:
        spot = placer.put(words["fits"], edge, floor * 2, s.body, distance=8, sides=((-1, 0), (1, 0), (-1, 1)))
        canvas.write(c, spot, s.body, x_log=True, y_log=True)
    c.figure.update_xaxes(**x_axis, title_text=words["x"])
    c.figure.update_yaxes(**y_axis, title={"text": words["y"], "standoff": s.body / 2})
    data = [{"block_m": m, "bytes": v, "kind": "predicted"} for m, v in zip(rows, moved)]
    data += [{"block_m": m, "bytes": v, "kind": "measured"} for m, v in measured.items()]
    return canvas.finish(c, pd.DataFrame(data))
