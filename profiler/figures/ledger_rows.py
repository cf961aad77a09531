"""One row of the ledger: segments end to end, named inside where they are wide enough and beside them where not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiler.evidence.ledger import CARRIED, REFETCH, REST, WAVE_REFETCH
from profiler.figures import canvas, labels, style, units
from profiler.figures.place import text_height, text_width, wrap

MARKS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
SMALL = 0.01  # a residual below this share of its row is left to the hover and the table
CAUSES = {REFETCH: "refetched", WAVE_REFETCH: "refetched, as predicted", CARRIED: "of earlier kernels",
          REST: "unexplained"}
BAR, BENEATH = 0.68, 0.12  # heights of the measured and the predicted bar, in rows
LIFT = 0.06  # rows by which the measured bar sits above the middle, to make room for the predicted one


def draw_row(c: canvas.Canvas, mine: pd.DataFrame, name: str, y: float, pixels: tuple[float, float], aside: str,
             compulsory: float) -> None:
    """Draw one stage at height ``y``; pixels: of a byte (on the narrowest canvas) and of a row."""
    s, t = c.size, c.theme
    end, narrow = 0.0, []
    bars: dict[str, list[Any]] = {"base": [], "x": [], "fill": [], "custom": []}
    first = mine["launches"].iloc[0].split(", ")[0]
    launch = int(first) if first else None  # a stage of which no launch was recorded
    for r in mine.to_dict("records"):
        if units.missing(r["bytes"]):
            narrow.append(r)
            continue
        if r["bytes"] == 0:
            continue
        colour = style.tensor_colour(r["tensor"])
        colour = style.tint(colour, t) if r["direction"] == "read" else colour
        bars["base"].append(end)
        bars["x"].append(r["bytes"])
        bars["fill"].append(colour)
        bars["custom"].append([launch, labels.sentence(f"{r['direction']} {_what(r)}"), units.nbytes(r["bytes"]),
                               r["kind"], units.nbytes(r["predicted_bytes"]), r["launches"]])
        # a line with a circled number is taller than its type, and the ground of the words must not leave the bar
        gap = "<br>" if BAR * pixels[1] > text_height("<br>", s.body) + 0.5 * s.body else "  "
        text = f"{_mark(r)}{r['direction']} {_what(r)}{gap}<b>{units.nbytes(r['bytes'])}</b>"
        if text_width(text, s.body) + s.body < r["bytes"] * pixels[0]:
            # on a ground of its own, so that the compulsory line does not run through it
            c.figure.add_annotation(x=end + r["bytes"] / 2, y=y - LIFT, text=text, showarrow=False, borderpad=0,
                                    name=name, bgcolor=colour,
                                    font={"size": s.body, "color": style.text_on(colour)})
        elif not units.missing(r["tensor"]) or r["bytes"] > SMALL * mine["bytes"].sum():
            narrow.append(r)
        end += r["bytes"]
    c.figure.add_bar(orientation="h", x=bars["x"], base=bars["base"], y=[y - LIFT] * len(bars["x"]), width=BAR,
                     name=name, customdata=bars["custom"],
                     marker={"color": bars["fill"], "line": {"color": t.ground, "width": 1}},
                     hovertemplate="<b>%{customdata[1]}</b>: %{customdata[2]} (%{customdata[3]})<br>predicted "
                                   "%{customdata[4]}<br>launch %{customdata[5]}<extra></extra>")
    need = mine["predicted_bytes"].sum(min_count=1)
    if not units.missing(need):
        c.figure.add_bar(orientation="h", x=[float(need)], base=[0], y=[y + 0.37], width=BENEATH,
                         name=f"{name}/predicted", customdata=[[launch, units.nbytes(need)]],
                         marker={"color": "rgba(0,0,0,0)", "line": {"color": t.muted, "width": 1.5}},
                         hovertemplate="predicted, each tensor once: %{customdata[1]}<extra></extra>")
        end = max(end, float(need))
    if narrow:
        lead = "+ " if len(narrow) < (mine["tensor"].notna() & mine["bytes"].ne(0).fillna(True)).sum() else ""
        text = lead + _words(narrow) + aside
        if end < compulsory < end + (text_width(text, s.body) + 1.4 * s.body) / pixels[0]:
            end = compulsory  # the text would run over the line
        room = s.narrow - c.left - c.right - end * pixels[0] - s.body
        text = wrap(text, s.body, max(room, 8 * s.body))
        if text_height(text, s.body) > pixels[1]:  # tensor by tensor they stand in the hover and the table
            text = wrap(lead + _sums(narrow), s.body, max(room, 8 * s.body))
        c.figure.add_annotation(x=end, y=y - LIFT, xanchor="left", yanchor="middle", xshift=0.7 * s.body, align="left",
                                text=text, name=name, showarrow=False, borderpad=0, font={"size": s.body})


def _sums(segments: Sequence[dict[str, Any]]) -> str:
    """Segments too many to name beside the row, by direction: "read 66.6 kB, written 528 kB"."""
    parts = []
    for way, done in (("read", "read"), ("write", "written")):
        mine = [r["bytes"] for r in segments if r["direction"] == way]
        if mine:
            lost = any(units.missing(b) for b in mine)
            parts.append(f"{done} {'not available' if lost else f'<b>{units.nbytes(sum(mine))}</b>'}")
    return ", ".join(parts)


def _what(r: dict[str, Any]) -> str:
    """The tensor of a segment, or the cause of bytes that no tensor explains."""
    return CAUSES.get(r["cause"], str(r["cause"])) if units.missing(r["tensor"]) else labels.tensor(r["tensor"])


def _mark(r: dict[str, Any]) -> str:
    return "" if units.missing(r["nxn_pass"]) else f"{MARKS[int(r['nxn_pass']) - 1]}{units.NBSP}"


def _words(segments: Sequence[dict[str, Any]]) -> str:
    """Segments too narrow for a label, in words: "Q and K read 16.8 MB, O written 8.39 MB"."""
    parts = []
    for way, done in (("read", "read"), ("write", "written")):
        mine = [r for r in segments if r["direction"] == way and not units.missing(r["tensor"])]
        if mine:
            names = labels.join([_mark(r) + _what(r) for r in mine])
            lost = any(units.missing(r["bytes"]) for r in mine)
            parts.append(f"{names} {done}: not available" if lost else
                         f"{names} {done} <b>{units.nbytes(sum(r['bytes'] for r in mine))}</b>")
        parts += [f"{_what(r)} {units.nbytes(r['bytes'])} {done}" for r in segments
                  if r["direction"] == way and units.missing(r["tensor"])]
    return ", ".join(parts)
