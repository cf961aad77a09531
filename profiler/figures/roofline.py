"""The roofline: FLOP/s over FLOP per byte, roofs named by what they are and where they come from, points under them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.figures import canvas, labels, roof_lines, style, units
from profiler.figures import roofline_words as say
from profiler.figures.place import LOWER_LEFT, LOWER_RIGHT, UPPER_LEFT, UPPER_RIGHT, Placer, text_width, wrap
from profiler.figures.points import LEVEL_NAMES
from profiler.model import Roof, ridge
from profiler.model.roofs import ARCHITECTURE, ENTERED, ROOF_NAMES

NEXT = ("flash2", "hopper")  # the second arrow, where both are drawn: the same bytes in less time
CROWD = 600  # of more places than this only those of the longest launches keep labels off; markers shrink
KERNELS, REST = 12, "other kernels"  # of a report that is not ours so many kernels, the longest, get a look each


def roofline(points: pd.DataFrame, roofs: Sequence[Roof] | Mapping[str, Sequence[Roof]],
             profile: Mapping[str, Any] | None = None, *, about: str = "", level: str = "dram",
             arrow: tuple[str, str] | None = ("naive", "flash2"), theme: str = "light",
             size: str = "page") -> go.Figure:
    """Points (tables of ``profiler.figures.points``) under roofs (``profiler.model.roofs``).

    roofs: of one GPU, or {GPU name: its roofs}. about: the shape in words, for the line under the title. level: which
    bytes the points count, "dram" or "l2". arrow: from which implementation to which.
    """
    # Words as plain objects: the table is read value by value, which Arrow's strings make half as fast again
    points = points.assign(**{name: points[name].astype(object).where(points[name].notna(), None)
                              for name in points.select_dtypes("string")})
    groups = {str(k): list(v) for k, v in roofs.items()} if isinstance(roofs, Mapping) else {"": list(roofs)}
    drawn = points[points["why_not_drawn"].isna()]
    raised = "" if drawn["bytes_kind"].eq("measured").all() else ", bytes below compulsory raised to it (predicted)"
    groups = {name: roof_lines.shown(name, group, drawn) for name, group in groups.items()}
    sources = {roof.source for group in groups.values() for roof in group}
    foot = canvas.foot(profile or {}, f"points measured{raised}; roofs: solid from the report's counters, dashed "
                                       "measured, dotted from a data sheet"
                       + (" or entered by you" if ENTERED in sources else "")
                       + (", dash-dotted the architecture's rate at the report's clock"
                          if ARCHITECTURE in sources else ""))
    if drawn.empty:
        why = say.absent(points) or "No kernel was profiled here."
        return canvas.unavailable("No launch can be put under a roof", why, foot, theme, size)
    t, s = style.theme_of(theme), style.size_of(size)
    words = LEVEL_NAMES[level]
    named = drawn[drawn["whole"]] if drawn["whole"].any() else drawn
    names = {r.Index: f"<b>{labels.escape(r.label)}</b> {units.number(r.flops_per_s / 1e12)}"
                      f"{', in L2' if r.in_l2 else ''}" for r in named.itertuples()}
    agreeing = say.agreeing(named)
    for near in agreeing:  # one name for all sources of an implementation, with the number of each
        values = labels.join([units.number(value / 1e12) for value in named.loc[near, "flops_per_s"]])
        whose = labels.implementation(named.at[near[0], "implementation"])
        names[near[0]] = f"<b>{labels.escape(whose)}</b> {values}{', in L2' if named.loc[near, 'in_l2'].all() else ''}"
    integer = drawn["unit"].eq("op")
    beside = (max(text_width(text, s.body) for text in names.values()) + 3 * s.marker) / (0.8 * s.narrow)
    gpus = roof_lines.looks(groups)
    limits = _limits(drawn, groups, level, beside, 12 if gpus else 2.6)
    y_ticks = canvas.decades(*limits[2:])
    lines = [line for name, group in groups.items() for line in roof_lines.lines_of(name, group, level, limits)]
    ends = roof_lines.end_names(lines) if gpus else {}
    c = canvas.new(say.title(points, groups, level, arrow), say.subtitle(points, groups, level, about), foot, theme,
                   size, left=canvas.beside([units.tick(v / 1e12) for v in y_ticks], s.body) + 1.9 * s.body,
                   right=canvas.beside(ends.values(), s.small) if ends else 0)
    x_ticks = canvas.decades(*limits[:2])
    x_ticks = x_ticks[::2] if len(x_ticks) > roof_lines.WIDE else x_ticks
    x_axis, y_axis = canvas.log_axis(*limits[:2], ticks=x_ticks), canvas.log_axis(*limits[2:])
    y_axis["ticktext"] = [units.tick(v / 1e12) for v in y_axis["tickvals"]]
    c.figure.update_xaxes(**x_axis, title_text=f"{'' if integer.all() else 'arithmetic intensity, FLOP'}"
                          f"{' or ' if integer.any() and not integer.all() else ''}"
                          f"{'integer operations' if integer.any() else ''} per {words} byte")
    c.figure.update_yaxes(**y_axis, title={"text": "TOP/s" if integer.all() else "TFLOP/s or TOP/s" if integer.any()
                                           else "TFLOP/s", "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    drawn = drawn.loc[sorted(drawn.index, key=lambda i: (style.layer(drawn["implementation"][i]), drawn["whole"][i]))]
    for line in lines:
        placer.avoid_line(line["x"], line["y"])
        c.figure.add_scatter(
            x=line["x"], y=line["y"], mode="lines", name=f"roof/{line['roof'].name}", hoverinfo="text",
            hovertext=line["hover"],
            line={"color": gpus[line["device"]].colour if gpus else style.SPECIAL if line["roof"].name == "special" else
                  t.ink if line["active"] else t.muted,
                  "width": s.line * (2.6 if line["tie"] else 1 if line["active"] else 0.5),
                  "dash": roof_lines.DASH[line["dash"]]})
    if gpus:
        texts = [(ends[i], limits[1], lines[i]["y"][1]) for i in ends]
        for spot in placer.column(texts, s.small, distance=6, outside=c.right - s.edge):
            canvas.write(c, spot, s.small, x_log=True, y_log=True, name="roof")
        roof_lines.key(c, placer, lines, gpus, limits[0], limits[3], (limits[1], limits[2]))
    cells = {(_place(r.intensity), _place(r.flops_per_s)): r for r in drawn.itertuples()}
    for r in sorted(cells.values(), key=lambda r: -r.ns)[:CROWD]:
        placer.avoid_point(r.intensity, r.flops_per_s, _marker(r, s) * 0.6)
    _points(c, drawn, groups, level, gpus)
    arrows = [arrow, NEXT] if arrow and arrow[1] == NEXT[0] else [arrow]
    pairs = [pair for pair in (say.ends(points, one) for one in arrows) if pair]
    for pair in pairs:
        _arrow(c, placer, *pair)
    once = named.drop(index=[i for near in agreeing for i in near[1:]])
    longest = once.sort_values("ns", ascending=False).drop_duplicates(["label", "source", "unit"])  # a kernel once
    ranked = sorted(longest.itertuples(), key=lambda r: (-style.layer(r.implementation), -r.ns))[:12]
    groups_of_names = sorted(_close(placer, ranked, s.body), key=lambda near: len(near) == 1)
    crowds = [near for near in groups_of_names if len(near) > 1]
    for near in crowds:  # first the names that need most room, then the first arrow's words, then the rest
        room = min(f.area.x1 - max(f.xy(r.intensity, r.flops_per_s)[0] for r in near) for f in placer.frames)
        width = max(room - 3 * s.marker, 8 * s.body)  # right of them; a name with its source may be longer
        texts = [(wrap(names[r.Index], s.body, width), r.intensity, r.flops_per_s) for r in near]
        for spot in placer.column(texts, s.body, distance=s.marker * 1.4):
            canvas.write(c, spot, s.body, x_log=True, y_log=True)
    for pair in pairs[:1]:
        _changed(c, placer, *pair, words)
    for r in (near[0] for near in groups_of_names[len(crowds):]):
        spot = placer.put(names[r.Index], r.intensity, r.flops_per_s, s.body, distance=s.marker * 0.9)
        canvas.write(c, spot, s.body, x_log=True, y_log=True)
    for pair in pairs[1:]:
        _changed(c, placer, *pair, words)
    if not gpus:
        roof_lines.name_on_lines(c, placer, lines)
    steps = drawn.drop(named.index)
    shared = [near for _, near in steps.groupby([steps["intensity"].map(_place), steps["flops_per_s"].map(_place)])]
    shown = {near.index[0]: ", ".join(map(labels.escape, near["label"].drop_duplicates())) for near in shared}
    for group in _close(placer, list(steps.loc[list(shown)].itertuples()), s.body):
        items = [(shown[r.Index], r.intensity, r.flops_per_s) for r in group]
        for spot in placer.column(items, s.body, distance=s.marker * 0.9):
            canvas.write(c, spot, s.body, x_log=True, y_log=True)
    return canvas.finish(c, pd.concat([points.assign(kind="point"), _roof_rows(groups)], ignore_index=True))


def _points(c: canvas.Canvas, drawn: pd.DataFrame, groups: say.Groups, level: str,
            gpus: Mapping[str, style.Mark]) -> None:
    """One trace an implementation, a long kernel or a GPU where the report is not ours; the more points, the
    smaller."""
    foreign = drawn[drawn["implementation"].isna()]
    longest = foreign.groupby("label", sort=False)["ns"].sum().astype(float).nlargest(KERNELS).index
    kernels = {label: i for i, label in enumerate(foreign["label"].drop_duplicates()[lambda s: s.isin(longest)])}
    scale = 1 if len(drawn) <= CROWD else 0.6
    own = drawn["device"].astype("string") if gpus else drawn["label"].where(drawn["label"].isin(longest), REST)
    for name, rows in drawn.groupby(drawn["implementation"].fillna(own), sort=False):
        look = gpus[name] if name in gpus else style.kernel_mark(kernels[name]) if name in kernels else style.mark(name)
        symbols = [roof_lines.INTEGER_SYMBOL if unit == "op" else look.symbol for unit in rows["unit"]]
        edge = style.outline(look.colour, c.theme)
        whose = bool(gpus) and name not in gpus  # an implementation keeps its look: the outline is the GPU's
        edges = [gpus[str(d)].colour if str(d) in gpus else edge for d in rows["device"]] if whose else edge
        c.figure.add_scatter(
            x=list(rows["intensity"]), y=list(rows["flops_per_s"]), mode="markers", name=f"points/{name}",
            hovertemplate=say.HOVER, customdata=[say.hover(r, groups, level) for r in rows.to_dict("records")],
            marker={"size": [scale * _marker(r, c.size) for r in rows.itertuples()], "opacity": 1,
                    "color": look.colour, "symbol": symbols if roof_lines.INTEGER_SYMBOL in symbols else look.symbol,
                    "line": {"width": (4 if whose else 1.5) * scale, "color": edges}})


def _close(placer: Placer, rows: Sequence[Any], size: float) -> list[list[Any]]:
    """``rows`` in groups of points whose labels would crowd: less than two lines apart, a label's height sideways."""
    groups: list[list[Any]] = []
    spots = [placer.frames[0].xy(r.intensity, r.flops_per_s) for r in rows]
    at = {id(r): spot for r, spot in zip(rows, spots)}
    for r in rows:
        x, y = at[id(r)]
        near = [g for g in groups if any(abs(x - at[id(o)][0]) < 3 * size and abs(y - at[id(o)][1]) < 3 * size
                                         for o in g)]
        groups = [g for g in groups if g not in near] + [[o for g in near for o in g] + [r]]
    return groups


