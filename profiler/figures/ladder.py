"""FlashAttention-1, 2 and 3, one idea at a time: a row a step, from naive to the Hopper kernel with all that it has."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler import evidence
from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import text_width
from profiler.figures.scaling import CONVENTION, convention_flops
from profiler.figures.switches import signed
from profiler.spec import AttentionShape

COLUMNS = ["step", "implementation", "config_id", "time", "flops_per_s", "gain", "tensor_pipe_pct", "l2_to_sm_bytes",
           "waits_for", "waits_for_pct", "status"]
BEFORE = ("naive", "naive_folded", "flash1", "flash2")
PEERS = ("sdpa_flash", "sdpa_cudnn", "fa3", "fa4")
FIRST = "Hopper: TMA, a warp that loads"
IDEAS = {"turns": "+ warpgroups multiply in turn", "overlap": "+ softmax under P·V",
         "fixed": "+ the first block's maximum stays"}
NONE = ("Needs the Hopper kernel with its ideas switched off: `python -m profiler run --suite ladder --out my-ladder` "
        "records it, on a GPU of compute capability 9.0.")


def frame(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> pd.DataFrame:
    """A row a step in the order of the story, then the peers; empty where the Hopper kernel did not run in steps.

    gain: FLOP/s over the step before it, minus 1; null for the first and for peers. tensor_pipe_pct: weighted by time
    over the launches. waits_for: the reason that most warps of the longest launch wait for, with its share of all
    waiting. What was not measured or counted is null, and status says why there is no time.
    """
    steps = _hopper(bundle, shape, direction)
    if len(steps) < 2 or direction != "forward":
        return pd.DataFrame(columns=COLUMNS)
    rows = [(labels.sentence(labels.implementation(name)), row) for name in BEFORE
            if (row := select.timing(bundle, shape, name, direction)) is not None]
    peers = [(labels.implementation(name), row) for name in PEERS
             if (row := select.timing(bundle, shape, name, direction)) is not None]
    out: list[dict[str, Any]] = []
    for step, row in [*rows, *steps, *peers]:
        ns = None if units.missing(row["median_ns"]) else float(row["median_ns"])
        rate = convention_flops(shape, direction) / ns * 1e9 if ns else None
        before = out[-1]["flops_per_s"] if out and row["implementation"] not in PEERS else None
        out.append({"step": step, "implementation": row["implementation"], "config_id": row["config_id"], "time": ns,
                    "flops_per_s": rate, "gain": rate / before - 1 if rate and before else None,
                    "status": row["status"], **_counted(bundle, row["config_id"])})
    return pd.DataFrame(out, columns=COLUMNS).astype(dict.fromkeys((*COLUMNS[3:8], "waits_for_pct"), "Float64"))


def ran(bundle: Bundle, shape: AttentionShape) -> bool:
    """Whether the Hopper kernel ran in steps on ``shape``."""
    return len(_hopper(bundle, shape, "forward")) > 1


def _hopper(bundle: Bundle, shape: AttentionShape, direction: str) -> list[tuple[str, select.Row]]:
    """The steps of the Hopper kernel, each with one more idea than the last; none where they are no such chain."""
    found = []
    for row in select.matching_records(bundle.timings, shape, "hopper", direction):
        given = json.loads(row["parameters"] or "{}")
        found.append(({name for name in IDEAS if given.get(name, True)}, row))
    found.sort(key=lambda entry: len(entry[0]))
    chain = all(a < b and len(b - a) == 1 for (a, _), (b, _) in pairwise(found))
    if not chain or not found or found[0][0]:
        return []
    added = [next(iter(b - a)) for (a, _), (b, _) in pairwise(found)]
    return [(IDEAS[name] if name else FIRST, row) for name, (_, row) in zip(("", *added), found, strict=True)]


def _counted(bundle: Bundle, config_id: str) -> dict[str, Any]:
    launches = bundle.launches
    mine = launches[launches["config_id"].eq(config_id).fillna(False)]
    if mine.empty:
        return dict.fromkeys(("tensor_pipe_pct", "l2_to_sm_bytes", "waits_for", "waits_for_pct"))
    ns = mine["duration_ns"]
    longest = int(mine["launch"].loc[ns.fillna(0).astype(float).idxmax()])
    waits = next(f for f in evidence.diagnosis(bundle, longest) if f.id == "stalls")
    pipe, moved = mine["tensor_pipe_pct"], mine["l2_to_sm_bytes"]
    whole = pipe.notna().all() and ns.notna().all() and ns.sum()
    return {"tensor_pipe_pct": float((pipe * ns).sum() / ns.sum()) if whole else None,
            "l2_to_sm_bytes": float(moved.sum()) if moved.notna().all() else None,
            "waits_for": None if waits.value is None else waits.sentence.split(":")[0], "waits_for_pct": waits.value}


def ladder(bundle: Bundle, shape: AttentionShape, *, direction: str = "forward", theme: str = "light",
           size: str = "page") -> go.Figure:
    """Bars from 0, a panel a quantity: TFLOP/s with each step's gain, the tensor pipe, bytes from L2 to the SMs; and
    what most warps wait for, in words."""
    data = frame(bundle, shape, direction)
    foot = canvas.foot(bundle.profile, "times measured without a profiler, counters by ncu; rates and gains derived")
    if data["flops_per_s"].isna().all():
        return canvas.unavailable("FlashAttention-1, 2 and 3, one idea at a time: not available",
                                  NONE.replace("`", ""), foot, theme, size)
    s = style.size_of(size)
    names = list(data["step"])
    height = None if size == "talk" else 200 + 42 * len(names)
    c = canvas.new(title(data), _subtitle(data, shape, direction), foot, theme, size,
                   left=canvas.beside(names, s.body), above=2.6, axis=False, height=height)
    panels: list[tuple[str, str, list[str]]] = [
        ("flops_per_s", "TFLOP/s, gain", [_rate(r) for r in data.itertuples()]),
        ("tensor_pipe_pct", "tensor pipe", [units.percent(v) for v in data["tensor_pipe_pct"]]),
        ("l2_to_sm_bytes", "L2 → SM bytes", [units.nbytes(v) for v in data["l2_to_sm_bytes"]]),
        ("waits_for_pct", "most warps wait for", [
            units.NOT_AVAILABLE if units.missing(r.waits_for_pct) else f"{r.waits_for} {units.percent(r.waits_for_pct)}"
            for r in data.itertuples()])]
    shares, gap, start = (0.31, 0.19, 0.19, 0.25), 0.02, 0.0
    for i, ((column, head, texts), share) in enumerate(zip(panels, shares, strict=True)):
        _panel(c, data, i, column, head, texts, (start, start + share), words=column == "waits_for_pct")
        start += share + gap
    c.figure.update_yaxes(range=[len(names) - 0.5, -0.5], tickvals=list(range(len(names))), ticktext=names,
                          showgrid=False, ticklabelstandoff=8)
    return canvas.finish(c, data)


def _panel(c: canvas.Canvas, data: pd.DataFrame, place: int, column: str, head: str, texts: list[str],
           domain: tuple[float, float], *, words: bool) -> None:
    """One quantity's bars with their values; ``words``: the values alone."""
    axis, s = str(place + 1) if place else "", c.size
    known = data.dropna(subset=[column])
    most = float(known[column].max()) if len(known) and known[column].max() else 1.0
    plot = (s.narrow - c.left - c.right) * (domain[1] - domain[0])
    room = (max(text_width(text, s.body) for text in texts) + s.body) / plot
    c.figure.update_layout({f"xaxis{axis}": {"domain": list(domain), "range": [0, most / max(0.2, 1 - room)],
                                             "showticklabels": False, "showgrid": False, "anchor": "y"}})
    c.figure.add_annotation(text=f"<b>{head}</b>", x=domain[0], y=1, xref="paper", yref="paper", xanchor="left",
                            yanchor="bottom", yshift=4, showarrow=False, borderpad=0, name=column,
                            font={"size": s.body})
    looks = [style.mark(name) for name in known["implementation"]]
    c.figure.add_bar(
        orientation="h", x=[0.0] * len(known) if words else list(known[column]), y=list(known.index), width=0.62,
        xaxis=f"x{axis}", name=column, marker={
            "color": [m.colour for m in looks],
            "line": {"color": [style.outline(m.colour, c.theme) for m in looks], "width": 0 if words else 1}},
        customdata=[[r.step, texts[r.Index], units.quantity(r.time, "ns")] for r in known.itertuples()],
        hovertemplate="<b>%{customdata[0]}</b>: %{customdata[1]}, %{customdata[2]}<extra></extra>")
    for r, text in zip(data.itertuples(), texts, strict=True):
        value = getattr(r, column)
        gone = units.missing(value)
        c.figure.add_annotation(x=0 if gone or words else value, y=r.Index, xref=f"x{axis}", yref="y", text=text,
                                xanchor="left", xshift=0 if words else 6, showarrow=False, borderpad=0, name=column,
                                font={"size": s.small if words else s.body,
                                      "color": c.theme.muted if gone else c.theme.ink})


