"""What each roof would take and what was taken: time bounds by stage beside the measured time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import text_width
from profiler.model import knows, predict
from profiler.model.roofs import ROOF_NAMES
from profiler.spec import AttentionShape

COLUMNS = ["implementation", "row", "ns", "kind", "how"]
MEASURED = "measured"
ROOFS = {"dram": "HBM", "l2": "L2", "l2_to_sm": "L2 → SM", "tensor": "tensor", "special": "special-function"}


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """For each implementation the unprofiled median and, predicted, what each roof asks for over all its stages."""
    out: list[dict[str, Any]] = []
    for name in implementations:
        rows, timed = select.records(bundle, shape, name, direction), select.timing(bundle, shape, name, direction)
        if timed is not None and not units.missing(timed["median_ns"]):
            out.append({"implementation": name, "row": MEASURED, "ns": timed["median_ns"], "kind": "measured",
                        "how": "unprofiled median"})
        elif total := select.summed(rows, "duration_ns"):
            out.append({"implementation": name, "row": MEASURED, "ns": total, "kind": "measured",
                        "how": "under the profiler"})
        if not rows or not knows(name, direction):
            continue
        device = select.device(bundle, next((r for r in rows if r["tensor_peak_flops_per_s"] is not None), rows[0]))
        for roof, ns in predict(select.config(rows[0]), device=device).bounds.items():
            out.append({"implementation": name, "row": roof, "ns": ns, "kind": "predicted", "how": "report counters"})
    return pd.DataFrame(out, columns=COLUMNS).astype({"ns": "Float64"})


def time_bounds(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"), *,
                direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """Bars of time from 0: what was taken filled, what each roof asks for hollow, the binding roof in bold."""
    data = frame(bundle, shape, implementations, direction)
    foot = canvas.foot(bundle.profile, "filled bars measured, hollow bars predicted from the report's peaks")
    if data.empty:
        return canvas.unavailable("Time bounds: not available",
                                  f"Nothing measured on {labels.call(shape, direction)}.", foot, theme, size)
    s = style.size_of(size)
    rows, heads, y = [], [], 0.2
    for name in data["implementation"].unique():
        heads.append((y + 0.4, name))
        y += 0.8
        for r in data[data["implementation"].eq(name)].to_dict("records"):
            rows.append((y + 0.4, r))
            y += 0.8
        y += 0.25
    texts = ["taken" if r["row"] == MEASURED else ROOF_NAMES[r["row"]] for _, r in rows]
    about = (f"{labels.sentence(labels.call(shape, direction))}. "
             "Time taken, and the time that each roof alone would ask for.")
    c = canvas.new(title(data), about, foot, theme, size, left=canvas.beside(texts, s.body),
                   height=None if size == "talk" else max(s.height, 190 + 34 * y))
    binding = {name: max(bounds, key=lambda b: b["ns"])["row"] for name in data["implementation"].unique()
               if (bounds := [r for _, r in rows if r["implementation"] == name and r["kind"] == "predicted"])}
    room = max(text_width(f"<b>{units.duration(r['ns'])}</b>, binding", s.body) for _, r in rows) + 1.5 * s.body
    reach = float(data["ns"].max()) / (1 - room / (s.narrow - c.left - c.right))
    for at, r in rows:
        look, filled = style.mark(r["implementation"]), r["kind"] == "measured"
        binds = binding.get(r["implementation"]) == r["row"]
        c.figure.add_bar(
            orientation="h", x=[r["ns"]], y=[at], width=0.5, name=f"{r['implementation']}/{r['row']}",
            marker={"color": look.colour if filled else "rgba(0,0,0,0)",
                    "line": {"color": style.outline(look.colour, c.theme) if filled else
                             c.theme.ink if binds else c.theme.muted, "width": 2 if binds else 1.25}},
            customdata=[[labels.implementation(r["implementation"]), units.duration(r["ns"]), r["kind"], r["how"]]],
            hovertemplate="<b>%{customdata[0]}</b>: %{customdata[1]}<br>%{customdata[2]}, %{customdata[3]}"
                          "<extra></extra>")
        text = f"<b>{units.duration(r['ns'])}</b>" if filled or binds else units.duration(r["ns"])
        c.figure.add_annotation(x=r["ns"], y=at, text=text + (", binding" if binds else ""), xanchor="left", xshift=7,
                                showarrow=False, borderpad=0, font={"size": s.body},
                                name=f"{r['implementation']}/{r['row']}")
    for at, name in heads:
        c.figure.add_annotation(x=0, y=at, xanchor="left", yanchor="middle", showarrow=False, borderpad=0, name=name,
                                text=f"<b>{labels.sentence(labels.implementation(name))}</b>", font={"size": s.body})
    step = canvas.step(reach)
    ticks = [step * i for i in range(int(reach / step) + 1)]
    c.figure.update_xaxes(range=[0, reach], tickvals=ticks, ticktext=[units.tick(v, "ns") if v else "0" for v in ticks],
                          title_text="time of one pass")
    c.figure.update_yaxes(range=[y, 0], tickvals=[at for at, _ in rows], ticktext=texts, showgrid=False,
                          ticklabelstandoff=8)
    c.figure.update_layout(barmode="overlay", bargap=0)
    return canvas.finish(c, data)


def title(data: pd.DataFrame) -> str:
    """The finding: for each of two implementations, which roof binds and how much of the time it explains."""
    parts = []
    for name in data["implementation"].unique()[:2]:
        rows = data[data["implementation"].eq(name)]
        taken, bounds = rows.loc[rows["row"].eq(MEASURED), "ns"], rows[rows["kind"].eq("predicted")]
        if len(bounds) and len(taken):
            worst = bounds.loc[bounds["ns"].astype(float).idxmax()]
            share = 100 * worst["ns"] / taken.iloc[0]
            parts.append((ROOFS[worst["row"]], f"{units.percent(share, 2)} of {labels.implementation(name)}'s time"))
    if len(parts) == 2 and parts[0][0] == parts[1][0]:
        return f"The {parts[0][0]} roof asks for {parts[0][1]} and {parts[1][1]}"
    said = ", ".join(f"the {roof} roof asks for {share}" for roof, share in parts)
    return labels.sentence(said) if said else "Time of each implementation"