def _place(value: float) -> int:
    """Values within a few per cent of each other get one label."""
    return round(math.log10(value) * 30)


def _marker(r: Any, s: style.Size) -> float:
    return s.marker * (1.15 if r.whole or units.missing(r.stage) else 0.7)


def _limits(drawn: pd.DataFrame, groups: Mapping[str, Sequence[Roof]], level: str, beside: float,
            above: float) -> tuple[float, float, float, float]:
    """Ranges of intensity and FLOP/s that hold every point, every ridge and the roofs' names.

    beside: share of the width that a name needs to the right of the last point. above: room over the highest value, as
    a factor.
    """
    every = [r for group in groups.values() for r in group]
    tops = [r.value for r in every if r.flat]
    ridges = [ridge(a, b) for group in groups.values() for a in group for b in group
              if a.flat and a.name != "special" and b.name == level]
    x = [*drawn["intensity"], *ridges]
    y = [*drawn["flops_per_s"], *tops]
    low_x, share = min(min(x) / 40, 0.5), min(beside, 0.4)
    high_x = (max(x) / low_x**share) ** (1 / (1 - share))
    return low_x, max(high_x, 8 * max(x)), min(drawn["flops_per_s"]) / 8, max(y) * above


def _arrow(c: canvas.Canvas, placer: Placer, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """From the first implementation to the second."""
    xs, ys = [a["intensity"], b["intensity"]], [a["flops_per_s"], b["flops_per_s"]]
    near = c.size.marker * (0.5 if b["implementation"] == NEXT[1] else 1)  # the second arrow is short
    c.figure.add_annotation(
        x=math.log10(xs[1]), y=math.log10(ys[1]), ax=math.log10(xs[0]), ay=math.log10(ys[0]), xref="x", yref="y",
        axref="x", ayref="y", text="", showarrow=True, arrowhead=2, arrowsize=1.1, arrowwidth=c.size.line * 0.7,
        arrowcolor=style.mark(b["implementation"]).colour, standoff=near, startstandoff=near, name="arrow")
    placer.avoid_line(xs, ys)


def _changed(c: canvas.Canvas, placer: Placer, a: Mapping[str, Any], b: Mapping[str, Any], words: str) -> None:
    """What changed on the way of an arrow, beside its middle."""
    x, y = (math.sqrt(a[name] * b[name]) for name in ("intensity", "flops_per_s"))
    text = say.change(a, b, words).replace(", ", ",<br>") if b["implementation"] != NEXT[1] else \
        f"Hopper: {units.times(b['flops_per_s'] / a['flops_per_s'])} the FLOP/s"
    spot = placer.put(text, x, y, c.size.body, distance=7, reach=12 * c.size.body,
                      sides=(LOWER_RIGHT, UPPER_LEFT, UPPER_RIGHT, LOWER_LEFT))
    canvas.write(c, spot, c.size.body, x_log=True, y_log=True, name="arrow")


def _roof_rows(groups: Mapping[str, Sequence[Roof]]) -> pd.DataFrame:
    return pd.DataFrame([{"kind": "roof", "label": ROOF_NAMES[r.name], "work": r.detail, "source": r.source,
                          "roof_value": r.value, "roof_unit": r.unit, "device": device}
                         for device, group in groups.items() for r in group])
