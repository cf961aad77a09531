"""Implementations side by side: one panel a quantity, one bar an implementation, from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, lengths, style, units
from profiler.figures.place import text_width
from profiler.figures.scaling import AXIS, counted, measured_value
from profiler.spec import AttentionShape

BRIEF = 24  # characters of a reason that stand in a panel
COLUMNS = ["implementation", "quantity", "value", "unit", "kind", "why_not_drawn"]


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
          quantities: Sequence[str] = ("time", "peak_memory"), direction: str = "forward") -> pd.DataFrame:
    """One row an implementation and quantity (those of ``profiler.figures.scaling``); null values say why."""
    out: list[dict[str, Any]] = []
    for quantity in quantities:
        for name in implementations:
            value, why = measured_value(bundle, shape, name, quantity, direction)
            out.append({"implementation": name, "quantity": quantity, "value": value, "unit": AXIS[quantity][1],
                        "kind": "derived" if quantity == "tflops" else "measured", "why_not_drawn": why})
    return pd.DataFrame(out, columns=COLUMNS).astype({"value": "Float64"})


def bars(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
         quantities: Sequence[str] = ("time", "peak_memory"), *, direction: str = "forward", theme: str = "light",
         size: str = "page") -> go.Figure:
    """Small multiples: a panel a quantity, bars from 0 in the implementations' order, values at the bars' ends."""
    data = frame(bundle, shape, implementations, quantities, direction)
    foot = canvas.foot(bundle.profile, "all values measured" if data["kind"].eq("measured").all()
                       else "measured, rates derived from them")
    if data["value"].isna().all():
        return canvas.unavailable("Nothing measured on this shape",
                                  f"No measurement of {labels.call(shape, direction)}.", foot, theme, size)
    s = style.size_of(size)
    names = [labels.implementation(n) for n in implementations]
    height = None if size == "talk" else 190 + 46 * len(names)
    about = f"{_subtitle(bundle, shape, quantities, direction)} {_reasons(data)}".strip()
    c = canvas.new(title(data, implementations, quantities), about, foot, theme, size,
                   left=canvas.beside(names, s.body), above=2.6, axis=False, height=height)
    share, gap = (1 - 0.05 * (len(quantities) - 1)) / len(quantities), 0.05
    plot = (s.narrow - c.left - c.right) * share
    for i, quantity in enumerate(quantities):
        rows = data[data["quantity"].eq(quantity)].reset_index(drop=True)
        start, axis, unit = i * (share + gap), str(i + 1) if i else "", AXIS[quantity][1]
        texts = [units.quantity(v, unit) for v in rows["value"]]
        most = float(rows["value"].max()) if rows["value"].notna().any() else 1.0
        room = max(text_width(f"<b>{text}</b>", s.body) for text in texts) + s.body
        c.figure.update_layout({f"xaxis{axis}": {
            "domain": [start, start + share], "range": [0, most / max(0.3, 1 - room / plot)], "showticklabels": False,
            "showgrid": False, "anchor": "y"}})
        c.figure.add_annotation(text=f"<b>{labels.sentence(AXIS[quantity][2])}</b>", x=start, y=1, xref="paper",
                                yref="paper", xanchor="left", yanchor="bottom", yshift=4, showarrow=False,
                                borderpad=0, font={"size": s.body}, name=quantity)
        known = rows.dropna(subset=["value"])
        looks = [style.mark(n) for n in known["implementation"]]
        c.figure.add_bar(
            orientation="h", x=list(known["value"]), y=list(known.index), width=0.62, xaxis=f"x{axis}", name=quantity,
            marker={"color": [m.colour for m in looks],
                    "line": {"color": [style.outline(m.colour, c.theme) for m in looks], "width": 1}},
            customdata=[[labels.implementation(r.implementation), units.quantity(r.value, unit), r.kind]
                        for r in known.itertuples()],
            hovertemplate="<b>%{customdata[0]}</b>: %{customdata[1]} (%{customdata[2]})<extra></extra>")
        for r in rows.itertuples():
            gone = units.missing(r.value)
            text = labels.escape(_briefly(r.why_not_drawn)) if gone else f"<b>{texts[r.Index]}</b>"
            c.figure.add_annotation(x=0 if gone else r.value, y=r.Index, xref=f"x{axis}", yref="y", text=text,
                                    xanchor="left", xshift=6, showarrow=False, borderpad=0, name=quantity,
                                    font={"size": s.body, "color": c.theme.muted if gone else c.theme.ink})
    c.figure.update_yaxes(range=[len(names) - 0.5, -0.5], tickvals=list(range(len(names))), ticktext=names,
                          showgrid=False, ticklabelstandoff=8)
    return canvas.finish(c, data)


def _subtitle(bundle: Bundle, shape: AttentionShape, quantities: Sequence[str], direction: str) -> str:
    """The shape, and what each panel shows where its short heading does not say all."""
    notes = [counted(bundle, shape, direction) if q == "tflops" else AXIS[q][0]
             for q in quantities if AXIS[q][0] != AXIS[q][2]]
    packed = lengths.packed(bundle, shape, direction)
    said = labels.call(shape, direction) + (f", {packed}" if packed else "")
    return f"{labels.sentence(said)}. {labels.sentence('; '.join(notes))}."


def _briefly(why: Any) -> str:
    """Why a value is not there, as short as a panel is narrow: "refused", whose reason the subtitle gives."""
    return str(why) if len(str(why)) <= BRIEF else labels.shorten(str(why).partition(":")[0], BRIEF)


def _reasons(data: pd.DataFrame) -> str:
    """The reasons too long for a panel, once for each implementation."""
    gone = data[data["why_not_drawn"].astype("string").str.len().gt(BRIEF).fillna(False)]
    said = dict.fromkeys(f"{labels.implementation(name)}: {labels.escape(labels.shorten(why, 120))}"
                         for name, why in zip(gone["implementation"], gone["why_not_drawn"]))
    return f"{'; '.join(said)}." if said else ""


def title(data: pd.DataFrame, implementations: Sequence[str], quantities: Sequence[str]) -> str:
    """The finding: the first fused implementation against naive, quantity by quantity."""
    naive = next((n for n in implementations if labels.is_naive(n)), None)
    fused = next((n for n in implementations if not labels.is_naive(n)), None)
    values = data.set_index(["implementation", "quantity"])["value"]
    parts = []
    for quantity in quantities if naive and fused else ():
        if quantity == "dram_bytes":
            continue  # what L2 keeps back would flatter flash; the ledger sets it against the compulsory bytes
        a, b = values.get((naive, quantity)), values.get((fused, quantity))
        if units.missing(a) or units.missing(b) or not a or not b:
            continue
        unit = AXIS[quantity][1]
        ratio = b / a if quantity == "tflops" else a / b
        words = {"time": ("faster", "slower"), "tflops": ("the FLOP/s", "of naive's FLOP/s")}.get(
            quantity, (f"less {AXIS[quantity][2]}", f"more {AXIS[quantity][2]}"))
        if abs(ratio - 1) < 0.01:
            parts.append(f"the same {AXIS[quantity][2]} ({units.quantity(b, unit)})")
        elif ratio > 1 or quantity == "tflops":
            parts.append(f"{units.times(ratio)} {words[0]}")
        else:
            parts.append(f"{units.times(1 / ratio)} {words[1]}")
    peers = [n for n in implementations if labels.is_peer(n) and not units.missing(values.get((n, "time")))]
    if not naive and fused and peers and not labels.is_peer(fused) and not units.missing(values.get((fused, "time"))):
        best = min(peers, key=lambda n: float(values[(n, "time")]))
        ratio = float(values[(best, "time")]) / float(values[(fused, "time")])
        return (f"{labels.implementation(fused)} is {units.times(ratio)} as fast as {labels.implementation(best)}, the "
                "fastest peer")
    if not parts:
        return f"{labels.sentence(labels.join([AXIS[q][2] for q in quantities]))} of each implementation"
    return f"{labels.implementation(fused)} against {labels.implementation(naive)}: {labels.join(parts)}"
