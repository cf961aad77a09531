"""Plain figures of the stage that no page has: tensor sizes, sums by kernel, and sentences with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, style, units
from profiler.figures.place import text_height, wrap
from profiler.spec import AttentionShape


def board(title: str, subtitle: str, foot: str, theme: str) -> tuple[canvas.Canvas, float, float]:
    """An empty stage whose axes count pixels from the plot's upper left corner; its width and height."""
    c = canvas.new(title, subtitle, foot, theme, "talk", axis=False)
    width, height = c.size.width - c.left - c.right, c.height - c.top - c.bottom
    c.figure.update_xaxes(range=[0, width], visible=False, fixedrange=True)
    c.figure.update_yaxes(range=[height, 0], visible=False, fixedrange=True)
    return c, width, height


def say(
    c: canvas.Canvas,
    x: float,
    y: float,
    text: str,
    name: str,
    *,
    size: float = 0,
    xanchor: str = "left",
    yanchor: str = "top",
    colour: str = "",
) -> None:
    """Text at a pixel of the board; size 0: the body's."""
    c.figure.add_annotation(
        x=x,
        y=y,
        text=text,
        name=name,
        showarrow=False,
        borderpad=0,
        xanchor=xanchor,
        yanchor=yanchor,
        align="center" if xanchor == "center" else xanchor,
        font={"size": size or c.size.body, "color": colour or c.theme.ink},
    )


def tensors(bundle: Bundle, shape: AttentionShape, l2_size_bytes: int | None, theme: str) -> go.Figure:
    """Bytes of each tensor of one call as hollow bars from 0 (they follow from the shape), beside the L2 size."""
    rows = [
        ("Q", shape.q_bytes),
        ("K", shape.k_bytes),
        ("V", shape.k_bytes),
        ("O", shape.q_bytes),
        ("S", shape.matrix_bytes),
        ("P", shape.matrix_bytes),
    ]
    title = f"S and P are {units.nbytes(shape.matrix_bytes)} each, {units.times(shape.matrix_bytes / shape.q_bytes)} Q"
    if l2_size_bytes:
        word = "more than" if shape.matrix_bytes > l2_size_bytes else "within"
        title += f" and {word} the {units.nbytes(l2_size_bytes)} of L2"
    foot = canvas.foot(
        bundle.profile,
        "hollow bars predicted from the shape" + ("; L2 size as the GPU reports it" if l2_size_bytes else ""),
    )
    s = style.size_of("talk")
    c = canvas.new(
        title,
        f"{labels.sentence(labels.shape(shape))}. Bytes of each tensor of one call; S and P have N×N "
        "entries a head, the others N×D.",
        foot,
        theme,
        "talk",
        left=2 * s.body,
    )
    reach = 1.16 * max(size for _, size in rows)
    for y, (name, size) in enumerate(rows):
        c.figure.add_bar(
            orientation="h",
            x=[size],
            y=[y],
            width=0.62,
            name=f"tensor/{name}",
            hovertemplate=f"{name}: {units.nbytes(size)} (predicted)<extra></extra>",
            marker={
                "color": style.mix(style.tensor_colour(name), c.theme.ground, 0.12),
                "line": {"color": style.tensor_colour(name), "width": s.line},
            },
        )
        c.figure.add_annotation(
            x=size,
            y=y,
            xanchor="left",
            xshift=12,
            text=f"<b>{units.nbytes(size)}</b>",
            name=f"tensor/{name}",
            showarrow=False,
            borderpad=0,
            bgcolor=c.theme.ground,  # the line of L2 may pass behind
        )
    if l2_size_bytes and l2_size_bytes < reach:
        c.figure.add_shape(
            type="line",
            x0=l2_size_bytes,
            x1=l2_size_bytes,
            y0=-0.6,
            y1=5.5,
            name="l2",
            layer="below",
            line={"color": c.theme.ink, "width": 2, "dash": "dash"},
        )
        c.figure.add_annotation(
            x=l2_size_bytes,
            y=1.5,
            xanchor="left",
            xshift=10,
            name="l2",
            showarrow=False,
            borderpad=0,
            text=f"L2 holds {units.nbytes(l2_size_bytes)}",
        )
    step = canvas.step(reach)
    ticks = [step * i for i in range(int(reach / step) + 1)]
    c.figure.update_xaxes(
        range=[0, reach], tickvals=ticks, ticktext=[units.tick(v, "B") for v in ticks], title_text="bytes"
    )
    c.figure.update_yaxes(
        range=[5.6, -0.6],
        tickvals=list(range(6)),
        ticktext=[f"<b>{n}</b>" for n, _ in rows],
        showgrid=False,
        ticklabelstandoff=8,
    )
    c.figure.update_layout(barmode="overlay")
    return canvas.finish(c, pd.DataFrame([{"tensor": n, "bytes": b, "kind": "predicted"} for n, b in rows]))


SUMS = {  # quantity: (columns that are added, title words, axis words, unit)
    "time": (("duration_ns",), "the time under the profiler", "time under the profiler", "ns"),
    "bytes": (("dram_read_bytes", "dram_write_bytes"), "the HBM bytes", "HBM bytes, read and written", "B"),
}


