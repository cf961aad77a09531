"""The FlashAttention theorem at the level where it shows: bytes from L2 to the SMs over the rows of a query block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import BELOW, LOWER_LEFT, LOWER_RIGHT, UPPER_RIGHT, Placer
from profiler.model import log_slope, predict
from profiler.spec import AttentionShape, RunConfig

COLUMNS = ["implementation", "block_m", "block_n", "quantity", "bytes", "kind", "launch"]
ROWS = (16, 32, 64, 128, 256)  # block rows over which the prediction is drawn


def frame(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2") -> pd.DataFrame:
    """Bytes L2 → SM and at HBM over the rows of a block, measured and predicted, and the line between them.

    Where several configurations share their block rows (other warps, stages or keys), the fastest stands for them: a
    slower one may move more for reasons of its own, such as registers that spill.
    """
    rows = select.matching(bundle.launches, shape, implementation)
    rows = rows[rows["parameters"].notna()].sort_values("duration_ns", kind="stable")
    out: list[dict[str, Any]] = []
    configs: list[RunConfig] = []
    for row in rows.to_dict("records"):
        config = select.config(row)
        block_m = config.parameters.get("block_m")
        known = block_m and config.parameters.get("block_n")
        if not known or any(block_m == c.parameters["block_m"] for c in configs):
            continue
        configs.append(config)
        read, written = row["dram_read_bytes"], row["dram_write_bytes"]
        moved = None if units.missing(read) or units.missing(written) else read + written
        out += [_row(config, "l2_to_sm", row["l2_to_sm_bytes"], "measured", int(row["launch"])),
                _row(config, "hbm", moved, "measured", int(row["launch"]))]
    sizes = sorted({*ROWS, *(int(c.parameters["block_m"]) for c in configs)}) if configs else []
    for block_m in sizes:
        config = replace(configs[0], parameters={**configs[0].parameters, "block_m": block_m})
        foreseen = predict(config)
        out += [_row(config, "l2_to_sm", foreseen.level_bytes("l2_to_sm"), "predicted", None),
                _row(config, "hbm", foreseen.compulsory_bytes, "predicted", None)]
    return pd.DataFrame(out, columns=COLUMNS).astype({"bytes": "Float64", "launch": "Int64"})


def _row(config: RunConfig, quantity: str, value: Any, kind: str, launch: int | None) -> dict[str, Any]:
    return {"implementation": config.implementation, "block_m": int(config.parameters["block_m"]),
            "block_n": int(config.parameters["block_n"]), "quantity": quantity, "kind": kind, "launch": launch,
            "bytes": None if units.missing(value) else float(value)}


def theorem(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2", *, theme: str = "light",
            size: str = "page") -> go.Figure:
    """L2 → SM bytes over block rows: measured points on the predicted line, and HBM bytes below, whatever the block."""
    data = frame(bundle, shape, implementation)
    drawn = data[data["bytes"].gt(0).fillna(False).astype(bool)]
    points = drawn[drawn["kind"].eq("measured") & drawn["quantity"].eq("l2_to_sm")]
    foot = canvas.foot(bundle.profile, "points measured, lines predicted")
    name = labels.implementation(implementation)
    if points.empty:
        return canvas.unavailable(f"L2 → SM bytes of {name} over block rows: not available", (
            f"No launch of {name} with known block sizes and L2 → SM bytes for {labels.shape(shape)} in this source."),
            foot, theme, size)
    line = drawn[drawn["kind"].eq("predicted") & drawn["quantity"].eq("l2_to_sm")]
    floor, hbm = (drawn[drawn["kind"].eq(kind) & drawn["quantity"].eq("hbm")] for kind in ("predicted", "measured"))
    off = deviations(points, line)
    s, look = style.size_of(size), style.mark(implementation)
    low, high = float(drawn["bytes"].min()) / 2, float(drawn["bytes"].max()) * 1.6
    ticks = canvas.decades(low, high)
    about = _subtitle(bundle, shape, name, hbm, floor) + slower(bundle, shape, implementation)
    c = canvas.new(title(points, line, off), about, foot, theme, size,
                   left=canvas.beside([units.tick(v, "B") for v in ticks], s.body) + 1.9 * s.body)
    blocks = sorted(line["block_m"].unique())
    x_axis = canvas.log_axis(blocks[0] / 1.1, blocks[-1] * 1.1, ticks=blocks)
    y_axis = canvas.log_axis(low, high, "B", ticks)
    c.figure.update_xaxes(**x_axis, title_text="query rows in a block")
    c.figure.update_yaxes(**y_axis, title={"text": "bytes of one pass", "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    for rows, what, colour, dash in ((line, "L2 → SM", look.colour, "solid"), (floor, "HBM", c.theme.muted, "dash")):
        placer.avoid_line(rows["block_m"], rows["bytes"])
        c.figure.add_scatter(x=list(rows["block_m"]), y=list(rows["bytes"]), mode="lines", name=f"{what}/predicted",
                             line={"color": colour, "width": s.line, "dash": dash},
                             customdata=[[units.nbytes(v)] for v in rows["bytes"]],
                             hovertemplate=f"{what}, predicted at %{{x}} rows: %{{customdata[0]}}<extra></extra>")
    _points(c, placer, hbm, "HBM", c.theme.muted, "circle")
    _points(c, placer, points, "L2 → SM", look.colour, look.symbol)
    for r, share in zip(points.itertuples(), off):
        note = "" if share is None else "<br>as predicted" if abs(share) < 0.005 else \
            f"<br>{abs(share):.2f}% {'above' if share > 0 else 'below'} predicted"
        spot = placer.put(f"<b>{units.nbytes(r.bytes)}</b>{note}", r.block_m, r.bytes, s.body,
                          distance=s.marker, sides=(UPPER_RIGHT, LOWER_LEFT))
        canvas.write(c, spot, s.body, x_log=True, y_log=True)
    spot = placer.put("<b>L2 → SM</b>, falling as N²d²/M", 16, float(line["bytes"].iloc[0]), s.body, distance=14,
                      sides=(UPPER_RIGHT, BELOW, LOWER_RIGHT))
    canvas.write(c, spot, s.body, x_log=True, y_log=True)
    _name_floor(c, placer, floor)
    return canvas.finish(c, data)


def _points(c: canvas.Canvas, placer: Placer, rows: pd.DataFrame, what: str, colour: str, symbol: str) -> None:
    for r in rows.itertuples():
        placer.avoid_point(r.block_m, r.bytes, c.size.marker * 0.6)
    c.figure.add_scatter(
        x=list(rows["block_m"]), y=list(rows["bytes"]), mode="markers", name=what,
        marker={"color": colour, "symbol": symbol, "size": c.size.marker, "opacity": 1,
                "line": {"color": style.outline(colour, c.theme), "width": 1.5}},
        customdata=[[int(r.launch), units.nbytes(r.bytes, 4), r.block_n] for r in rows.itertuples()],
        hovertemplate=f"{what}, measured<br>%{{x}} × %{{customdata[2]}} block: %{{customdata[1]}}<br>"
                      "launch %{customdata[0]}<extra></extra>")


def _name_floor(c: canvas.Canvas, placer: Placer, floor: pd.DataFrame) -> None:
    if len(floor):
        text = f"<b>HBM</b>, compulsory {units.nbytes(floor['bytes'].iloc[0])} whatever the block"
        spot = placer.put(text, 16, float(floor["bytes"].iloc[0]), c.size.body, distance=6,
                          sides=(UPPER_RIGHT, LOWER_RIGHT))
        canvas.write(c, spot, c.size.body, x_log=True, y_log=True)


def deviations(points: pd.DataFrame, line: pd.DataFrame) -> list[float | None]:
    """Measured over predicted − 1 in per cent, for each point; None where its block size is not on the line."""
    predicted = dict(zip(line["block_m"], line["bytes"]))
    return [100 * (r.bytes / predicted[r.block_m] - 1) if predicted.get(r.block_m) else None
            for r in points.itertuples()]


def title(points: pd.DataFrame, line: pd.DataFrame, off: Sequence[float | None]) -> str:
    """The finding: how close the L2 → SM bytes lie to the theorem's prediction."""
    worst = max((abs(v) for v in off if v is not None), default=None)
    sizes = sorted(points["block_m"].unique())
    if worst is None:
        return "L2 → SM bytes over block rows"
    close = f"within {units.percent(math.ceil(max(worst, 0.01) * 100) / 100, 2)} of" if worst < 5 else \
        f"up to {units.percent(worst)} off"
    if len(sizes) < 2:
        return f"At {sizes[0]} rows a block, L2 → SM bytes are {close} the theorem's prediction"
    return f"From {sizes[0]} to {sizes[-1]} rows a block, L2 → SM bytes are {close} the theorem's prediction"


