"""Tuning as heatmaps: block rows × block keys, a panel for each number of warps and stages, the fastest marked."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, style, units
from profiler.figures import tuning_rows as rows_of
from profiler.figures.place import text_width
from profiler.spec import AttentionShape

QUANTITIES = {  # quantity: (unit, words)
    "time": ("ns", "time"), "registers": ("", "registers a thread"), "shared": ("B", "shared memory a block"),
    "spills": ("", "requests to local memory by spills"), "l2_to_sm": ("B", "L2 → SM bytes"),
}
COLOUR = style.INPUTS
CELL = 46  # pixels of a cell's height on a page


def heatmap(bundle: Bundle, shape: AttentionShape, quantity: str = "time", *, implementation: str = "flash2",
            direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """``quantity`` ("time", "registers", "shared", "spills", "l2_to_sm") of every tuning that ran on ``shape``."""
    data = rows_of.frame(bundle, shape, implementation, direction)
    unit, words = QUANTITIES[quantity]
    drawn = data[data[quantity].notna()]
    unprofiled = data["time_kind"].ne("under the profiler").all()
    foot = canvas.foot(bundle.profile, "all values measured, time "
                       f"{'the unprofiled median' if unprofiled else 'under the profiler'}", bundle.launches)
    if drawn.empty:
        return canvas.unavailable(f"{labels.sentence(words)} over block sizes: not available",
                                  refused(data) or f"No tuning of {labels.implementation(implementation)} with "
                                  f"{words} for {labels.call(shape, direction)} in this source.", foot, theme, size)
    s, t = style.size_of(size), style.theme_of(theme)
    m, n = (sorted(drawn[k].dropna().unique()) for k in ("block_m", "block_n"))
    # a setting that the source does not name is a panel of its own
    panels = sorted(drawn[["num_warps", "num_stages"]].drop_duplicates().itertuples(index=False, name=None),
                    key=lambda p: tuple(-1 if units.missing(v) else v for v in p))
    texts = {v: units.quantity(v, unit) if unit else units.whole(v) for v in drawn[quantity]}
    left = canvas.beside([units.whole(v) for v in m], s.body) + 1.9 * s.body
    wide = max(text_width(f"<b>{text}</b>", s.body) for text in texts.values()) + s.body
    head = max(text_width(f"<b>{_panel(p)}</b>", s.body) for p in panels) + s.body
    room = s.narrow - s.edge - left - s.edge - 1.5 * s.body
    across = max(1, min(len(panels), int((room + s.body) // (max(wide * len(n), head) + s.body))))
    down = -(-len(panels) // across)
    across = -(-len(panels) // down)  # rows of even length
    cell = CELL * s.body / 15
    about = _subtitle(shape, direction, data, implementation)
    c = canvas.new(title(data, quantity), about, foot, theme, size, left=left, above=2.6, height=None)
    tall = down * (len(m) * cell + 3.4 * s.body) - 3.4 * s.body + c.top + c.bottom
    if size == "page":
        c = canvas.new(title(data, quantity), about, foot, theme, size, left=left, above=2.6, height=tall)
    low, high = float(drawn[quantity].min()), float(drawn[quantity].max())
    best = drawn.iloc[0]["config_id"] if not units.missing(data["time"].iloc[0]) else None
    plot = c.height - c.top - c.bottom
    gap_x, gap_y = s.body / room, 3.4 * s.body / plot
    w, h = (1 - gap_x * (across - 1)) / across, (1 - gap_y * (down - 1)) / down
    for i, panel in enumerate(panels):
        column, line = i % across, i // across
        x0, y1, axis = column * (w + gap_x), 1 - line * (h + gap_y), str(i + 1) if i else ""
        rows = drawn[[_same(a, panel[0]) and _same(b, panel[1])
                      for a, b in zip(drawn["num_warps"], drawn["num_stages"])]]
        last = i + across >= len(panels)
        c.figure.update_layout({
            f"xaxis{axis}": {"domain": [x0, x0 + w], "anchor": f"y{axis}", "range": [-0.5, len(n) - 0.5],
                             "tickvals": list(range(len(n))), "ticktext": [units.whole(v) for v in n],
                             "showticklabels": last, "showgrid": False},
            f"yaxis{axis}": {"domain": [max(0.0, y1 - h), y1], "anchor": f"x{axis}", "range": [-0.5, len(m) - 0.5],
                             "tickvals": list(range(len(m))), "ticktext": [units.whole(v) for v in m],
                             "showticklabels": column == 0, "showgrid": False}})
        c.figure.add_annotation(text=f"<b>{_panel(panel)}</b>", x=x0, y=y1, xref="paper", yref="paper", xanchor="left",
                                yanchor="bottom", yshift=5, showarrow=False, borderpad=0, name="panel",
                                font={"size": s.body})
        _cells(c, rows.to_dict("records"), quantity, axis, (m, n), (low, high), best, texts, t)
    mid = panels and (min(across, len(panels)) * (w + gap_x) - gap_x) / 2
    c.figure.add_annotation(text="keys in a block", x=mid, y=0, xref="paper", yref="paper", yshift=-2.1 * s.body,
                            yanchor="top", showarrow=False, borderpad=0, font={"size": s.body, "color": t.muted})
    c.figure.add_annotation(text="query rows in a block", x=0, y=0.5, xref="paper", yref="paper", textangle=-90,
                            xshift=-left + 0.6 * s.body, showarrow=False, borderpad=0, name="y title",
                            font={"size": s.body, "color": t.muted})
    return canvas.finish(c, data)


def _cells(c: canvas.Canvas, rows: list[dict[str, Any]], quantity: str, axis: str, sides: tuple[list, list],
           limits: tuple[float, float], best: str | None, texts: dict[float, str], t: style.Theme) -> None:
    """One panel: a cell a configuration with its value; what was not run stays empty."""
    m, n = sides
    low, high = limits
    for r in rows:
        x, y = n.index(r["block_n"]), m.index(r["block_m"])
        share = 0.15 + 0.85 * ((r[quantity] - low) / (high - low) if high > low else 0.0)
        colour = style.mix(COLOUR, t.ground, share)
        first = r["config_id"] == best
        c.figure.add_shape(type="rect", x0=x - 0.47, x1=x + 0.47, y0=y - 0.46, y1=y + 0.46, xref=f"x{axis}",
                           yref=f"y{axis}", fillcolor=colour, layer="below", name="best" if first else "cell",
                           line={"color": t.ink if first else t.ground, "width": 3 if first else 1})
        c.figure.add_annotation(x=x, y=y, xref=f"x{axis}", yref=f"y{axis}", showarrow=False, borderpad=0,
                                text=f"<b>{texts[r[quantity]]}</b>" if first else texts[r[quantity]],
                                font={"size": c.size.body, "color": style.text_on(colour)},
                                name="best" if first else "cell")
    # invisible marks carry the hover and the launch behind a cell
    c.figure.add_scatter(
        x=[n.index(r["block_n"]) for r in rows], y=[m.index(r["block_m"]) for r in rows], mode="markers",
        xaxis=f"x{axis}", yaxis=f"y{axis}", name="configurations", opacity=0,
        marker={"size": 2.4 * c.size.body, "symbol": "square", "color": COLOUR},
        customdata=[[None if units.missing(r["launch"]) else int(r["launch"]), rows_of.name(r),
                     units.duration(r["time"]), units.number(r["registers"]), units.nbytes(r["shared"]),
                     units.nbytes(r["l2_to_sm"]), units.number(r["spills"]), r["reasons"] or "the fastest" if
                     r["config_id"] == best else r["reasons"] or "no counter differs"] for r in rows],
        hovertemplate="<b>%{customdata[1]}</b>: %{customdata[2]}<br>%{customdata[3]} registers a thread, "
                      "%{customdata[4]} shared memory a block<br>L2 → SM %{customdata[5]}, spill requests "
                      "%{customdata[6]}<br>%{customdata[7]}<extra></extra>")


def _same(a: Any, b: Any) -> bool:
    return bool(units.missing(a) and units.missing(b)) or bool(not units.missing(a) and not units.missing(b) and a == b)


def _panel(panel: tuple[Any, Any]) -> str:
    return ", ".join(rows_of.settings(*panel)) or "warps and stages not named"


def _subtitle(shape: AttentionShape, direction: str, data: pd.DataFrame, implementation: str) -> str:
    who = labels.implementation(implementation)
    what = f"{who}, {labels.call(shape, direction)}. Fuller colour is more; the fastest has an edge."
    return " ".join(part for part in (what, rows_of.blanks(data), refused(data)) if part)


def title(data: pd.DataFrame, quantity: str) -> str:
    """The finding: which configuration is fastest and by how much, or how the quantity ranges beside the fastest's."""
    known = data[data["time"].notna()]
    best = rows_of.name(known.iloc[0].to_dict()) if len(known) else ""
    unit, words = QUANTITIES[quantity]
    values = data[quantity].dropna()
    if quantity == "time":
        if len(known) == 1:
            return f"One tuning was run: {best}, {units.duration(known['time'].iloc[0])}"
        return (f"{best}: {units.duration(known['time'].iloc[0])} is the fastest of {units.whole(len(known))}, "
                f"{units.times(known['versus_best'].iloc[-1])} faster than the slowest")
    low, high = (units.quantity(v, unit) if unit else units.whole(v) for v in (values.min(), values.max()))
    head = f"{labels.sentence(words)}: {low}" + (f" to {high}" if high != low else " in every tuning")
    if best and high != low and not units.missing(known[quantity].iloc[0]):
        at = known[quantity].iloc[0]
        return f"{head}, {units.quantity(at, unit) if unit else units.whole(at)} in the fastest"
    return head


def refused(data: pd.DataFrame) -> str:
    """Configurations that did not run, by reason."""
    gone = data[data["status"].ne("ok").fillna(False).astype(bool)]
    parts = [f"{'; '.join(rows_of.name(r) for r in rows.to_dict('records'))} "
             f"({labels.escape(labels.shorten(str(why), 60))})" for why, rows in gone.groupby("status", sort=False)]
    return f"Not drawn: {'; '.join(parts)}." if parts else ""
