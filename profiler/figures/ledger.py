"""HBM bytes by stage and tensor: what naive attention moves, beside what flash moves and what the result needs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import text_height, text_width, wrap
from profiler.model import predict
from profiler.spec import AttentionShape

COLUMNS = ["implementation", "stage", "launch", "direction", "tensor", "nxn_pass", "bytes", "kind", "predicted_bytes"]
MARKS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
ROW, HEADER = 1.0, 0.72


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """One row a stage, direction and tensor: bytes (null where the counter is missing) and the compulsory prediction.

    A launch's total is measured; its split by tensor is derived, in proportion to the predicted compulsory bytes.
    nxn_pass numbers the passes over an N×N matrix (S, P) of an implementation from 1; else null.
    """
    out = []
    for name in implementations:
        rows = select.launches(bundle, shape, name, direction)
        passes = 0
        predicted = predict(select.config(rows.iloc[0])) if len(rows) else None
        for row in rows.to_dict("records"):
            stage = predicted.stage(row["stage"]) if predicted else None
            for way, column, tensors in (("read", "dram_read_bytes", stage.reads if stage else {}),
                                         ("write", "dram_write_bytes", stage.writes if stage else {})):
                due, counted = sum(tensors.values()), row[column]
                for tensor, need in (tensors or {"other": 0}).items():
                    square = tensor.lower() in ("s", "p")
                    passes += square
                    share = need / due if due else 1.0
                    out.append((name, row["stage"], row["launch"], way, tensor, passes if square else None,
                                None if units.missing(counted) else counted * share,
                                "measured" if len(tensors) < 2 else "derived", need if tensors else None))
    return pd.DataFrame(out, columns=COLUMNS).astype({"launch": "Int64", "nxn_pass": "Int64", "bytes": "Float64",
                                                      "predicted_bytes": "Float64"})


def ledger(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"), *,
           direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """Bars of HBM bytes by stage from 0: reads tinted, writes full, N×N passes numbered, predicted bytes hollow beneath."""
    data = frame(bundle, shape, implementations, direction)
    present = [name for name in implementations if data["implementation"].eq(name).any()]
    foot = canvas.foot(bundle.profile, "launch totals measured, split by tensor derived, hollow bars predicted", bundle.launches)
    if not present or data["bytes"].isna().all():
        return canvas.unavailable("HBM bytes by stage are not available", _why(bundle, shape), foot, theme, size)
    compulsory = predict(select.config(select.launches(bundle, shape, present[0], direction).iloc[0])).compulsory_bytes
    s = style.size_of(size)
    rows, heads, bottom = _rows(data, present)
    left = canvas.beside([text for _, text in rows.values()], s.body)
    c = canvas.new(title(data, present, compulsory), _subtitle(bundle, shape, data, compulsory), foot, theme, size, left=left, above=2.4,
                   height=None if size == "talk" else max(s.height, 220 + 48 * bottom))
    top = max(_sum(data, name, stage) for name, stage in rows) or compulsory
    reach = max(top, float(data.groupby(["implementation", "stage"])["predicted_bytes"].sum().max()), compulsory) * 1.06
    pixels = ((s.narrow - c.left - c.right) / reach, (c.height - c.top - c.bottom) / bottom)
    l2 = select.device(bundle).l2_size_bytes
    for (name, stage), (y, _) in rows.items():
        mine = data[data["implementation"].eq(name) & data["stage"].eq(stage)]
        _draw_row(c, mine, f"{name}/{stage}", y, pixels, _aside(data, name, shape, l2), compulsory)
    for name, (y, text) in heads.items():
        c.figure.add_annotation(x=0, y=y, xanchor="left", yanchor="middle", text=text, showarrow=False, borderpad=0,
                                name=f"{name}/header", font={"size": s.body}, bgcolor=c.theme.ground)
    for y in [y for y, _ in heads.values()][1:]:
        c.figure.add_shape(type="line", x0=0, x1=reach, y0=y - HEADER * 0.62, y1=y - HEADER * 0.62, layer="below",
                           line={"color": c.theme.grid, "width": 2})
    c.figure.add_shape(type="line", x0=compulsory, x1=compulsory, y0=0, y1=bottom, name="compulsory",
                       line={"color": c.theme.ink, "width": 1.5, "dash": "dash"})
    c.figure.add_annotation(x=compulsory, y=0, yanchor="bottom", xanchor="left", xshift=-1, showarrow=False, borderpad=0,
                            name="compulsory", font={"size": s.body, "color": c.theme.ink},
                            text=f"compulsory: {units.nbytes(compulsory)}, Q, K, V and O once each")
    step = _step(reach)
    ticks = [step * i for i in range(int(reach / step) + 1)]
    c.figure.update_xaxes(range=[0, reach], tickvals=ticks, ticktext=[units.tick(v, "B") for v in ticks],
                          title_text="HBM bytes of one pass, by launch")
    c.figure.update_yaxes(range=[bottom, 0], tickvals=[y for y, _ in rows.values()], showgrid=False, ticklabelstandoff=8,
                          ticktext=[text for _, text in rows.values()])
    c.figure.update_layout(barmode="overlay", bargap=0)
    return canvas.finish(c, data)


def title(data: pd.DataFrame, present: Sequence[str], compulsory: float) -> str:
    """The finding, from what was counted."""
    moved = {name: select.total(data.loc[data["implementation"].eq(name), "bytes"]) for name in present}
    naive = next((n for n in present if labels.is_naive(n) and moved[n]), None)
    fused = next((n for n in present if not labels.is_naive(n) and moved[n]), None)
    need = units.nbytes(compulsory)
    if naive and fused:
        words = f"{labels.sentence(labels.implementation(naive))} attention moves {units.nbytes(moved[naive])} through HBM"
        if moved[fused] >= moved[naive]:
            return f"{labels.implementation(fused)} moves {units.nbytes(moved[fused])}, no less than naive's {units.nbytes(moved[naive])}"
        if moved[fused] > 1.1 * compulsory:
            return f"{words}, {labels.implementation(fused)} {units.nbytes(moved[fused])}; {need} would do"
        return f"{words} for what needs {need}"
    one = naive or fused
    if not one:
        return "HBM bytes by stage, with counters missing"
    return f"{labels.sentence(labels.implementation(one))} moves {units.nbytes(moved[one])} through HBM for what needs {need}"


def _subtitle(bundle: Bundle, shape: AttentionShape, data: pd.DataFrame, compulsory: float) -> str:
    passes = data["nxn_pass"].max()
    one = f"One N×N matrix is {units.nbytes(shape.matrix_bytes)}"
    l2 = select.device(bundle).l2_size_bytes
    if l2:
        fits = shape.matrix_bytes <= l2
        one += f", {'within' if fits else 'above'} the {units.nbytes(l2)} of L2" + (", so passes over it may not reach HBM" if fits else "")
    marks = "" if units.missing(passes) else f" Passes over an N×N matrix are numbered ① to {MARKS[int(passes) - 1]}."
    return f"{labels.sentence(labels.shape(shape))}. {one}.{marks} Reads are tinted, writes full, predicted bytes hollow."


def _rows(data: pd.DataFrame, present: Sequence[str]) -> tuple[dict, dict, float]:
    """Rows {(implementation, stage): (y, label)}, headers {implementation: (y, text)}, and the y below all."""
    rows, heads, y = {}, {}, 0.25
    for name in present:
        mine = data[data["implementation"].eq(name)]
        stages = mine.drop_duplicates("stage")
        moved = select.total(mine["bytes"])
        passes = 0 if mine["nxn_pass"].isna().all() else int(mine["nxn_pass"].max())
        note = f", {labels.count(passes, 'N×N pass', 'N×N passes')}" if labels.is_naive(name) else ""
        counted = f"{units.nbytes(moved)} counted" if moved is not None else "HBM bytes incomplete"
        heads[name] = (y + HEADER / 2, f"<b>{labels.sentence(labels.implementation(name))}</b>  "
                                       f"{counted} in {labels.count(len(stages), 'launch', 'launches')}{note}")
        y += HEADER
        for i, stage in enumerate(stages["stage"]):
            number = f"{i + 1}  " if len(stages) > 1 else ""
            rows[name, stage] = (y + ROW / 2, f"{number}{labels.stage(stage)}")
            y += ROW
        y += 0.2
    return rows, heads, y


def _draw_row(c: canvas.Canvas, mine: pd.DataFrame, name: str, y: float, pixels: tuple[float, float], aside: str,
              compulsory: float) -> None:
    """One launch: measured segments end to end, the predicted bytes hollow beneath, names inside or beside them.

    pixels: of a byte and of a row.
    """
    s, t = c.size, c.theme
    at, launch = 0.0, int(mine["launch"].iloc[0])
    base, width, fill, custom, narrow = [], [], [], [], []
    for r in mine.to_dict("records"):
        if units.missing(r["bytes"]):
            narrow.append(r)
            continue
        colour = style.tensor_colour(r["tensor"])
        colour = style.tint(colour, t) if r["direction"] == "read" else colour
        base.append(at), width.append(r["bytes"]), fill.append(colour)
        custom.append([launch, f"{r['direction']} {labels.tensor(r['tensor'])}", units.nbytes(r["bytes"]), r["kind"],
                       units.nbytes(r["predicted_bytes"])])
        mark = "" if units.missing(r["nxn_pass"]) else f"{MARKS[int(r['nxn_pass']) - 1]} "
        gap = "<br>" if 0.68 * pixels[1] > text_height("<br>", s.body) else "  "
        text = f"{mark}{r['direction']} {labels.tensor(r['tensor'])}{gap}<b>{units.nbytes(r['bytes'])}</b>"
        if text_width(text, s.body) + s.body < r["bytes"] * pixels[0]:
            c.figure.add_annotation(x=at + r["bytes"] / 2, y=y - 0.06, text=text, showarrow=False, borderpad=0, name=name,
                                    font={"size": s.body, "color": style.text_on(colour)})
        else:
            narrow.append(r)
        at += r["bytes"]
    c.figure.add_bar(orientation="h", x=width, base=base, y=[y - 0.06] * len(width), width=0.68, name=name, customdata=custom,
                     marker={"color": fill, "line": {"color": t.ground, "width": 1}},
                     hovertemplate="<b>%{customdata[1]}</b>: %{customdata[2]} (%{customdata[3]})<br>predicted "
                                   "%{customdata[4]}<br>launch %{customdata[0]}<extra></extra>")
    need = mine["predicted_bytes"].sum(min_count=1)
    if not units.missing(need):
        c.figure.add_bar(orientation="h", x=[need], base=[0], y=[y + 0.37], width=0.12, name=f"{name}/predicted",
                         customdata=[[launch, units.nbytes(need)]],
                         marker={"color": "rgba(0,0,0,0)", "line": {"color": t.muted, "width": 1.5}},
                         hovertemplate="predicted, each tensor once: %{customdata[1]}<extra></extra>")
    if narrow:
        end = max(at, 0.0 if units.missing(need) else float(need), compulsory)
        room = c.size.narrow - c.left - c.right - end * pixels[0] - s.body
        lead = "+ " if len(narrow) < len(mine) else ""
        text = wrap(lead + _words(narrow) + aside, s.body, max(room, 8 * s.body))
        c.figure.add_annotation(x=end, y=y - 0.06, xanchor="left", yanchor="middle", xshift=0.7 * s.body, align="left",
                                showarrow=False, borderpad=0, text=text, name=name, font={"size": s.body})


def _words(segments: list[dict]) -> str:
    """Segments too narrow for a label, in words: "Q and K read 16.8 MB, O written 8.39 MB"."""
    parts = []
    for way, done in (("read", "read"), ("write", "written")):
        mine = [r for r in segments if r["direction"] == way]
        marks = [f"{MARKS[int(r['nxn_pass']) - 1]}{units.NBSP}" if not units.missing(r["nxn_pass"]) else "" for r in mine]
        names = labels.join([mark + labels.tensor(r["tensor"]) for mark, r in zip(marks, mine)])
        if mine:
            amount = None if any(units.missing(r["bytes"]) for r in mine) else sum(r["bytes"] for r in mine)
            parts.append(f"{names} {done} <b>{units.nbytes(amount)}</b>" if amount is not None else f"{names} {done}: not available")
    return ", ".join(parts)


def _aside(data: pd.DataFrame, name: str, shape: AttentionShape, l2: float | None) -> str:
    """What the counters of a fused implementation say of S and P and of the writes, as far as they can."""
    mine = data[data["implementation"].eq(name)]
    if labels.is_naive(name) or mine["bytes"].isna().any() or mine["predicted_bytes"].isna().any() or not l2:
        return ""
    written = mine[mine["direction"].eq("write")]
    short = float(written["predicted_bytes"].sum() - written["bytes"].sum())
    text = " (the rest still in L2)" if 0.05 * written["predicted_bytes"].sum() < short <= l2 else ""
    excess = float(mine["bytes"].sum() - mine["predicted_bytes"].sum()) + max(short, 0.0)
    if shape.matrix_bytes > 2 * l2 and excess < 0.1 * shape.matrix_bytes:
        text += "; no pass over S or P"
    return text


def _step(reach: float) -> float:
    """A tick step of 1, 2 or 5 times a power of ten, giving four to eight ticks."""
    power = 10.0 ** (len(str(int(reach))) - 1)
    return next(m * power for m in (0.1, 0.2, 0.5, 1, 2) if reach / (m * power) <= 8)


def _sum(data: pd.DataFrame, name: str, stage: str) -> float:
    return float(data.loc[data["implementation"].eq(name) & data["stage"].eq(stage), "bytes"].fillna(0).sum())


def _why(bundle: Bundle, shape: AttentionShape) -> str:
    if not bundle.has_counters:
        return "This profile was taken without counters; `python -m profiler run` without --no-counters collects them."
    return f"No launch with HBM counters for {labels.shape(shape)} in this source."