def kernels(bundle: Bundle, quantity: str, theme: str, most: int = 10) -> go.Figure:
    """Sums by kernel of any report, "time" or "bytes", largest first; launches without the counter are not counted."""
    columns, words, axis, unit = SUMS[quantity]
    rows = bundle.launches.dropna(subset=list(columns))
    foot = canvas.foot(bundle.profile, "sums over launches, each launch measured", bundle.launches)
    value = rows[list(columns)].astype("Float64").sum(axis=1).astype(float)
    sums = rows.assign(value=value).groupby("kernel", dropna=False)["value"].agg(["sum", "size"])
    sums = sums[sums["sum"] > 0].sort_values("sum", ascending=False)
    if sums.empty:
        return canvas.unavailable(
            f"{labels.sentence(axis)}: not available",
            f"No launch of this report carries {labels.join(list(columns))}.",
            foot,
            theme,
            "talk",
        )
    shown, total = sums.head(most), float(sums["sum"].sum())
    names = [labels.escape(labels.kernel(name)) for name in shown.index]
    order = list(bundle.launches["kernel"].drop_duplicates())  # a kernel keeps its look from figure to figure
    share = units.percent(100 * float(shown["sum"].iloc[0]) / total)
    s = style.size_of("talk")
    absent = len(bundle.launches) - len(rows)
    launches = labels.count(int(sums["size"].sum()), "launch", "launches")
    subtitle = f"{labels.sentence(labels.count(len(sums), 'kernel'))}, {launches}, {units.quantity(total, unit)} in all"
    subtitle += f"; {units.whole(absent)} without this counter." if absent else "."
    subtitle += f" The largest {most} are shown." if len(sums) > most else ""
    head = f"All of {words} is {names[0]}" if len(sums) == 1 else f"{names[0]} takes {share} of {words}"
    c = canvas.new(head, subtitle, foot, theme, "talk", left=canvas.beside(names, s.body), axis=True)
    reach = 1.25 * float(shown["sum"].iloc[0])
    for y, (name, row) in enumerate(zip(names, shown.itertuples(index=False))):
        text = f"<b>{units.quantity(row[0], unit)}</b> in {labels.count(int(row[1]), 'launch', 'launches')}"
        look = style.kernel_mark(order.index(shown.index[y]))
        c.figure.add_bar(
            orientation="h",
            x=[float(row[0])],
            y=[y],
            width=0.62,
            name=f"kernel/{y}",
            hovertemplate=f"{name}: {text}<extra></extra>",
            marker={"color": look.colour, "line": {"width": 1.5, "color": style.outline(look.colour, c.theme)}},
        )
        c.figure.add_annotation(
            x=float(row[0]), y=y, xanchor="left", xshift=12, text=text, name=f"kernel/{y}", showarrow=False, borderpad=0
        )
    step = canvas.step(reach)
    ticks = [step * i for i in range(int(reach / step) + 1)]
    c.figure.update_xaxes(
        range=[0, reach], tickvals=ticks, ticktext=[units.tick(v, unit) for v in ticks], title_text=axis
    )
    c.figure.update_yaxes(
        range=[len(shown) - 0.4, -0.6],
        tickvals=list(range(len(shown))),
        ticktext=names,
        showgrid=False,
        ticklabelstandoff=8,
    )
    c.figure.update_layout(barmode="overlay")
    return canvas.finish(
        c,
        pd.DataFrame(
            {
                "kernel": list(shown.index),
                "launches": list(shown["size"]),
                "quantity": quantity,
                "value": list(shown["sum"]),
                "unit": unit,
            }
        ),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of a board: what to read, the reason under it, and of which kind its numbers are."""

    head: str
    why: str = ""
    kind: str = ""
    value: float | None = None
    unit: str = ""


def sentences(title: str, subtitle: str, rows: Sequence[Line], foot: str, theme: str) -> go.Figure:
    """Numbered sentences, each with its reason and the kind of its numbers, one after the other."""
    c, width, height = board(title, subtitle, foot, theme)
    sizes = (34.0, 26.0)
    texts = [
        (
            wrap(f"<b>{r.head}</b>", sizes[0], width - 80),
            wrap(r.why + (f" ({r.kind})" if r.kind else ""), sizes[1], width - 80),
        )
        for r in rows
    ]
    tall = [text_height(a, sizes[0]) + 6 + (text_height(b, sizes[1]) if b else 0) for a, b in texts]
    gap = min(56.0, max(12.0, (height - sum(tall)) / max(len(rows), 1)))
    y = 0.0
    for i, ((head, why), high) in enumerate(zip(texts, tall)):
        say(c, 0, y, f"<b>{i + 1}</b>", f"line/{i}", size=sizes[0], colour=c.theme.muted)
        say(c, 60, y, head, f"line/{i}", size=sizes[0])
        if why:
            say(c, 60, y + text_height(head, sizes[0]) + 6, why, f"line/{i}", size=sizes[1], colour=c.theme.muted)
        y += high + gap
    return canvas.finish(
        c,
        pd.DataFrame(
            [
                {
                    "sentence": canvas.plain(r.head),
                    "why": canvas.plain(r.why),
                    "value": r.value,
                    "unit": r.unit,
                    "kind": r.kind,
                }
                for r in rows
            ]
        ),
    )