def slower(bundle: Bundle, shape: AttentionShape, implementation: str) -> str:
    """What the configurations that are not drawn do: how many, and how far the worst is from its own prediction."""
    rows = select.matching(bundle.launches, shape, implementation)
    rows = rows[rows["parameters"].notna() & rows["l2_to_sm_bytes"].notna()].sort_values("duration_ns", kind="stable")
    seen, off = set(), []
    for row in rows.to_dict("records"):
        config = select.config(row)
        block_m, predicted = config.parameters.get("block_m"), predict(config).level_bytes("l2_to_sm")
        if block_m in seen and predicted:
            off.append(100 * (row["l2_to_sm_bytes"] / predicted - 1))
        seen.add(block_m)
    if not off:
        return ""
    return (f" Drawn is the fastest configuration of each size; {len(off)} slower ones are not, "
            f"the farthest {units.percent(max(off, key=abs))} off its prediction.")


def _subtitle(bundle: Bundle, shape: AttentionShape, name: str, hbm: pd.DataFrame, floor: pd.DataFrame) -> str:
    l2 = select.device(bundle).l2_size_bytes
    text = f"{name}, {labels.shape(shape)}."
    at_floor = len(hbm) and len(floor) and float(hbm["bytes"].max()) <= 1.1 * float(floor["bytes"].iloc[0])
    if l2 and at_floor:
        text += (f" With {units.nbytes(l2)} of L2, HBM traffic is at its floor; the block decides what crosses from L2 "
                 "to the SMs.")
    return text


