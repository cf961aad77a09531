"""Traffic between HBM, L2 and the SMs: bands as thick as the bytes that crossed, all implementations on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import text_width
from profiler.model import knows, predict
from profiler.spec import AttentionShape, RunConfig

COLUMNS = ["implementation", "path", "bytes", "kind", "launches"]
PATHS = {  # path: (column of launches, from x, to x): HBM at 0, L2 at 1, the SMs at 2
    "HBM → L2": ("dram_read_bytes", 0, 1), "L2 → SM": ("l2_to_sm_bytes", 1, 2),
    "SM → L2": ("sm_to_l2_bytes", 2, 1), "L2 → HBM": ("dram_write_bytes", 1, 0),
}
PLACES = ("HBM", "L2", "SMs")
HALF, HEAD = 0.09, 0.05  # half width of a place's box and length of an arrow head, in distances of two places


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """Bytes of one pass on each path, all launches together; null where one launch was not counted."""
    out: list[dict[str, Any]] = []
    for name in implementations:
        rows = select.records(bundle, shape, name, direction)
        for path, (column, _, _) in PATHS.items() if rows else ():
            out.append({"implementation": name, "path": path, "bytes": select.summed(rows, column), "kind": "measured",
                        "launches": ", ".join(str(row["launch"]) for row in rows)})
    return pd.DataFrame(out, columns=COLUMNS).astype({"bytes": "Float64"})


def traffic(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"), *,
            direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """One row an implementation: reads to the right as tints, writes to the left in full colour, one scale for all."""
    data = frame(bundle, shape, implementations, direction)
    foot = canvas.foot(bundle.profile, "all bands measured")
    if data["bytes"].isna().all():
        return canvas.unavailable("Traffic between HBM, L2 and the SMs: not available",
                                  "The bytes of these levels were not collected for "
                                  f"{labels.call(shape, direction)}.", foot, theme, size)
    s = style.size_of(size)
    present = list(data["implementation"].unique())
    names = [labels.implementation(n) for n in present]
    about = (f"{labels.sentence(labels.call(shape, direction))}. Thickness is bytes, on one scale; reads go right and "
             "are tinted, writes go left.")
    floor = _floor(bundle, shape, present, direction)
    if floor and any(_stack(data, name)[0] < floor for name in present):
        about += f" The ratio at HBM takes the compulsory {units.nbytes(floor)} for what L2 kept back."
    c = canvas.new(title(data, floor), about, foot, theme, size, axis=False, above=2.6,
                   left=max(text_width(f"<b>{_lines(name)}</b>", s.body) for name in names) + s.body)
    plot = c.height - c.top - c.bottom
    line = 1.5 * s.body / plot  # height of a label, in heights of the plot
    sums = [_stack(data, name) for name in present]
    free = 1 - len(present) * 3.6 * line  # two labels, and air, a row
    scale = free / sum(max(pair) for pair in sums)
    c.figure.update_xaxes(range=[-HALF, 2 + HALF], visible=False)
    c.figure.update_yaxes(range=[1, 0], visible=False)
    for x, place in enumerate(PLACES):
        c.figure.add_annotation(x=x, y=0, yanchor="bottom", yshift=6, text=f"<b>{place}</b>", showarrow=False,
                                borderpad=0, name=place, font={"size": s.body})
    top = 0.0
    for name, stack in zip(present, sums):
        high = max(stack) * scale + 3.2 * line
        _row(c, data[data["implementation"].eq(name)], name, top, high, scale, line)
        top += high + 0.4 * line
    return canvas.finish(c, data)


def _stack(data: pd.DataFrame, name: str) -> tuple[float, float]:
    """Bytes that lie above each other between HBM and L2, and between L2 and the SMs."""
    moved = data[data["implementation"].eq(name)].set_index("path")["bytes"].fillna(0)
    return float(moved["HBM → L2"] + moved["L2 → HBM"]), float(moved["L2 → SM"] + moved["SM → L2"])


def _row(c: canvas.Canvas, rows: pd.DataFrame, name: str, top: float, high: float, scale: float, line: float) -> None:
    """One implementation: the three places as boxes and the four bands between them, each named with its bytes."""
    look = style.mark(name)
    c.figure.add_annotation(x=-HALF, y=top + high / 2, xanchor="right", xshift=-c.size.body / 2, align="right",
                            text=f"<b>{_lines(labels.sentence(labels.implementation(name)))}</b>", showarrow=False,
                            borderpad=0, font={"size": c.size.body}, name=name)
    for x in range(3):
        c.figure.add_shape(type="rect", x0=x - HALF, x1=x + HALF, y0=top, y1=top + high, layer="below", line_width=0,
                           fillcolor=style.mix(c.theme.ink, c.theme.ground, 0.08))
    for r in rows.itertuples():
        _, start, end = PATHS[r.path]
        reads = end > start
        text = f"{r.path}  <b>{units.nbytes(r.bytes)}</b>"
        thick = 0.0 if units.missing(r.bytes) else float(r.bytes) * scale
        middle = top + high / 2
        y0 = middle - 0.1 * line - thick if reads else middle + 0.1 * line
        x0, x1 = (start + HALF, end - HALF) if reads else (start - HALF, end + HALF)
        neck = x1 - HEAD if reads else x1 + HEAD
        if thick:
            c.figure.add_scatter(
                x=[x0, neck, x1, neck, x0, x0], y=[y0, y0, y0 + thick / 2, y0 + thick, y0 + thick, y0], mode="lines",
                fill="toself", name=f"{name}/{r.path}", hoveron="fills", hoverinfo="text",
                text=f"{labels.implementation(name)}, {r.path}: {units.nbytes(r.bytes)}<br>launches {r.launches}",
                fillcolor=style.tint(look.colour, c.theme) if reads else look.colour,
                line={"color": look.colour, "width": 1.5})
        inside = thick > 1.3 * line
        c.figure.add_annotation(
            x=(x0 + x1) / 2, y=y0 + thick / 2 if inside else y0 if reads else y0 + thick, text=text, showarrow=False,
            yanchor="middle" if inside else "bottom" if reads else "top", yshift=0 if inside else 3 if reads else -3,
            borderpad=0, name=f"{name}/{r.path}", font={"size": c.size.body, "color": style.text_on(
                style.tint(look.colour, c.theme) if reads else look.colour) if inside else c.theme.ink})


def _lines(name: str) -> str:
    """A long name on two lines."""
    return name.replace(" (", "<br>(").replace(", ", ",<br>")


def _floor(bundle: Bundle, shape: AttentionShape, present: Sequence[str], direction: str) -> float:
    """Compulsory bytes of the shape; 0 where the model knows none of the implementations."""
    known = [name for name in present if knows(name, direction)]
    return float(predict(RunConfig(known[0], shape, direction)).compulsory_bytes) if known else 0.0


def title(data: pd.DataFrame, floor: float = 0.0) -> str:
    """The finding: at which level the first fused implementation saves bytes, and at which it does not.

    HBM bytes below ``floor``, the compulsory ones, count as the floor: what L2 kept back must not flatter flash.
    """
    moved = {name: _stack(data, name) for name in data["implementation"].unique()
             if data.loc[data["implementation"].eq(name), "bytes"].notna().all()}
    naive = next((n for n in moved if labels.is_naive(n)), "")
    fused = next((n for n in moved if not labels.is_naive(n)), "")
    if naive and fused and all(moved[fused]):
        words = []
        counted = (max(moved[fused][0], floor), moved[fused][1])
        for level, a, b in zip(("HBM", "L2 ⇄ SM"), moved[naive], counted):
            words.append(f"{units.times(a / b)} fewer bytes at {level}" if a >= b else
                         f"{units.times(b / a)} more at {level}")
        return f"FlashAttention moves {labels.join(words)} than naive attention"
    one = next(iter(moved), "")
    if not one:
        return "Traffic between HBM, L2 and the SMs, with counters missing"
    return (f"{labels.sentence(labels.implementation(one))} moves {units.nbytes(moved[one][0])} at HBM and "
            f"{units.nbytes(moved[one][1])} between L2 and the SMs")
