"""HBM bytes by stage and tensor: what naive attention moves, beside what flash moves and what the result needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.evidence import Facts, Run
from profiler.evidence.facts import MATRICES
from profiler.evidence.ledger import DIRTY
from profiler.evidence.ledger import ledger as rows_of
from profiler.figures import canvas, labels, style, units
from profiler.figures.ledger_rows import MARKS, draw_row
from profiler.figures.place import text_width
from profiler.spec import AttentionShape

COLUMNS = ["implementation", "stage", "launches", "direction", "tensor", "cause", "nxn_pass", "bytes", "kind",
           "predicted_bytes", "residual_bytes"]
NEEDED = {"forward": "Q, K, V and O once each", "backward": "Q, K, V, O, dO, LSE in and dQ, dK, dV out, once each"}
ROW, HEADER, GAP = 1.0, 0.72, 0.2  # heights in rows


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """One row a stage, direction and tensor, or named residual: bytes (null where not counted) and the prediction.

    A launch's total is measured; its split by tensor is derived. A residual has a ``cause`` and no tensor; its bytes
    are 0 where less was counted than predicted. nxn_pass numbers an implementation's passes over N×N tensors from 1; a
    stage of several launches that reads one twice has a row for each pass.
    """
    return _frame(Facts(bundle), shape, implementations, direction)


def _frame(facts: Facts, shape: AttentionShape, implementations: Sequence[str], direction: str) -> pd.DataFrame:
    out = []
    for name in implementations:
        run, passes = facts.run(name, shape, direction), 0
        if run is None or not run.rows:
            continue
        for row in _each_pass([asdict(r) for r in rows_of(facts, run)], shape) or _unknown(run):
            square = row["tensor"] in MATRICES
            passes += square
            out.append({**row, "launches": ", ".join(map(str, row["launches"])), "bytes": row["measured_bytes"],
                        "tensor": row["tensor"] or None, "cause": row["cause"] or None,
                        "nxn_pass": passes if square else None})
    return pd.DataFrame(out, columns=COLUMNS).astype({
        "nxn_pass": "Int64", "bytes": "Float64", "predicted_bytes": "Float64", "residual_bytes": "Float64"})


def _each_pass(rows: list[dict[str, Any]], shape: AttentionShape) -> list[dict[str, Any]]:
    """``rows`` in which a tensor of N×N entries that crosses HBM several times in a stage has a row each time."""
    out = []
    for row in rows:
        times = max(1, round(row["predicted_bytes"] / shape.matrix_bytes)) if row["tensor"] in MATRICES else 1
        shares = {name: row[name] / times for name in ("predicted_bytes", "measured_bytes", "residual_bytes")
                  if row[name] is not None}
        out += [{**row, **shares}] * times
    return out


def _unknown(run: Run) -> list[dict[str, Any]]:
    """Rows of an implementation without a model: what was counted, split by nothing."""
    return [{"implementation": run.config.implementation, "stage": stage, "direction": way, "tensor": "",
             "launches": [r["launch"] for r in launches], "cause": "all tensors", "kind": "measured",
             "measured_bytes": run.total(f"dram_{way}_bytes", stage), "predicted_bytes": None, "residual_bytes": None}
            for stage, launches in run.launches.items() for way in ("read", "write")]


def ledger(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"), *,
           direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """Bars of HBM bytes by stage from 0: reads tinted, writes full, N×N passes numbered, predicted bytes hollow."""
    facts = Facts(bundle)
    data = _frame(facts, shape, implementations, direction)
    present = list(data["implementation"].unique())
    foot = canvas.foot(bundle.profile, "launch totals measured, split by tensor derived, hollow bars predicted",
                       bundle.launches)
    if data["bytes"].isna().all():
        return canvas.unavailable("HBM bytes by stage are not available", _why(bundle, shape, direction), foot,
                                  theme, size)
    runs = {name: facts.run(name, shape, direction) for name in present}
    compulsory = next((float(run.prediction.compulsory_bytes) for run in runs.values() if run and run.prediction), None)
    s = style.size_of(size)
    rows, heads, bottom = _rows(data, present)
    about = _subtitle(shape, direction, data, facts.l2_size_bytes)
    c = canvas.new(title(data, present, compulsory), about, foot, theme, size,
                   left=canvas.beside([text for _, text in rows.values()], s.body), above=2.4,
                   height=None if size == "talk" else max(s.height, 220 + 48 * bottom))
    reach = _reach(data, 10 * s.body / (s.narrow - c.left - c.right), compulsory or 0.0)
    pixels = ((s.narrow - c.left - c.right) / reach, (c.height - c.top - c.bottom) / bottom)
    for (name, stage), (y, _) in rows.items():
        mine = data[data["implementation"].eq(name) & data["stage"].eq(stage)]
        aside = _aside(mine, name, shape, facts.l2_size_bytes)
        draw_row(c, mine, f"{name}/{stage}", y, pixels, aside, compulsory or 0.0)
    for name, (y, text) in heads.items():
        c.figure.add_annotation(x=0, y=y, xanchor="left", yanchor="middle", text=text, showarrow=False, borderpad=0,
                                name=f"{name}/header", font={"size": s.body}, bgcolor=c.theme.ground)
    for y in [y for y, _ in heads.values()][1:]:
        c.figure.add_shape(type="line", x0=0, x1=reach, y0=y - HEADER * 0.62, y1=y - HEADER * 0.62, layer="below",
                           line={"color": c.theme.grid, "width": 2})
    if compulsory:
        c.figure.add_shape(type="line", x0=compulsory, x1=compulsory, y0=0, y1=bottom, name="compulsory",
                           line={"color": c.theme.ink, "width": 1.5, "dash": "dash"})
        text = f"compulsory: {units.nbytes(compulsory)}, {NEEDED[direction]}"
        ahead = text_width(text, s.body) < (reach - compulsory) * pixels[0]
        c.figure.add_annotation(x=compulsory, y=0, yanchor="bottom", xanchor="left" if ahead else "right",
                                xshift=-1 if ahead else 1, showarrow=False, borderpad=0, name="compulsory", text=text,
                                font={"size": s.body, "color": c.theme.ink})
    step = canvas.step(reach)
    ticks = [step * i for i in range(int(reach / step) + 1)]
    c.figure.update_xaxes(range=[0, reach], tickvals=ticks, ticktext=[units.tick(v, "B") for v in ticks],
                          title_text="HBM bytes of one pass, by stage")
    c.figure.update_yaxes(range=[bottom, 0], tickvals=[y for y, _ in rows.values()], showgrid=False,
                          ticklabelstandoff=8, ticktext=[text for _, text in rows.values()])
    c.figure.update_layout(barmode="overlay", bargap=0)
    return canvas.finish(c, data)


def title(data: pd.DataFrame, present: Sequence[str], compulsory: float | None) -> str:
    """The finding, from what was counted."""
    moved = {name: total for name in present if (total := _total(data, name))}
    naive = next((n for n in moved if labels.is_naive(n)), "")
    fused = next((n for n in moved if not labels.is_naive(n)), "")
    if not naive and not fused:
        return "HBM bytes by stage, with counters missing"
    one = naive or fused
    words = labels.sentence(labels.implementation(one)) + (" attention" if naive else "")
    words += f" moves {units.nbytes(moved[one])} through HBM"
    if naive and fused and moved[fused] >= moved[naive]:
        return (f"{labels.implementation(fused)} moves {units.nbytes(moved[fused])} through HBM, "
                f"no less than naive's {units.nbytes(moved[naive])}")
    if compulsory is None:
        return words
    if naive and fused and moved[fused] > 1.1 * compulsory:
        return (f"{words}, {labels.implementation(fused)} {units.nbytes(moved[fused])}; "
                f"{units.nbytes(compulsory)} would do")
    return f"{words} for what needs {units.nbytes(compulsory)}"


def _total(data: pd.DataFrame, name: str) -> float | None:
    values = data.loc[data["implementation"].eq(name), "bytes"]
    return None if values.empty or values.isna().any() else float(values.sum())


def _subtitle(shape: AttentionShape, direction: str, data: pd.DataFrame, l2: int | None) -> str:
    passes = data["nxn_pass"].max()
    one = f"One {'N×N' if shape.nq == shape.nk else 'Nq×Nk'} matrix is {units.nbytes(shape.matrix_bytes)}"
    if l2:
        fits = shape.matrix_bytes <= l2
        one += f", {'within' if fits else 'above'} the {units.nbytes(l2)} of L2"
        one += ", so passes over it need not reach HBM" if fits else ""
    marks = "" if units.missing(passes) else f" Passes over one are numbered ① to {MARKS[int(passes) - 1]}."
    return (f"{labels.sentence(labels.call(shape, direction))}. {one}.{marks} Reads are tinted, writes full, "
            "predicted bytes hollow.")


def _rows(data: pd.DataFrame, present: Sequence[str]) -> tuple[dict, dict, float]:
    """Rows {(implementation, stage): (y, label)}, headers {implementation: (y, text)}, and the y below all."""
    rows, heads, y = {}, {}, 0.25
    for name in present:
        mine = data[data["implementation"].eq(name)]
        stages = list(mine["stage"].unique())
        moved = _total(data, name)
        passes = 0 if mine["nxn_pass"].isna().all() else int(mine["nxn_pass"].max())
        note = f", {labels.count(passes, 'N×N pass', 'N×N passes')}" if passes else ""
        launches = {number for text in mine["launches"] for number in text.split(", ") if number}
        counted = f"{units.nbytes(moved)} counted" if moved is not None else "HBM bytes incomplete"
        heads[name] = (y + HEADER / 2, f"<b>{labels.sentence(labels.implementation(name))}</b>  {counted} in "
                                       f"{labels.count(len(launches), 'launch', 'launches')}{note}")
        y += HEADER
        for i, stage in enumerate(stages):
            rows[name, stage] = (y + ROW / 2, f"{f'{i + 1}  ' if len(stages) > 1 else ''}{labels.stage(stage)}")
            y += ROW
        y += GAP
    return rows, heads, y


def _reach(data: pd.DataFrame, share: float, compulsory: float) -> float:
    """The end of the byte axis; beside a long row with a segment too short for its name there is room for that."""
    rows = data.groupby(["implementation", "stage"])
    ends = rows[["bytes", "predicted_bytes"]].sum().max(axis=1).astype(float)
    short = rows["bytes"].min().fillna(0).astype(float) < 0.25 * ends.max()
    beside = float((ends / (1 - share))[short].max()) if short.any() else 0.0
    return max(1.06 * float(ends.max()), beside, 1.06 * compulsory)


def _aside(mine: pd.DataFrame, name: str, shape: AttentionShape, l2: int | None) -> str:
    """What the counters of a fused implementation say of S, P and the writes, as far as they can."""
    if labels.is_naive(name) or mine["bytes"].isna().any() or mine["predicted_bytes"].isna().any() or not l2:
        return ""
    kept = -float(mine.loc[mine["cause"].eq(DIRTY), "residual_bytes"].sum())
    above = float(mine.loc[mine["residual_bytes"].gt(0), "residual_bytes"].sum())
    text = f" ({units.nbytes(kept)} more still in L2)" if kept > 0.05 * float(mine["predicted_bytes"].sum()) else ""
    clear = shape.matrix_bytes > 2 * l2 and above < 0.1 * shape.matrix_bytes and mine["nxn_pass"].isna().all()
    return text + ("; no pass over S or P" if clear else "")


def _why(bundle: Bundle, shape: AttentionShape, direction: str) -> str:
    if not bundle.has_counters:
        return "This profile was taken without counters; recorded again without --no-counters it has them."
    return f"No launch with HBM counters for {labels.call(shape, direction)} in this source."