N_COLUMNS = ["implementation", "n", "block_m", "quantity", "bytes", "kind", "launch"]


def over_n_frame(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2") -> pd.DataFrame:
    """Bytes L2 → SM and at HBM over N = Nq = Nk, the rest of the shape fixed: measured, and predicted with the same
    tiles. HBM predicted is the compulsory bytes."""
    rows = select.matching(bundle.launches, shape, implementation, free=("nq", "nk"))
    rows = rows[rows["nq"].eq(rows["nk"]).fillna(False).astype(bool) & rows["parameters"].notna()]
    out: list[dict[str, Any]] = []
    for n, group in rows.groupby("nq", sort=True):
        best = select.best(bundle, group)
        config = select.config(best.iloc[0])
        if not config.parameters.get("block_m"):
            continue
        moved = [select.total(best[c]) for c in ("dram_read_bytes", "dram_write_bytes")]
        read, launch = select.total(best["l2_to_sm_bytes"]), int(best["launch"].iloc[0])
        prediction = predict(config)
        crossed = None if None in moved else sum(v or 0 for v in moved)
        for quantity, value, kind in (
                ("l2_to_sm", read, "measured"), ("hbm", crossed, "measured"),
                ("l2_to_sm", prediction.level_bytes("l2_to_sm"), "predicted"),
                ("hbm", prediction.compulsory_bytes, "predicted")):
            row = _row(config, quantity, value, kind, launch if kind == "measured" else None)
            out.append({**{k: row[k] for k in ("implementation", "block_m", "quantity", "bytes", "kind", "launch")},
                        "n": int(n)})
    return pd.DataFrame(out, columns=N_COLUMNS).astype({"bytes": "Float64", "launch": "Int64"})


def over_n(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2", *, theme: str = "light",
           size: str = "page") -> go.Figure:
    """Bytes of both levels over N, log-log: L2 → SM along N²·d²/M, HBM along N·d, points measured, lines predicted."""
    data = over_n_frame(bundle, shape, implementation)
    drawn = data[data["bytes"].gt(0).fillna(False).astype(bool)]
    foot = canvas.foot(bundle.profile, "points measured, lines predicted, slopes derived")
    name, look = labels.implementation(implementation), style.mark(implementation)
    counted = drawn[drawn["kind"].eq("measured")]
    if counted["n"].nunique() < 2:
        return canvas.unavailable(f"Bytes of {name} at each level over N: not available", (
            f"This source holds fewer than two lengths of {labels.shape(shape, lengths=False)} with counters and known "
            "block sizes."), foot, theme, size)
    s = style.size_of(size)
    slopes = {q: log_slope(list(map(float, rows["n"])), list(map(float, rows["bytes"])))
              for q, rows in counted.groupby("quantity")}
    rule = {"l2_to_sm": "Θ(N²·d²/M)", "hbm": "Θ(N·d)"}
    ends = {q: f"<b>{level}</b>, {rule[q]}" + (f"<br>slope {fit.value:.2f}" if (fit := slopes.get(q)) else "")
            for q, level in (("l2_to_sm", "L2 → SM"), ("hbm", "HBM")) if q in set(drawn["quantity"])}
    low, high = float(drawn["bytes"].min()) / 2, float(drawn["bytes"].max()) * 2
    ticks, right = canvas.decades(low, high), canvas.beside(ends.values(), s.body) + 1.2 * s.marker
    blocks = sorted(drawn["block_m"].unique())
    tiles = f"{blocks[0]} query rows a block" if len(blocks) == 1 else \
        f"{labels.join([str(b) for b in blocks])} query rows a block, as each length was run"
    about = f"{labels.shape(shape, lengths=False)}; {tiles}.{_again(bundle, drawn)}"
    c = canvas.new(over_n_title(name, slopes), labels.sentence(about), foot, theme, size, right=right,
                   left=canvas.beside([units.tick(v, "B") for v in ticks], s.body) + 1.9 * s.body)
    lengths = sorted(int(n) for n in drawn["n"].unique())
    x_axis = canvas.log_axis(lengths[0] / 1.15, lengths[-1] * 1.15, ticks=lengths)
    y_axis = canvas.log_axis(low, high, "B", ticks)
    c.figure.update_xaxes(**x_axis, title_text="sequence length N (queries and keys)")
    c.figure.update_yaxes(**y_axis, title={"text": "bytes of one pass", "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    points = []
    for q, text in ends.items():
        colour, dash = (look.colour, "solid") if q == "l2_to_sm" else (c.theme.muted, "dash")
        line = drawn[drawn["quantity"].eq(q) & drawn["kind"].eq("predicted")]
        placer.avoid_line(line["n"].astype(float), line["bytes"])
        c.figure.add_scatter(x=list(line["n"]), y=list(line["bytes"]), mode="lines", name=f"{q}/predicted",
                             line={"color": colour, "width": s.line, "dash": dash},
                             customdata=[[units.nbytes(v)] for v in line["bytes"]],
                             hovertemplate="predicted at N = %{x:,}: %{customdata[0]}<extra></extra>")
        mine = counted[counted["quantity"].eq(q)]
        c.figure.add_scatter(
            x=list(mine["n"]), y=list(mine["bytes"]), mode="markers", name=q,
            marker={"color": colour, "symbol": look.symbol if q == "l2_to_sm" else "circle", "size": s.marker,
                    "opacity": 1, "line": {"color": style.outline(colour, c.theme), "width": 1.5}},
            customdata=[[int(r.launch), units.nbytes(r.bytes, 4), r.block_m] for r in mine.itertuples()],
            hovertemplate="measured at N = %{x:,}, %{customdata[2]} query rows a block: %{customdata[1]}<br>"
                          "launch %{customdata[0]}<extra></extra>")
        last = line.iloc[-1]
        points.append((text, float(last["n"]), float(last["bytes"])))
    for spot in placer.column(points, s.body, distance=1.2 * s.marker, outside=right - s.body):
        canvas.write(c, spot, s.body, x_log=True, y_log=True)
    return canvas.finish(c, data)


def _again(bundle: Bundle, drawn: pd.DataFrame) -> str:
    """Where HBM moves more than its floor at the longest N: what no longer stays in L2."""
    hbm = drawn[drawn["quantity"].eq("hbm") & drawn["n"].eq(drawn["n"].max())].set_index("kind")["bytes"]
    l2 = select.device(bundle).l2_size_bytes
    if not {"measured", "predicted"} <= set(hbm.index) or not l2 or hbm["measured"] < 1.1 * hbm["predicted"]:
        return ""
    more = units.times(hbm['measured'] / hbm['predicted'])
    return (f" At the longest N HBM moves {more} the compulsory bytes: K and V "
            f"no longer stay in the {units.nbytes(l2)} of L2.")


def over_n_title(name: str, slopes: dict[Any, Any]) -> str:
    """The finding: the exponents of N that were counted at the two levels."""
    said = [f"{level} bytes grow as N<sup>{slopes[q].value:.2f}</sup>" for q, level in (("l2_to_sm", "L2 → SM"),
            ("hbm", "HBM")) if slopes.get(q)]
    return f"{name}: {labels.join(said)}" if said else f"Bytes of {name} over N"