def _rate(row: Any) -> str:
    """"733 +12.5%"; a status where there is no time."""
    if units.missing(row.flops_per_s):
        return labels.escape(labels.shorten(str(row.status), 24))
    rate = units.number(row.flops_per_s / 1e12)
    return f"<b>{rate}</b>" if units.missing(row.gain) else f"<b>{rate}</b> {gain(row.gain)}"


def gain(more: float) -> str:
    """0.123 as "+12.3%", 3.2 as "4.20×"."""
    return units.times(1 + more) if more >= 1 else signed(more)


def title(data: pd.DataFrame) -> str:
    """The finding: the whole Hopper kernel over FlashAttention-2, and the idea that gives most."""
    ideas = data[data["step"].isin(IDEAS.values())].dropna(subset=["gain"])
    flash2 = data[data["implementation"].eq("flash2")].dropna(subset=["flops_per_s"])
    last = data[data["implementation"].eq("hopper")].dropna(subset=["flops_per_s"])
    if ideas.empty:
        return "FlashAttention-1, 2 and 3, one idea at a time"
    best = ideas.loc[ideas["gain"].idxmax()]
    most = f"of its ideas “{best['step'].removeprefix('+ ')}” gives most, {gain(best['gain'])}"
    if flash2.empty or last.empty:
        return labels.sentence(most)
    ratio = last["flops_per_s"].iloc[-1] / flash2["flops_per_s"].iloc[0]
    return f"The Hopper kernel has {units.times(ratio)} the FLOP/s of FlashAttention-2; {most}"


def _subtitle(data: pd.DataFrame, shape: AttentionShape, direction: str) -> str:
    waits = " Waiting: of the longest launch." if data["waits_for_pct"].notna().any() else ""
    return (f"{labels.sentence(labels.call(shape, direction))}. Each step has all ideas above it; the gain is over the "
            f"step before. {CONVENTION[direction]}.{waits}")
