"""Occupancy is not speed: achieved occupancy against Tensor Core use, one point a launch."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.spec import AttentionShape

COLUMNS = ["implementation", "stage", "launch", "kernel", "achieved_occupancy_pct", "theoretical_occupancy_pct",
           "occupancy_limiter", "tensor_pipe_pct", "duration_ns"]
MOST = 500  # launches that are drawn; the longest of more
NAMED = 20  # labels


def frame(bundle: Bundle, shape: AttentionShape | None, implementations: Sequence[str] = ("naive", "flash2"),
          direction: str = "forward") -> pd.DataFrame:
    """One row a launch: occupancy, Tensor Core use and time, as counted; null where not collected.

    shape None: every launch of a report that names no attention call.
    """
    if shape is None:
        return bundle.launches[COLUMNS].reset_index(drop=True)
    rows = [select.launches(bundle, shape, name, direction) for name in implementations]
    data = pd.concat([r for r in rows if len(r)] or [bundle.launches.head(0)], ignore_index=True)
    return data[COLUMNS]


def quadrant(bundle: Bundle, shape: AttentionShape | None, implementations: Sequence[str] = ("naive", "flash2"), *,
             direction: str = "forward", theme: str = "light", size: str = "page") -> go.Figure:
    """Launches by achieved occupancy and Tensor Core use; the larger the marker, the longer the launch."""
    data = frame(bundle, shape, implementations, direction)
    drawn = data.dropna(subset=["achieved_occupancy_pct", "tensor_pipe_pct", "duration_ns"])
    foot = canvas.foot(bundle.profile, "all values measured, means over launches derived")
    if drawn.empty:
        return canvas.unavailable("Occupancy against Tensor Core use: not available",
                                  "Occupancy, Tensor Core use and time were not collected together for "
                                  f"{labels.call(shape, direction) if shape else 'any launch of this report'}.",
                                  foot, theme, size)
    drawn = drawn.assign(who=drawn["implementation"] if shape else drawn["kernel"].map(labels.kernel))
    kernels = drawn.groupby("who", sort=False)["duration_ns"].sum().sort_values(ascending=False).index
    looks = {who: style.mark(who) if shape else style.kernel_mark(i) for i, who in enumerate(kernels)}
    s = style.size_of(size)
    ticks = [0, 20, 40, 60, 80, 100]
    call = labels.sentence(labels.call(shape, direction)) if shape else labels.count(len(drawn), "launch", "launches")
    about = f"{labels.sentence(call)}. One point a launch, its area the time under the profiler."
    if len(drawn) > MOST:
        about += f" The {units.whole(MOST)} longest are drawn."
        drawn = drawn.nlargest(MOST, "duration_ns")
    c = canvas.new(title(drawn), about, foot, theme, size,
                   left=canvas.beside([f"{v}%" for v in ticks], s.body) + 1.9 * s.body)
    c.figure.update_xaxes(range=[-3, 106], tickvals=ticks, ticktext=[f"{v}%" for v in ticks],
                          title_text="achieved occupancy, % of the warps an SM can hold")
    c.figure.update_yaxes(range=[-5, 106], tickvals=ticks, ticktext=[f"{v}%" for v in ticks],
                          title={"text": "Tensor Cores active, % of cycles", "standoff": s.body / 2})
    placer = c.placer((-3, 106), (-5, 106))
    longest = float(drawn["duration_ns"].max())
    area = {r.Index: max(0.45, (r.duration_ns / longest) ** 0.5) * 2.4 * s.marker for r in drawn.itertuples()}
    for r in drawn.itertuples():
        placer.avoid_point(r.achieved_occupancy_pct, r.tensor_pipe_pct, area[r.Index] / 2)
    for name in sorted(drawn["who"].unique(), key=lambda n: (style.layer(n), n)):
        rows, look = drawn[drawn["who"].eq(name)], looks[name]
        c.figure.add_scatter(
            x=list(rows["achieved_occupancy_pct"]), y=list(rows["tensor_pipe_pct"]), mode="markers", name=name,
            marker={"size": [area[i] for i in rows.index], "color": look.colour, "symbol": look.symbol, "opacity": 1,
                    "line": {"color": style.outline(look.colour, c.theme), "width": 1.5}},
            customdata=[[int(r.launch), labels.stage(r.stage) if shape else labels.escape(name),
                         units.duration(r.duration_ns), units.percent(r.theoretical_occupancy_pct),
                         labels.escape(r.occupancy_limiter), labels.escape(labels.kernel(r.kernel))]
                        for r in rows.itertuples()],
            hovertemplate=f"<b>{labels.escape(labels.implementation(name))}</b>, %{{customdata[1]}}<br>"
                          "%{customdata[5]}<br>occupancy %{x:.3g}% of %{customdata[3]} (limit: %{customdata[4]})<br>"
                          "Tensor Cores %{y:.3g}%<br>time %{customdata[2]}<br>launch %{customdata[0]}<extra></extra>")
    written: set[str] = set()  # launches of one name get one label, at the longest
    for r in sorted(drawn.itertuples(), key=lambda r: (-style.layer(r.who), -r.duration_ns)):
        whole = not shape or drawn["who"].eq(r.who).sum() == 1
        name = labels.implementation(r.who) if shape else labels.escape(r.who)
        text = f"<b>{name}</b>" if whole else f"{name}: {labels.stage(r.stage, short=True)}"
        if text in written or len(written) >= NAMED:
            continue
        spot = placer.put(text, r.achieved_occupancy_pct, r.tensor_pipe_pct, s.body,
                          distance=(area[r.Index] + s.body) / 2)
        if canvas.write(c, spot, s.body):
            written.add(text)
    return canvas.finish(c, data)


def mean(drawn: pd.DataFrame, name: str, column: str, by: str = "implementation") -> float:
    """Mean of a column over an implementation's launches, weighted by their time."""
    rows = drawn[drawn[by].eq(name)]
    return float((rows[column] * rows["duration_ns"]).sum() / rows["duration_ns"].sum())


def title(drawn: pd.DataFrame) -> str:
    """The finding: who has the higher occupancy, and who keeps the Tensor Cores busier."""
    if drawn["implementation"].isna().all():
        one = drawn.groupby("who")["duration_ns"].sum().idxmax()
        held, busy = (units.percent(mean(drawn, one, column, "who"))
                      for column in ("achieved_occupancy_pct", "tensor_pipe_pct"))
        most = " takes the most time" if drawn["who"].nunique() > 1 else ""
        return f"{labels.escape(one)}{most}: occupancy {held}, Tensor Cores active {busy}"
    names = list(drawn["implementation"].unique())
    naive = next((n for n in names if labels.is_naive(n)), None)
    fused = next((n for n in names if not labels.is_naive(n)), None)
    if not naive or not fused:
        one = names[0]
        return (f"{labels.sentence(labels.implementation(one))}: occupancy "
                f"{units.percent(mean(drawn, one, 'achieved_occupancy_pct'))}, Tensor Cores active "
                f"{units.percent(mean(drawn, one, 'tensor_pipe_pct'))}")
    occupancy, tensor = ([mean(drawn, n, column) for n in (fused, naive)]
                         for column in ("achieved_occupancy_pct", "tensor_pipe_pct"))
    return (f"FlashAttention keeps the Tensor Cores {units.percent(tensor[0])} busy at {units.percent(occupancy[0])} "
            f"occupancy, naive {units.percent(tensor[1])} at {units.percent(occupancy[1])}")
