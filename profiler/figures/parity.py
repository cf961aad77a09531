"""Predicted against measured over every configuration of a bundle, and the worst deviations by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.evidence import Facts
from profiler.evidence.parity import compare
from profiler.figures import canvas, labels, style, units

QUANTITIES = {  # quantity: (column of launches, words, unit)
    "dram_read": ("dram_read_bytes", "HBM bytes read", "B"),
    "dram_write": ("dram_write_bytes", "HBM bytes written", "B"),
    "l2_to_sm": ("l2_to_sm_bytes", "L2 → SM bytes", "B"),
    "sm_to_l2": ("sm_to_l2_bytes", "SM → L2 bytes", "B"),
    "tensor_flops": ("tensor_flops", "Tensor Core FLOPs", "FLOP"),
    "special_ops": ("special_ops", "special-function operations", "op"),
}
COLUMNS = ["implementation", "stage", "shape", "direction", "quantity", "predicted", "low", "high", "measured",
           "deviation_pct", "within", "launch", "launches", "why_not_drawn"]
CLOSE = 2  # per cent


def frame(bundle: Bundle, quantity: str = "l2_to_sm") -> pd.DataFrame:
    """One row a stage of every configuration: predicted and measured; what cannot be compared says why.

    low, high: the interval that the model allows (what L2 keeps, or must fetch again), null where there is none.
    within: whether the counter lies in it, by the quantity's tolerance.
    """
    column = QUANTITIES[quantity][0]
    out: list[dict[str, Any]] = []
    facts = Facts(bundle)
    for run in facts.runs:
        if run.prediction is None or not run.rows:
            continue
        for stage in run.prediction.stages:
            measured = run.total(column, stage.stage)
            predicted, why = _predicted(stage, quantity)
            numbers = [r["launch"] for r in run.launches.get(stage.stage, [])]
            why = why or ("not collected" if measured is None else "nothing predicted" if not predicted else
                          "nothing counted" if measured == 0 else None)
            off = 100 * (measured / predicted - 1) if why is None and measured is not None and predicted else None
            found = compare(facts, run, stage, quantity) if why is None else None
            out.append({"low": found.low if found else None, "high": found.high if found else None,
                        "within": found.good if found else None,
                        "implementation": run.config.implementation, "stage": stage.stage, "shape": run.shape.label(),
                        "direction": run.config.direction, "quantity": quantity, "predicted": predicted,
                        "measured": measured, "deviation_pct": off, "launch": numbers[0] if numbers else None,
                        "launches": ", ".join(map(str, numbers)), "why_not_drawn": why})
    return pd.DataFrame(out, columns=COLUMNS).astype({
        **dict.fromkeys(("predicted", "measured", "low", "high", "deviation_pct"), "Float64"), "within": "boolean",
        "launch": "Int64"})


def _predicted(stage: Any, quantity: str) -> tuple[float | None, str | None]:
    """The predicted value, or why there is none to compare with."""
    value = {"dram_read": stage.dram_read_bytes, "dram_write": stage.dram_written_bytes,
             "l2_to_sm": stage.level_bytes("l2_to_sm"), "sm_to_l2": stage.level_bytes("sm_to_l2"),
             "tensor_flops": stage.flops_computed, "special_ops": stage.special_ops}[quantity]
    bound = {"dram_read": "dram", "dram_write": "dram", "special_ops": "exponentials"}.get(quantity, quantity)
    if value is None:
        return None, "tile sizes not known"
    return float(value), "predicted as a lower bound only" if bound in stage.at_least else None


def parity(bundle: Bundle, quantity: str = "l2_to_sm", *, theme: str = "light", size: str = "page") -> go.Figure:
    """Measured over predicted on log-log with the line of equality, and each deviation in per cent beneath."""
    data = frame(bundle, quantity)
    _, words, unit = QUANTITIES[quantity]
    drawn = data[data["why_not_drawn"].isna()]
    foot = canvas.foot(bundle.profile, "vertical measured, horizontal predicted, deviations derived")
    if drawn.empty:
        return canvas.unavailable(f"{labels.sentence(words)}, predicted against measured: not available",
                                  _absent(data) or "This source holds no configuration that the model knows.", foot,
                                  theme, size)
    s = style.size_of(size)
    low = float(min(drawn["predicted"].min(), drawn["measured"].min())) / 2
    high = float(max(drawn["predicted"].max(), drawn["measured"].max())) * 2
    ticks = canvas.decades(low, high)
    most = max(1.0, float(drawn["deviation_pct"].abs().max())) * 1.25
    off_ticks = canvas.spread(most)
    texts = [units.tick(v, unit) for v in ticks] + [f"{v:+g}%" for v in off_ticks]
    wide = drawn[drawn["high"].gt(drawn["low"] * (1 + CLOSE / 100))]
    about = (f"{labels.sentence(labels.count(len(drawn), 'stage'))} of "
             f"{labels.count(drawn['shape'].nunique(), 'shape')}.")
    about += " Thin lines: the interval that is predicted where L2 keeps lines or rows are fetched again." \
        if len(wide) else ""
    c = canvas.new(title(drawn, words), f"{about} {_absent(data)}".strip(), foot, theme, size,
                   left=canvas.beside(texts, s.body) + 1.9 * s.body, right=13 * s.body)
    x_axis, y_axis = canvas.log_axis(low, high, unit, ticks), canvas.log_axis(low, high, unit, ticks)
    c.figure.update_layout(
        xaxis={**x_axis, "anchor": "y2", "title": {"text": f"predicted {words}"}},
        yaxis={**y_axis, "domain": [0.42, 1], "title": {"text": "measured", "standoff": s.body / 2}},
        yaxis2={"domain": [0, 0.34], "range": [-most, most], "tickvals": off_ticks, "anchor": "x",
                "ticktext": [f"{v:+g}%".replace("-", "−") if v else "0" for v in off_ticks],
                "title": {"text": "deviation", "standoff": s.body / 2}})
    for ys, axis in (([low, high], "y"), ([0, 0], "y2")):
        c.figure.add_scatter(x=[low, high], y=ys, yaxis=axis, mode="lines", hoverinfo="skip", name="equal",
                             showlegend=False,
                             line={"color": c.theme.muted, "width": s.line / 2})
    _intervals(c, wide, most)
    for name in sorted(drawn["implementation"].unique(), key=lambda n: (style.layer(n), n)):
        _series(c, drawn[drawn["implementation"].eq(name)], name, unit)
    c.figure.update_layout(showlegend=True, legend={"x": 1.01, "y": 1, "yanchor": "top", "traceorder": "reversed",
                                                    "bgcolor": "rgba(0,0,0,0)", "font": {"size": s.body}})
    return canvas.finish(c, data)


def _intervals(c: canvas.Canvas, rows: pd.DataFrame, most: float) -> None:
    """A thin line from the least to the most that is predicted, in the panel of deviations, cut at its edge."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for r in rows.itertuples():
        xs += [float(r.predicted), float(r.predicted), None]
        ys += [max(-most, 100 * (r.low / r.predicted - 1)), min(most, 100 * (r.high / r.predicted - 1)), None]
    if xs:
        c.figure.add_scatter(x=xs, y=ys, yaxis="y2", mode="lines", hoverinfo="skip", showlegend=False,
                             name="predicted interval", line={"color": c.theme.muted, "width": 1.25})


