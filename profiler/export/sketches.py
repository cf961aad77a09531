"""Two drawings that explain the algorithm: the tiles that a block of queries passes, and the softmax it keeps."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.export.plates import board, say
from profiler.figures import canvas, labels, style, units
from profiler.spec import AttentionShape

TILES = 6  # blocks drawn a side; a sketch, not N ÷ block
ROW = 2  # the block of queries that is followed
SCORES = ((1.2, 0.3, 2.1, -0.5), (3.0, 0.8, 1.1, 2.4), (0.2, 3.6, -1.0, 1.7))  # the worked example, in three tiles


def tiles(bundle: Bundle, shape: AttentionShape, block: tuple[int, int] | None, name: str, theme: str) -> go.Figure:
    """Q stays, K and V stream by; each tile of S lives on the SM only. block: rows and columns, where recorded."""
    e = shape.element_bytes
    rows = []
    if block:
        m, n = block
        rows = [
            ("Q block", m * shape.head_dim * e),
            ("K tile", n * shape.head_dim * e),
            ("V tile", n * shape.head_dim * e),
            ("S tile, fp32", m * n * 4),
            ("m and l, fp32", m * 8),
            ("O block, fp32", m * shape.head_dim * 4),
        ]
        title = f"Each block of {m} query rows reads K and V once; its tiles of S never leave the SM"
    else:
        title = "Each block of query rows reads K and V once; its tiles of S never leave the SM"
    about = (
        f"{labels.sentence(labels.shape(shape))}. The schedule of {labels.implementation(name)}; the grid is a sketch."
    )
    kinds = "sizes predicted from the recorded block" if block else "nothing here is measured"
    c, _width, height = board(title, about, canvas.foot(bundle.profile, kinds), theme)
    unit = min((height - 130) / TILES, 105.0)
    x0, y0 = 250.0, 130.0
    left, right = 60.0, x0 + TILES * unit + 50

    boxes: list[dict[str, Any]] = []

    def box(x: float, y: float, w: float, h: float, what: str, tensor: str, full: bool) -> None:
        colour = style.tensor_colour(tensor)
        line = {
            "color": colour if full else c.theme.muted,
            "width": 3 if full else 1.5,
            "dash": "solid" if full or tensor != "s" else "dot",
        }
        fill = colour if full else "rgba(0,0,0,0)"
        boxes.append(
            {"type": "rect", "x0": x, "x1": x + w, "y0": y, "y1": y + h, "name": what, "fillcolor": fill, "line": line}
        )

    for i in range(TILES):
        box(left, y0 + i * unit, 110, unit - 6, "frame", "q", False)
        box(right, y0 + i * unit, 110, unit - 6, "frame", "o", False)
        box(x0 + i * unit, 10, unit - 6, 46, "frame", "k", False)
        box(x0 + i * unit, 66, unit - 6, 46, "frame", "v", False)
        for j in range(TILES):
            box(x0 + i * unit, y0 + j * unit, unit - 6, unit - 6, "frame", "s", False)
    middle = y0 + ROW * unit + unit / 2 - 3
    for x, y, text, anchor in (
        (left + 55, y0 - 20, "Q", "center"),
        (right + 55, y0 - 20, "O", "center"),
        (x0 - 16, 33, "K", "right"),
        (x0 - 16, 89, "V", "right"),
    ):
        say(c, x, y, f"<b>{text}</b>", "frame", xanchor=anchor, yanchor="middle")
    box(left, y0 + ROW * unit, 110, unit - 6, "load", "q", True)
    say(c, left + 55, middle, "stays", "load", xanchor="center", yanchor="middle", colour=style.text_on(style.INPUTS))
    for i in range(TILES):
        what = f"tile/{i}"
        box(x0 + i * unit, 10, unit - 6, 46, what, "k", True)
        box(x0 + i * unit, 66, unit - 6, 46, what, "v", True)
        box(x0 + i * unit, y0 + ROW * unit, unit - 6, unit - 6, what, "s", True)
        say(
            c,
            x0 + i * unit + unit / 2 - 3,
            middle,
            f"S<sub>{i + 1}</sub>",
            what,
            xanchor="center",
            yanchor="middle",
            colour=style.text_on(style.SCORES),
        )
    box(right, y0 + ROW * unit, 110, unit - 6, "store", "o", True)
    say(c, right + 55, middle, "once", "store", xanchor="center", yanchor="middle", colour=style.text_on(style.INPUTS))
    c.figure.layout["shapes"] = boxes
    _beside(c, right + 190, y0, rows)
    return canvas.finish(
        c,
        pd.DataFrame(
            [{"what": what, "bytes": size, "kind": "predicted"} for what, size in rows],
            columns=["what", "bytes", "kind"],
        ),
    )


def _beside(c: canvas.Canvas, x: float, y: float, rows: list[tuple[str, int]]) -> None:
    say(c, x, y, "<b>1</b>  Load a block of Q.", "load", size=26)
    say(
        c,
        x,
        y + 56,
        "<b>2</b>  For each tile of K and V: S, its softmax,<br>and P·V, all on the SM.",
        "tile/0",
        size=26,
    )
    say(c, x, y + 146, "<b>3</b>  Write the block of O once.", "store", size=26)
    if rows:
        text = "<br>".join(f"{what}: <b>{units.nbytes(size)}</b>" for what, size in rows)
        say(c, x, y + 240, f"On the SM, for one block:<br>{text}", "store", colour=c.theme.ink)


def example() -> list[dict[str, Any]]:
    """The worked example tile by tile: m the running maximum, α = exp(m_old − m_new), l the running sum."""
    out: list[dict[str, Any]] = []
    m, total = -math.inf, 0.0
    for tile, scores in enumerate(SCORES, start=1):
        new = max(m, *scores)
        alpha = math.exp(m - new)  # 0 for the first tile: exp(−∞)
        total = alpha * total + sum(math.exp(s - new) for s in scores)
        out.append({"tile": tile, "scores": ", ".join(map(str, scores)), "m": new, "alpha": alpha, "l": total})
        m = new
    return out


def online(
    bundle: Bundle, shape: AttentionShape, name: str, error: float | None, eager: float | None, theme: str
) -> go.Figure:
    """The running maximum and sum over three tiles, beside the sum over the whole row; the measured error below."""
    steps = example()
    row = [s for tile in SCORES for s in tile]
    whole = sum(math.exp(s - max(row)) for s in row)
    c, width, _ = board(
        "Two running numbers a row, m and l, give the exact softmax without the whole row",
        "One row of S in three tiles of four scores, a worked example. A new maximum rescales what is there by α.",
        canvas.foot(
            bundle.profile, "table derived (worked example)" + ("; error measured" if error is not None else "")
        ),
        theme,
    )
    across = [0.0, 180.0, 700.0, 900.0, 1160.0]
    for x, head in zip(across, ("tile", "scores", "m", "α = e<sup>m old − m</sup>", "l = α·l + Σ e<sup>s − m</sup>")):
        say(c, x, 0, head, "head", colour=c.theme.muted)
    for i, r in enumerate(steps):
        y = 60 + 92 * i
        c.figure.add_shape(
            type="line",
            x0=0,
            x1=width,
            y0=y - 10,
            y1=y - 10,
            name=f"row/{i}",
            layer="below",
            line={"color": c.theme.grid, "width": 2},
        )
        cells = (
            f"<b>{r['tile']}</b>",
            r["scores"].replace("-", "−"),
            f"<b>{r['m']:.1f}</b>",
            f"{r['alpha']:.4f}",
            f"<b>{r['l']:.4f}</b>",
        )
        for x, text in zip(across, cells):
            say(c, x, y + 14, text, f"row/{i}", size=30)
    y = 60 + 92 * len(steps)
    c.figure.add_shape(
        type="rect",
        x0=across[4] - 16,
        x1=across[4] + 180,
        y0=y - 82,
        y1=y - 18,
        name="whole",
        line={"color": style.STATISTICS, "width": 4},
    )
    say(
        c,
        0,
        y + 24,
        f"Over the whole row at once: m = {max(row):.1f}, Σ e<sup>s − m</sup> = <b>{whole:.4f}</b>, the "
        "same: nothing is approximated.",
        "whole",
        size=30,
    )
    say(c, 0, y + 90, "O is carried the same way: each new tile multiplies it by α and adds its P·V.", "whole", size=30)
    if error is not None:
        beside = f"; eager PyTorch in {shape.dtype}: <b>{units.number(eager)}</b>" if eager is not None else ""
        say(
            c,
            0,
            y + 170,
            f"Measured: {labels.implementation(name)} differs from float64 attention by "
            f"<b>{units.number(error)}</b> (relative){beside}.",
            "error",
            size=30,
        )
    data = [{**r, "kind": "derived"} for r in steps]
    data.append(
        {"tile": None, "scores": ", ".join(map(str, row)), "m": max(row), "alpha": None, "l": whole, "kind": "derived"}
    )
    return canvas.finish(c, pd.DataFrame(data))
