"""The memory pyramid of a GPU: each level's capacity and bandwidth, and what each implementation moved across it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.evidence import Facts
from profiler.evidence.pyramid import Level
from profiler.evidence.pyramid import pyramid as levels_of
from profiler.figures import canvas, labels, style, units
from profiler.figures.place import text_width
from profiler.spec import AttentionShape

COLUMNS = ["level", "capacity_bytes", "bytes_per_s", "bandwidth_from", "implementation", "bytes", "kind",
           "why_not_drawn"]
STEP = 0.21  # half of the drawing's width that the widest step takes
UNCOUNTED = "no counter of its bytes here"


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """One row a level, fastest first, and implementation: capacity over the whole GPU, bandwidth, bytes that crossed.

    Bytes of L2 are those between L2 and the SMs, of HBM those between HBM and L2, reads and writes together.
    """
    return _frame(levels_of(Facts(bundle), shape, direction), implementations)


def _frame(levels: Sequence[Level], implementations: Sequence[str]) -> pd.DataFrame:
    out: list[dict[str, Any]] = []
    for level in levels:
        for name in implementations:
            moved = level.traffic.get(name)
            out.append({"level": level.name, "capacity_bytes": level.capacity_bytes, "bytes_per_s": level.bytes_per_s,
                        "bandwidth_from": level.source or level.missing, "implementation": name, "bytes": moved,
                        "kind": "measured" if moved is not None else "not available",
                        "why_not_drawn": None if moved is not None else UNCOUNTED})
    numbers = dict.fromkeys(("capacity_bytes", "bytes_per_s", "bytes"), "Float64")
    return pd.DataFrame(out, columns=COLUMNS).astype(numbers)


def pyramid(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"), *,
            direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """Steps that widen downwards, capacity and bandwidth written in them; beside each a bar of bytes from 0."""
    facts = Facts(bundle)
    levels = levels_of(facts, shape, direction)
    data = _frame(levels, implementations)
    runs = [facts.run(name, shape, direction) for name in implementations]
    floor = next((float(run.prediction.compulsory_bytes) for run in runs if run and run.prediction), None)
    foot = canvas.foot(bundle.profile, "bytes measured; capacities of the device; bandwidths: HBM "
                       f"{levels[3].source or 'not available'}, L2 {levels[2].source or 'not available'}, "
                       "shared memory derived from its width and the clock", bundle.launches)
    if data["bytes"].isna().all():
        return canvas.unavailable("Bytes of each level: not available",
                                  f"No launch with counters for {labels.call(shape, direction)}.", foot, theme, size)
    s = style.size_of(size)
    present = [n for n in implementations if data.loc[data["implementation"].eq(n), "bytes"].notna().any()]
    row = 1.0 + 0.55 * len(present)
    about = (f"{labels.sentence(labels.call(shape, direction))}. The higher a step, the nearer to the arithmetic; bars "
             "are the bytes that one pass moved between the step and the one above.")
    if floor:
        about += f" The ratio at HBM takes the compulsory {units.nbytes(floor)} for what L2 kept back."
    c = canvas.new(title(data, present, floor), about, foot, theme, size, axis=False,
                   height=None if size == "talk" else max(s.height, 230 + 44 * row * len(levels)))
    reach = float(data["bytes"].max())
    room = s.narrow - c.left - c.right
    start = 2 * STEP + 0.02
    texts = {(r["level"], r["implementation"]): f"{labels.implementation(r['implementation'])} "
             f"<b>{units.nbytes(r['bytes'])}</b>" for r in data.to_dict("records") if not units.missing(r["bytes"])}
    beside = (max(text_width(text, s.body) for text in texts.values()) + s.body) / room
    scale = max(0.02, 1 - start - beside) / reach
    for i, level in enumerate(levels):
        top, bottom = i * row, (i + 1) * row - 0.12
        half = [STEP * (0.55 + 0.45 * at / len(levels)) for at in (i, i + 1 - 0.12 / row)]
        c.figure.add_scatter(
            x=[STEP - half[0], STEP + half[0], STEP + half[1], STEP - half[1], STEP - half[0]],
            y=[top, top, bottom, bottom, top], mode="lines", fill="toself", hoverinfo="skip", name=f"step/{level.name}",
            fillcolor=style.mix(c.theme.muted, c.theme.ground, 0.16), line={"color": c.theme.muted, "width": 1})
        speed = units.bandwidth(level.bytes_per_s) if level.bytes_per_s else "bandwidth not available"
        size_of = units.nbytes(level.capacity_bytes) if level.capacity_bytes else "capacity not available"
        c.figure.add_annotation(x=STEP, y=(top + bottom) / 2, showarrow=False, borderpad=0, name=f"step/{level.name}",
                                text=f"<b>{labels.sentence(level.name)}</b><br>{size_of}<br>{speed}",
                                font={"size": s.body})
        mine = [r for r in data[data["level"].eq(level.name)].to_dict("records") if not units.missing(r["bytes"])]
        if not mine:
            c.figure.add_annotation(x=start, y=(top + bottom) / 2, xanchor="left", showarrow=False, borderpad=0,
                                    text=UNCOUNTED, font={"size": s.body, "color": c.theme.muted}, name="absent")
        for k, r in enumerate(mine):
            y = (top + bottom) / 2 + 0.55 * (k - (len(mine) - 1) / 2)
            look = style.mark(r["implementation"])
            c.figure.add_bar(
                orientation="h", x=[r["bytes"] * scale], base=[start], y=[y], width=0.4,
                name=f"{level.name}/{r['implementation']}",
                marker={"color": look.colour, "line": {"color": style.outline(look.colour, c.theme), "width": 1}},
                hovertemplate=f"<b>{labels.implementation(r['implementation'])}</b>, {level.name}: "
                              f"{units.nbytes(r['bytes'])} (measured)<extra></extra>")
            c.figure.add_annotation(x=start + r["bytes"] * scale, y=y, xanchor="left", xshift=6, showarrow=False,
                                    borderpad=0, name=r["implementation"], font={"size": s.body},
                                    text=texts[level.name, r["implementation"]])
    c.figure.update_xaxes(range=[0, 1], visible=False)
    c.figure.update_yaxes(range=[len(levels) * row, 0], visible=False)
    c.figure.update_layout(barmode="overlay", bargap=0)
    return canvas.finish(c, data)


def title(data: pd.DataFrame, present: Sequence[str], floor: float | None = None) -> str:
    """The finding: at which level the fused implementation saves the bytes, and where it does not."""
    naive = next((n for n in present if labels.is_naive(n)), None)
    fused = next((n for n in present if not labels.is_naive(n)), None)
    values = data.set_index(["level", "implementation"])["bytes"]
    if naive and fused:
        pairs = {level: (values[level, naive], values[level, fused]) for level in ("HBM", "L2")}
        if not any(units.missing(v) or not v for pair in pairs.values() for v in pair):
            hbm, l2 = (a / max(b, least) for (a, b), least in zip(pairs.values(), (floor or 0, 0)))
            return (f"{labels.sentence(labels.implementation(fused))} moves {units.times(hbm)} fewer bytes at HBM, "
                    f"{units.times(l2)} fewer at L2" if hbm > 1 and l2 > 1 else
                    f"Bytes of naive over {labels.implementation(fused)}: {units.times(hbm)} at HBM, "
                    f"{units.times(l2)} at L2")
    name = naive or fused
    level, value = next((at, values[at, name]) for at in ("HBM", "L2") if not units.missing(values[at, name]))
    return f"{labels.sentence(labels.implementation(name))} moves {units.nbytes(value)} across {level}"