def _series(c: canvas.Canvas, rows: pd.DataFrame, name: str, unit: str) -> None:
    look = style.mark(name)
    custom = [[None if units.missing(r.launch) else int(r.launch), labels.stage(r.stage), r.shape,
               units.si(r.measured, unit, 4), units.si(r.predicted, unit, 4), f"{r.deviation_pct:+.3g}%", r.launches]
              for r in rows.itertuples()]
    text = f"<b>{labels.implementation(name)}</b><br>{_kept(rows)}"
    for values, axis in ((rows["measured"], "y"), (rows["deviation_pct"], "y2")):
        c.figure.add_scatter(
            x=list(rows["predicted"]), y=list(values), yaxis=axis, mode="markers", name=text, customdata=custom,
            showlegend=axis == "y",
            marker={"color": look.colour, "symbol": look.symbol, "size": c.size.marker * 0.75, "opacity": 1,
                    "line": {"color": style.outline(look.colour, c.theme), "width": 1}},
            hovertemplate=f"<b>{labels.implementation(name)}</b>, %{{customdata[1]}}<br>%{{customdata[2]}}<br>measured "
                          "%{customdata[3]}, predicted %{customdata[4]} (%{customdata[5]})<br>launch %{customdata[6]}"
                          "<extra></extra>")


def title(drawn: pd.DataFrame, words: str) -> str:
    """The finding: how many agree within 2%, how many lie in the interval predicted, and the worst of the rest."""
    off = drawn["deviation_pct"].abs().astype(float)
    if off.max() <= CLOSE:
        return f"All {len(drawn)} predictions of {words} hold within {_at_most(off.max())}"
    close = off <= CLOSE
    inside = ~close & drawn["within"].fillna(False).astype(bool)
    outside = off[~close & ~inside]
    said = f"{int(close.sum())} within {CLOSE}%" + (f", {int(inside.sum())} inside the interval predicted"
                                                    if inside.any() else "")
    if outside.empty:
        return f"All {len(drawn)} predictions of {words} hold: {said}"
    held = int(close.sum() + inside.sum())
    return (f"{held} of {len(drawn)} predictions of {words} hold ({said}); the worst of the rest is off by "
            f"{units.percent(outside.max())}")


def _kept(rows: pd.DataFrame) -> str:
    """How far off a series is at most, apart from what lies in an interval that was predicted."""
    inside = rows["within"].fillna(False).astype(bool) & rows["deviation_pct"].abs().gt(CLOSE)
    rest = rows.loc[~inside, "deviation_pct"].abs()
    said = [f"{_at_most(float(rest.max()))} off at most"] if len(rest) else []
    said += [f"{int(inside.sum())} in the interval"] if inside.any() else []
    return "<br>".join(said)


def _at_most(deviation: float) -> str:
    """A deviation as an upper limit in words, no finer than a hundredth of a per cent."""
    return units.percent(math.ceil(max(deviation, 0.01) * 100) / 100, 2)


def _absent(data: pd.DataFrame) -> str:
    gone = data[data["why_not_drawn"].notna()]
    parts = [f"{len(rows)} ({why})" for why, rows in gone.groupby("why_not_drawn")]
    return f"Not drawn: {', '.join(parts)}." if parts else ""


def worst(data: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """The rows that deviate most."""
    order = np.argsort(-data["deviation_pct"].abs().fillna(-1).to_numpy(dtype=float), kind="stable")
    return data.iloc[order[:count]].dropna(subset=["deviation_pct"])
