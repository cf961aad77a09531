"""What every figure has around its marks: the finding, what is shown, provenance at the foot, and the data.

``new`` makes the empty figure, ``frames`` the geometry for label placement, ``write`` draws placed labels, ``to_frame``
gives back exactly what is drawn as a table.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import heading, labels, units
from profiler.figures.place import Frame, Placement, Placer, text_height, text_width, wrap
from profiler.figures.style import Size, Theme, size_of, template, theme_of

DATA = "flashscope"


class Sheet:
    """A figure under construction, as plain values: Plotly's own ``add_…`` and ``update_…`` copy and check all that the
    figure holds again at each call, which took a third of the time to draw one."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"annotations": [], "shapes": []}

    def add_annotation(self, **named: Any) -> None:
        self.layout["annotations"].append(named)

    def add_shape(self, **named: Any) -> None:
        self.layout["shapes"].append(named)

    def add_scatter(self, **named: Any) -> None:
        self.data.append({"type": "scatter", **named})

    def add_bar(self, **named: Any) -> None:
        self.data.append({"type": "bar", **named})

    def add_heatmap(self, **named: Any) -> None:
        self.data.append({"type": "heatmap", **named})

    def update_layout(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Set what is named; of an axis that is there, only what is given."""
        for name, value in {**(values or {}), **named}.items():
            old = self.layout.get(name)
            self.layout[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value

    def update_xaxes(self, **named: Any) -> None:
        self._update_axes("xaxis", named)

    def update_yaxes(self, **named: Any) -> None:
        self._update_axes("yaxis", named)

    def _update_axes(self, way: str, named: dict[str, Any]) -> None:
        if "title_text" in named:
            named["title"] = {"text": named.pop("title_text")}
        for name in [name for name in self.layout if name.startswith(way)] or [way]:
            self.update_layout({name: named})

    def done(self) -> go.Figure:
        """The finished figure. That it is one Plotly knows is for the tests to say: checking takes longer than
        drawing."""
        return go.Figure({"data": self.data, "layout": self.layout}, _validate=False)


@dataclass(frozen=True, slots=True)
class Canvas:
    """A figure under construction with its theme, size and margins in pixels."""

    figure: Sheet
    theme: Theme
    size: Size
    left: float
    right: float
    top: float
    bottom: float
    height: float

    def frames(self, x_range: Sequence[float], y_range: Sequence[float], x_log: bool = False,
               y_log: bool = False) -> list[Frame]:
        """The plot's geometry at its narrowest and at its full width."""
        return [Frame(w, self.height, self.left, self.right, self.top, self.bottom, (x_range[0], x_range[1]),
                      (y_range[0], y_range[1]), x_log, y_log) for w in sorted({self.size.narrow, self.size.width})]

    def placer(self, x_range: Sequence[float], y_range: Sequence[float], x_log: bool = False,
               y_log: bool = False) -> Placer:
        """A placer of labels in that geometry."""
        return Placer(self.frames(x_range, y_range, x_log, y_log), gap=self.size.body / 4)


def new(title: str, subtitle: str, foot: str, theme: str, size: str, *, left: float = 0, right: float = 0,
        above: float = 1.2, axis: bool = True, height: float | None = None) -> Canvas:
    """An empty figure.

    left, right: pixels that labels beside the plot need. above: lines of body text between head and plot. axis: whether
    a titled x axis lies below.
    """
    heading.reached(plain(title), plain(subtitle))
    t, s = theme_of(theme), size_of(size)
    room = s.narrow - 2 * s.edge
    lines = {"title": (wrap(f"<b>{title}</b>", s.title, room), s.title, t.ink),
             "subtitle": (wrap(subtitle, s.body, room), s.body, t.muted),
             "foot": (wrap(foot.replace(" · ", f"{units.NBSP}· "), s.small, room), s.small, t.muted)}
    tall = {what: text_height(text, font) for what, (text, font, _) in lines.items()}
    top = s.edge + tall["title"] + 0.5 * s.body + tall["subtitle"] + above * s.body
    bottom = s.edge + tall["foot"] + (4.7 if axis else 1) * s.body
    # a whole number of pixels: a page's chart is as high as its element, which has no fraction, and is drawn once so
    right, height = s.edge + max(right, 1.5 * s.body), round(height or s.height)
    figure = Sheet()
    figure.update_layout(
        template=template(theme, size), height=height, width=s.width if size == "talk" else None,
        margin={"l": s.edge + left, "r": right, "t": top, "b": bottom, "pad": 0},
        meta={DATA: {"title": plain(title), "theme": theme, "size": size}},
    )
    # Plotly's own title cannot hold several lines and a subtitle at a known distance, so all three are annotations
    up = {"title": top - s.edge, "subtitle": top - s.edge - tall["title"] - 0.5 * s.body, "foot": s.edge - bottom}
    for what, (text, font, colour) in lines.items():
        figure.add_annotation(
            text=text, name=what, xref="paper", yref="paper", x=0, y=0 if what == "foot" else 1, xshift=-left,
            yshift=up[what], xanchor="left", yanchor="bottom" if what == "foot" else "top", align="left",
            showarrow=False, borderpad=0, font={"size": font, "color": colour})
    return Canvas(figure, t, s, s.edge + left, right, top, bottom, height)


def finish(canvas: Canvas, frame: pd.DataFrame) -> go.Figure:
    """The finished figure, carrying ``frame``: one row for each value that is drawn."""
    records = json.loads(frame.to_json(orient="split", double_precision=15, index=False))
    canvas.figure.layout["meta"][DATA].update(columns=records["columns"], data=records["data"])
    return canvas.figure.done()


def to_frame(figure: go.Figure) -> pd.DataFrame:
    """Exactly what ``figure`` draws as a tidy table: the content of its CSV download."""
    held = (figure.layout.meta or {}).get(DATA, {})
    return pd.DataFrame(held.get("data", []), columns=held.get("columns", []))


def plain(text: str) -> str:
    """A figure's ``text`` without its markup: N<sup>2</sup> reads N^2, &lt; reads <."""
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<sup>(.*?)</sup>", r"^\1", text.replace("<br>", " "))))


def title(figure: go.Figure) -> str:
    """The finding that heads ``figure``, as plain text."""
    return str((figure.layout.meta or {}).get(DATA, {}).get("title", ""))


def write(canvas: Canvas, spot: Placement | None, size: float, *, x_log: bool = False, y_log: bool = False,
          colour: str | None = None, name: str = "label") -> bool:
    """Draw a placed label, with a leader line where it lies far from its point; False where it had no free place."""
    if spot is None:
        return False
    x = math.log10(spot.x) if x_log else spot.x
    y = math.log10(spot.y) if y_log else spot.y
    if spot.far:
        canvas.figure.add_annotation(
            x=x, y=y, ax=spot.dx, ay=-spot.dy, text=spot.text, name=name, xanchor=spot.xanchor, yanchor=spot.yanchor,
            showarrow=True, arrowhead=0, arrowwidth=1, arrowcolor=canvas.theme.muted, standoff=canvas.size.marker / 2,
            borderpad=0, align=spot.xanchor, font={"size": size, "color": colour or canvas.theme.ink})
    else:
        canvas.figure.add_annotation(
            x=x, y=y, xshift=spot.dx, yshift=spot.dy, text=spot.text, name=name, xanchor=spot.xanchor,
            yanchor=spot.yanchor, showarrow=False, borderpad=0, align=spot.xanchor,
            font={"size": size, "color": colour or canvas.theme.ink})
    return True


def unavailable(title: str, why: str, foot: str, theme: str, size: str) -> go.Figure:
    """The figure of data that is not there: says what is missing and draws nothing."""
    heading.reached(plain(title), plain(why), empty=True)
    canvas = new(title, why, foot, theme, size, axis=False, height=200 if size == "page" else None)
    canvas.figure.update_xaxes(visible=False)
    canvas.figure.update_yaxes(visible=False)
    return finish(canvas, pd.DataFrame())


def foot(profile: Mapping[str, Any], kinds: str, launches: pd.DataFrame | None = None) -> str:
    """The provenance line: GPU, ncu, cache and clock control, versions, date, and which values are of which kind."""
    gpu = (profile.get("gpu") or {}).get("name")
    if not gpu and launches is not None:
        gpu = labels.join(sorted(launches["device"].dropna().unique()))
    parts = [labels.escape(gpu or "GPU not named")]
    parts += [f"{word}{units.NBSP}{labels.escape(profile[key])}" for word, key in (
        ("ncu", "ncu"), ("cache-control", "cache_control"), ("clock-control", "clock_control"), ("driver", "driver"),
        ("torch", "torch"), ("Triton", "triton")) if profile.get(key)]
    file = profile.get("file") or {}
    if file.get("name"):
        parts.append(labels.escape(labels.shorten(str(file["name"]), 32)))
    if file.get("sha256"):
        parts.append(f"sha256{units.NBSP}{str(file['sha256'])[:8]}")
    if profile.get("created"):
        parts.append(str(profile["created"])[:10])
    return " · ".join([*parts, kinds])


def decades(low: float, high: float) -> list[float]:
    """Ticks at whole decades that lie in [low, high], with 2 and 5 between where fewer than three would show."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**e for e in exponents if low <= 10.0**e <= high]
    if len(ticks) < 3:
        ticks = [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return ticks


def step(reach: float) -> float:
    """A tick step of 1, 2 or 5 times a power of ten that gives at most eight ticks up to ``reach``."""
    power = 10.0 ** (math.floor(math.log10(reach)) - 1)
    return next(m * power for m in (1, 2, 5, 10, 20) if reach / (m * power) <= 8)


def spread(most: float) -> list[float]:
    """Ticks on both sides of 0 within ±``most``, at most three a side."""
    power = 10.0 ** math.floor(math.log10(most))
    each = next(m * power for m in (0.5, 1, 2, 5) if most / (m * power) < 4)
    return [each * i for i in range(-int(most / each), int(most / each) + 1)]


def log_axis(low: float, high: float, unit: str = "", ticks: Iterable[float] | None = None) -> dict[str, Any]:
    """A log axis over [low, high] with words on its ticks."""
    values = list(ticks) if ticks is not None else decades(low, high)
    return {"type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": values,
            "ticktext": [units.tick(v, unit) for v in values]}


def beside(texts: Iterable[str], size: float) -> float:
    """Pixels that the widest of ``texts`` needs beside a plot."""
    return max((text_width(text, size) for text in texts), default=0) + size * 0.7
