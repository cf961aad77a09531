"""What each switch is worth: configurations that differ from one in a single thing, as time against that one."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import text_width
from profiler.spec import AttentionShape

COLUMNS = ["config_id", "changed", "time", "more", "more_low", "more_high", "error", "status"]
BLOCKS = ("block_m", "block_n", "num_warps", "num_stages", "maxnreg")  # what follows another choice, unless it is alone
WORDS = {  # a parameter and its value as JSON
    "folded false": "scale apart, natural exponentials", "edge_only false": "every block masked",
    "staged false": "one loop, the edge inside", "ordered false": "rows and heads as they come",
    "tma false": "pointers, no TMA descriptors", "tma true": "TMA descriptors",
    "one_pass true": "one pass, dQ by atomics", "one_pass false": "two passes, no atomics",
    "deterministic true": "sums in a fixed order",
    "attn_bias true": "a bias for every head", "attn_bias 1": "one bias for all heads",
}
NONE = ("Needs configurations that differ from one of them in a single parameter, that one run without any: "
        "`python -m profiler run --suite ablation --no-counters --out my-ablation` records some.")


def frame(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str = "forward") -> pd.DataFrame:
    """One row a configuration, first the one that the others differ from, then the dearest change first; empty where
    the configurations are not one and its single changes.

    changed: in words, null for the first. more: its median time over the first one's, minus 1; more_low, more_high: the
    same of its 20th and 80th percentile. error: relative, against float64. status: ok, or why there is no time.
    """
    rows = select.matching(bundle.timings, shape, implementation, direction)
    rows = rows.assign(length=rows["config_id"].str.len()).sort_values("length", kind="stable").to_dict("records")
    if len(rows) < 2 or rows[0]["length"] == rows[1]["length"] or units.missing(rows[0]["median_ns"]):
        return pd.DataFrame(columns=COLUMNS)
    base, out = rows[0], []
    for row in rows:
        changed = None if row is base else _changed(_parameters(base), _parameters(row))
        if row is not base and changed is None:
            return pd.DataFrame(columns=COLUMNS)
        low, middle, high = (None if units.missing(row[name]) else float(row[name]) / float(base["median_ns"]) - 1
                             for name in ("p20_ns", "median_ns", "p80_ns"))
        out.append({"config_id": row["config_id"], "changed": changed, "time": row["median_ns"], "more": middle,
                    "more_low": low, "more_high": high, "error": row["error_relative"], "status": row["status"]})
    data = pd.DataFrame(out, columns=COLUMNS).astype(dict.fromkeys(COLUMNS[2:7], "Float64"))
    return pd.concat([data[:1], data[1:].sort_values("more", ascending=False, kind="stable")], ignore_index=True)


def _parameters(row: dict[str, Any]) -> dict[str, Any]:
    return {} if units.missing(row["parameters"]) else json.loads(row["parameters"])


def _changed(base: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The one thing in which ``other`` differs, in words; None where there is none, or several. Blocks that another
    choice brings with it belong to that choice."""
    names = [name for name in {**base, **other} if (base.get(name) or False) != (other.get(name) or False)]
    apart = [name for name in names if not name.endswith(BLOCKS)] or names
    if len(apart) != 1:
        return None
    name, value = apart[0], other.get(apart[0])
    if words := WORDS.get(f"{name} {json.dumps(value)}"):
        return words
    if name == "dropout_p":
        return f"dropout {value}"
    noun = {"num_warps": "warps", "num_stages": "stages"}.get(name)
    if noun:
        return f"{value} {noun if value != 1 else noun[:-1]} instead of {base.get(name)}"
    return f"{name.replace('_', ' ')} {value} instead of {base.get(name)}"


