"""Several GPUs under one roof: each point's intensity over its own ridge, its rate as a share of its own roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, labels, roof_lines, style, units
from profiler.figures import roofline_words as say
from profiler.figures.place import UPPER_LEFT
from profiler.figures.points import LEVEL_NAMES
from profiler.model import Roof

NO_ROOF = "its GPU has no roof for this work"


def frame(points: pd.DataFrame, roofs: Mapping[str, Sequence[Roof]], level: str = "dram") -> pd.DataFrame:
    """``points`` with ridge, roof, x = intensity ÷ ridge and y = rate ÷ the flat roof over its work; both of its GPU.

    What has no roof cannot be drawn, and says so.
    """
    rows = []
    for r in points.to_dict("records"):
        at = say.ridge_of(r, roofs, level) if units.missing(r["why_not_drawn"]) else None
        flat = say.roof_of(r, roofs) if at else None
        why = r["why_not_drawn"] if not units.missing(r["why_not_drawn"]) else None if flat else NO_ROOF
        rows.append({**r, "ridge": at, "roof": flat.value if flat else None, "why_not_drawn": why,
                     "x": r["intensity"] / at if at else None, "y": r["flops_per_s"] / flat.value if flat else None})
    return pd.DataFrame(rows, columns=[*points.columns, "ridge", "roof", "x", "y"]).astype({"why_not_drawn": "string"})


def normalised(points: pd.DataFrame, roofs: Mapping[str, Sequence[Roof]], *, about: str = "", level: str = "dram",
               theme: str = "light", size: str = "page") -> go.Figure:
    """The roofline of several GPUs in units of each one's own: left of 1 memory limits, right of 1 compute does."""
    data = frame(points, roofs, level)
    drawn = data[data["why_not_drawn"].isna()]
    foot = canvas.foot({"gpu": {"name": labels.join(list(roofs))}},
                       "points derived: measured rate and intensity over the roofs of their own GPU")
    words = LEVEL_NAMES[level]
    if drawn.empty:
        return canvas.unavailable("No launch can be put under its GPU's roof", say.absent(data), foot, theme, size)
    s = style.size_of(size)
    share = drawn["y"] / drawn["x"].clip(upper=1)
    nearest = drawn.loc[share.astype(float).idxmax()]
    title = (f"Nearest to its own roof: {labels.escape(nearest['label'])} on "
             f"{roof_lines.short_gpu(str(nearest['device']))}, {say.percent(float(share.max()))} of it")
    said = [labels.sentence(about) + "." if about else "", "Both axes are in units of each GPU's own roofs.",
            say.absent(data)]
    low, high = min(0.1, float(drawn["x"].min()) / 4), max(10.0, float(drawn["x"].max()) * 30)
    floor, top = min(0.01, float(drawn["y"].min()) / 4), max(4.0, float(drawn["y"].max()) * 3)
    ticks = canvas.decades(floor, top)
    x_ticks = canvas.decades(low, high)
    c = canvas.new(title, " ".join(part for part in said if part), foot, theme, size,
                   left=canvas.beside([f"{100 * v:g}%" for v in ticks], s.body) + 1.9 * s.body)
    y_axis = canvas.log_axis(floor, top, ticks=ticks) | {"ticktext": [f"{100 * v:g}%" for v in ticks]}
    x_axis = canvas.log_axis(low, high, ticks=x_ticks[::2] if len(x_ticks) > roof_lines.WIDE else x_ticks)
    c.figure.update_xaxes(**x_axis, title_text=f"intensity over the {words} ridge of its own GPU")
    c.figure.update_yaxes(**y_axis, title={"text": "rate over its own compute roof", "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    line = [floor, 1.0, high], [floor, 1.0, 1.0]
    c.figure.add_scatter(x=line[0], y=line[1], mode="lines", name="roof", hoverinfo="skip",
                         line={"color": c.theme.ink, "width": s.line})
    placer.avoid_line(*line)
    gpus = roof_lines.looks(roofs)
    for (device, name), rows in drawn.groupby(["device", drawn["implementation"].fillna("")], sort=False):
        look = style.mark(name) if name else gpus.get(str(device), style.kernel_mark(0))
        c.figure.add_scatter(
            x=list(rows["x"]), y=list(rows["y"]), mode="markers", name=f"points/{device}/{name}",
            customdata=[[labels.escape(r.label), labels.escape(r.device), units.number(r.x), say.percent(r.y)]
                        for r in rows.itertuples()],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}× the intensity of its ridge"
                          "<br>%{customdata[3]} of its compute roof<extra></extra>",
            marker={"size": s.marker, "opacity": 1, "color": look.colour,
                    "symbol": [roof_lines.INTEGER_SYMBOL if unit == "op" else look.symbol for unit in rows["unit"]],
                    "line": {"width": 4, "color": gpus[str(device)].colour} if name and str(device) in gpus else
                    {"width": 1.5, "color": style.outline(look.colour, c.theme)}})
    for r in drawn.itertuples():
        placer.avoid_point(r.x, r.y, s.marker * 0.6)
    _labels(c, placer, drawn, gpus, low, top)
    return canvas.finish(c, data)


def _labels(c: canvas.Canvas, placer: Any, drawn: pd.DataFrame, gpus: Mapping[str, style.Mark], low: float,
            top: float) -> None:
    """The roof's two parts and the points that took longest, named; the GPUs' marks in a key."""
    s = c.size
    if gpus:
        roof_lines.key(c, placer, [], gpus, low, top)
    spot = placer.put("compute roof of its GPU", drawn["x"].max() * 5, 1.0, s.small, distance=6, sides=(UPPER_LEFT,))
    canvas.write(c, spot, s.small, x_log=True, y_log=True, name="roof")
    longest = drawn.sort_values("ns", ascending=False).drop_duplicates(["label", "device", "unit"]).head(12)
    for r in longest.itertuples():
        spot = placer.put(labels.escape(r.label), r.x, r.y, s.body, distance=s.marker * 0.9)
        canvas.write(c, spot, s.body, x_log=True, y_log=True)