def switches(bundle: Bundle, shape: AttentionShape, implementation: str = "ablation", *, direction: str = "forward",
             theme: str = "light", size: str = "page") -> go.Figure:
    """Bars from 0: how much more time each change takes, with a line from its 20th to its 80th percentile."""
    data = frame(bundle, shape, implementation, direction)
    foot = canvas.foot(bundle.profile, "times measured without a profiler, ratios derived from them")
    drawn = data.iloc[1:].dropna(subset=["more"]).reset_index(drop=True)
    if drawn.empty:
        return canvas.unavailable("What each switch is worth: not available", NONE.replace("`", ""), foot, theme, size)
    s = style.size_of(size)
    names = list(drawn["changed"])
    height = None if size == "talk" else 200 + 40 * len(names)
    c = canvas.new(title(data), _subtitle(data, shape, direction), foot, theme, size,
                   left=canvas.beside(names, s.body), above=0.6, axis=False, height=height)
    low, high = (float(f(drawn[column].fillna(drawn["more"]))) for f, column in ((min, "more_low"), (max, "more_high")))
    low, high = min(low, 0.0), max(high, 0.01)
    texts = [signed(v) for v in drawn["more"]]
    room = (max(text_width(f"<b>{t}</b>", s.body) for t in texts) + 2 * s.body) / (s.narrow - c.left - c.right)
    wide = (high - low) / max(0.3, 1 - room * (2 if low < 0 else 1))
    c.figure.update_xaxes(range=[low - (room * wide if low < 0 else 0), high + room * wide], showticklabels=False,
                          showgrid=False)
    c.figure.update_yaxes(range=[len(names) - 0.5, -0.5], tickvals=list(range(len(names))), ticktext=names,
                          showgrid=False, ticklabelstandoff=8)
    c.figure.add_bar(
        orientation="h", x=list(drawn["more"]), y=list(drawn.index), width=0.6, name="more",
        marker={"color": style.INPUTS}, error_x={
            "type": "data", "symmetric": False, "color": c.theme.ink, "thickness": 1, "width": 3,
            "array": list((drawn["more_high"] - drawn["more"]).fillna(0)),
            "arrayminus": list((drawn["more"] - drawn["more_low"]).fillna(0))},
        customdata=[[r.changed, units.quantity(r.time, "ns"), signed(r.more)] for r in drawn.itertuples()],
        hovertemplate="<b>%{customdata[0]}</b>: %{customdata[1]}, %{customdata[2]} (derived)<extra></extra>")
    c.figure.add_shape(type="line", x0=0, x1=0, y0=0, y1=1, yref="paper", line={"color": c.theme.ink, "width": 1})
    for r, text in zip(drawn.itertuples(), texts):
        end = max(r.more, 0.0, *(v for v in [r.more_high] if not units.missing(v)))
        c.figure.add_annotation(x=end, y=r.Index, text=f"<b>{text}</b>", xanchor="left", xshift=8, showarrow=False,
                                borderpad=0, font={"size": s.body}, name="more")
    return canvas.finish(c, data)


def signed(more: float) -> str:
    """0.123 as "+12.3%", to a tenth of a per cent."""
    return f"{100 * more:+.1f}%".replace("-", "\u2212")


def title(data: pd.DataFrame) -> str:
    """The finding: the change that costs most, and how many cost less than their own spread."""
    drawn = data.iloc[1:].dropna(subset=["more"])
    first = drawn.iloc[0]
    if first["more"] <= 0:
        return "No change makes it slower"
    words = f"{labels.sentence(first['changed'])}: {signed(first['more'])} time, the dearest of {len(drawn)}"
    return words if len(drawn) > 1 else f"{labels.sentence(first['changed'])}: {signed(first['more'])} time"


def _subtitle(data: pd.DataFrame, shape: AttentionShape, direction: str) -> str:
    gone = [f"{r.changed} ({r.status})" for r in data.iloc[1:].itertuples() if units.missing(r.more)]
    return (f"{labels.sentence(labels.call(shape, direction))}. Time of one change at a time against none "
            f"({units.quantity(data['time'].iloc[0], 'ns')}); lines from the 20th to the 80th percentile."
            + (f" Not drawn: {labels.escape('; '.join(gone))}." if gone else ""))
