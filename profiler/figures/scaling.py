"""How a quantity grows with N: measured points, predicted lines, fitted slopes, on log-log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.figures import canvas, labels, lengths, select, style, units
from profiler.model import knows, log_slope, predict, visible_pairs
from profiler.spec import AttentionShape, Mask

COLUMNS = ["implementation", "n", "quantity", "value", "unit", "kind", "low", "high", "launch", "why_not_drawn"]
LAUNCH_QUANTITIES = {"dram_bytes": ("dram_read_bytes", "dram_write_bytes"), "l2_to_sm": ("l2_to_sm_bytes",),
                     "sm_to_l2": ("sm_to_l2_bytes",)}
AXIS = {  # quantity: (axis title, unit, words in a sentence)
    "dram_bytes": ("HBM bytes of one pass", "B", "HBM bytes"),
    "l2_to_sm": ("bytes from L2 to the SMs", "B", "L2 → SM bytes"),
    "sm_to_l2": ("bytes from the SMs to L2", "B", "SM → L2 bytes"),
    "peak_memory": ("peak memory above the inputs", "B", "peak memory"),
    "time": ("time of one pass, unprofiled median", "ns", "time"),
    "tflops": ("TFLOP/s", "FLOP/s", "FLOP/s"),
}
CONVENTION = {"forward": "FLOPs of a pass: 4·B·H·Nq·Nk·D, half of it when causal",
              "backward": "FLOPs of a backward pass: 10·B·H·Nq·Nk·D, half of it when causal"}


def frame(bundle: Bundle, shape: AttentionShape, quantity: str = "dram_bytes",
          implementations: Sequence[str] = ("naive", "flash2"), direction: str = "forward") -> pd.DataFrame:
    """Measured and predicted values over N = Nq = Nk, the rest of the shape fixed; null values say why.

    Where the source keeps the tokens of a batch instead of the batch (``lengths.tokens``), so do the values.
    Where the shape has fewer queries than keys, n is Nk and the queries stay as many.
    """
    out = [row for name in implementations for row in records(bundle, shape, quantity, name, direction)]
    data = pd.DataFrame(out, columns=COLUMNS)
    return data.astype({"n": "Int64", "value": "Float64", "low": "Float64", "high": "Float64", "launch": "Int64"})


def records(bundle: Bundle, shape: AttentionShape, quantity: str, name: str,
            direction: str = "forward") -> list[dict[str, Any]]:
    """The rows of ``frame`` of one implementation; found once, for figure, slopes and sentences ask for them."""
    return select.held(bundle, ("scaling", shape, quantity, name, direction),
                       lambda: _records(bundle, shape, quantity, name, direction))


def _records(bundle: Bundle, shape: AttentionShape, quantity: str, name: str, direction: str) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for rows in lengths.configurations(bundle, shape, name, direction, quantity in LAUNCH_QUANTITIES):
        config = select.config(rows[0])
        base = {"implementation": name, "n": config.shape.nk, "quantity": quantity, "unit": AXIS[quantity][1]}
        value, spread, why = _measured(rows, quantity)
        out.append({**base, "value": value, "kind": "measured", "low": spread[0], "high": spread[1],
                    "launch": rows[0].get("launch"), "why_not_drawn": why})
        expected = _predicted(config, quantity)
        if expected is not None:
            out.append({**base, "value": expected, "kind": "predicted"})
    return out


def measured_over_n(bundle: Bundle, shape: AttentionShape, quantity: str, name: str,
                    direction: str = "forward") -> dict[int, float]:
    """Length -> measured value above 0 of one implementation."""
    rows = records(bundle, shape, quantity, name, direction)
    return {row["n"]: row["value"] for row in rows if row["kind"] == "measured" and (row["value"] or 0) > 0}


def _measured(rows: list[select.Row],
              quantity: str) -> tuple[float | None, tuple[float | None, float | None], str | None]:
    """Value, 20th and 80th percentile where there are any, and why there is no value."""
    if quantity in LAUNCH_QUANTITIES:
        parts = [select.summed(rows, c) for c in LAUNCH_QUANTITIES[quantity]]
        value = None if any(p is None for p in parts) else sum(p for p in parts if p is not None)
        return value, (None, None), None if value is not None else "not collected"
    row = rows[0]
    if quantity == "peak_memory":
        value = row["peak_memory_bytes"]
        return _or_why(value, (None, None), row)
    median, low, high = (None if units.missing(row[c]) else float(row[c]) for c in ("median_ns", "p20_ns", "p80_ns"))
    if quantity == "time":
        return _or_why(median, (low, high), row)
    config = select.config(row)
    work = convention_flops(config.shape, row["direction"], config.lengths)
    rate = [None if not ns else work / ns * 1e9 for ns in (median, high, low)]
    return _or_why(rate[0], (rate[1], rate[2]), row)


def measured_value(bundle: Bundle, shape: AttentionShape, implementation: str, quantity: str,
                   direction: str = "forward") -> tuple[float | None, str | None]:
    """A quantity of an implementation on one shape, and why there is none."""
    if quantity in LAUNCH_QUANTITIES:
        rows = select.records(bundle, shape, implementation, direction)
    else:
        rows = [row] if (row := select.timing(bundle, shape, implementation, direction)) else []
    if not rows:
        return None, "not measured"
    value, _, why = _measured(rows, quantity)
    return value, why


def _or_why(value: Any, spread: tuple[float | None, float | None], row: dict[str, Any]) -> Any:
    if not units.missing(value):
        return float(value), spread, None
    status = row.get("status")
    return None, (None, None), "not measured" if units.missing(status) or status == "ok" else str(status)


def convention_flops(shape: AttentionShape, direction: str = "forward",
                     sequences: Sequence[tuple[int, int]] = ()) -> float:
    """FLOPs by the papers' convention: 4·B·H·Nq·Nk·D, half of it when causal, 2.5 times as many backward.

    Where it has none, the visible pairs are counted: with fewer queries than keys, where a causal mask hides little, in
    a window, and of packed sequences. sequences: the queries and keys of each, where they are not all Nq and Nk.
    """
    mask, whole = Mask.parse(shape.mask), ((shape.nq, shape.nk),) * shape.batch
    each = tuple(sequences) or whole
    if shape.nq == shape.nk and mask in (Mask(), Mask(-1, 0)) and each == whole:
        pairs = shape.batch * shape.nq * shape.nk * (0.5 if mask == Mask(-1, 0) else 1)
    else:
        pairs = sum(visible_pairs(mask, *one) for one in each)
    return 4.0 * shape.heads * pairs * shape.head_dim * (2.5 if direction == "backward" else 1)


def counted(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> str:
    """Which FLOPs a rate counts, in words."""
    exceptions = {"of a window the pairs seen": shape.mask not in ("full", "causal"),
                  "with fewer queries than keys the pairs seen": shape.mask == "causal" and shape.nq != shape.nk,
                  "of packed sequences the pairs of each": lengths.packed(bundle, shape, direction)}
    return "; ".join([CONVENTION[direction], *(words for words, apply in exceptions.items() if apply)])


def _predicted(config: Any, quantity: str) -> float | None:
    if quantity in ("time", "tflops") or not knows(config.implementation, config.direction):
        return None
    prediction = predict(config)
    if quantity == "peak_memory":
        return prediction.peak_memory_bytes
    level = {"dram_bytes": "dram"}.get(quantity, quantity)
    if any(level in stage.at_least for stage in prediction.stages):
        return None  # a lower bound is not a line to be met
    return prediction.level_bytes(level)


def scaling(bundle: Bundle, shape: AttentionShape, quantity: str = "dram_bytes",
            implementations: Sequence[str] = ("naive", "flash2"), *, direction: str = "forward", theme: str = "light",
            size: str = "page") -> go.Figure:
    """``quantity`` over N: "dram_bytes", "l2_to_sm", "sm_to_l2", "peak_memory", "time" or "tflops"."""
    data = frame(bundle, shape, quantity, implementations, direction)
    axis, unit, words = AXIS[quantity]
    drawn = data[data["value"].gt(0).fillna(False).astype(bool)]
    measured = drawn[drawn["kind"].eq("measured")]
    slopes = {name: _slope(rows) for name, rows in measured.groupby("implementation")}
    how = "points measured" + (", lines predicted" if drawn["kind"].eq("predicted").any() else "")
    how += ", slopes derived" if unit != "FLOP/s" and any(map(_power, slopes.values())) else ""
    foot = canvas.foot(bundle.profile, how + (f". {counted(bundle, shape, direction)}" if quantity == "tflops" else ""))
    if measured.empty:
        return canvas.unavailable(f"{labels.sentence(words)} over N: not available", _absent(data) or
                                  f"This source holds no measurement of {words} for this shape.", foot, theme, size)
    present = [name for name in implementations if name in slopes]
    s = style.size_of(size)
    last = {name: measured[measured["implementation"].eq(name)].iloc[-1] for name in present}
    ends = {group[0]: f"<b>{labels.together(group)}</b>{'' if unit == 'FLOP/s' else _power(slopes[group[0]])}"
            for group in _coinciding(measured, sorted(present, key=lambda n: (-style.layer(n), present.index(n))))}
    tick = partial(_tick, unit=unit)
    ticks = canvas.decades(float(drawn["value"].min()) / 2, float(drawn["value"].max()) * 2)
    right = canvas.beside(ends.values(), s.body) + 1.2 * s.marker
    about = f"{labels.sentence(lengths.words(bundle, shape, direction))}. {_absent(data)}".strip()
    finding = title(measured, present, slopes, words, unit, "N" if shape.nq == shape.nk else "Nk")
    c = canvas.new(finding, about, foot, theme, size, right=right,
                   left=canvas.beside([tick(v) for v in ticks], s.body) + 1.9 * s.body)
    every = sorted(int(n) for n in drawn["n"].unique())
    x_axis = canvas.log_axis(every[0] / 1.15, every[-1] * 1.15, ticks=_powers_of_two(every))
    y_axis = canvas.log_axis(float(drawn["value"].min()) / 2, float(drawn["value"].max()) * 2, unit, ticks)
    y_axis["ticktext"] = [tick(v) for v in ticks]
    c.figure.update_xaxes(**x_axis, title_text="sequence length N (queries and keys)" if shape.nq == shape.nk else
                            f"keys Nk, for {labels.count(shape.nq, 'query', 'queries')} a sequence")
    c.figure.update_yaxes(**y_axis, title={"text": axis, "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    for name in sorted(present, key=style.layer):
        _series(c, drawn[drawn["implementation"].eq(name)], name, unit)
        for r in measured[measured["implementation"].eq(name)].itertuples():
            placer.avoid_point(r.n, r.value, s.marker * 0.6)
        for _, line in drawn[drawn["implementation"].eq(name)].groupby("kind"):
            placer.avoid_line(line["n"].astype(float), line["value"])
    for n in sorted({int(row["n"]) for row in last.values()}, reverse=True):
        here = [name for name in ends if last[name]["n"] == n]  # a label stands where its line ends, not farther right
        points = [(ends[name], n, float(last[name]["value"])) for name in here]
        for name, spot in zip(here, placer.column(points, s.body, distance=1.2 * s.marker, outside=right - s.body)):
            canvas.write(c, spot, s.body, x_log=True, y_log=True, name=name)
    return canvas.finish(c, data)


def _tick(value: float, unit: str) -> str:
    """A tick of the value axis: rates as numbers of TFLOP/s, for the axis names that unit."""
    return units.tick(value / 1e12) if unit == "FLOP/s" else units.tick(value, unit)


def _coinciding(measured: pd.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """``names`` in groups whose points lie on each other: within 3% at every length that both have, the last included.

    Such lines are one line to the eye, and get one label.
    """
    groups: list[list[str]] = []
    values = {name: measured[measured["implementation"].eq(name)].set_index("n")["value"].astype(float)
              for name in names}
    for name in names:
        for group in groups:
            ratio = (values[name] / values[group[0]]).dropna()
            if values[name].index[-1] == values[group[0]].index[-1] and len(ratio) and ratio.between(0.97, 1.03).all():
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _series(c: canvas.Canvas, rows: pd.DataFrame, name: str, unit: str) -> None:
    """Measured markers joined by a thin line where nothing is predicted; the prediction as a dashed line."""
    look, measured, predicted = style.mark(name), rows[rows["kind"].eq("measured")], rows[rows["kind"].eq("predicted")]
    if len(predicted):
        c.figure.add_scatter(x=list(predicted["n"]), y=list(predicted["value"]), mode="lines", name=f"{name}/predicted",
                             line={"color": look.colour, "width": c.size.line * 0.8, "dash": "dash"},
                             customdata=[[units.quantity(v, unit)] for v in predicted["value"]],
                             hovertemplate=f"<b>{labels.implementation(name)}</b>, predicted<br>%{{x:,}} keys: "
                                           "%{customdata[0]}<extra></extra>")
    error = None
    if measured["low"].notna().all():
        error = {"type": "data", "symmetric": False, "array": list(measured["high"] - measured["value"]), "width": 0,
                 "arrayminus": list(measured["value"] - measured["low"]), "color": look.colour, "thickness": 1.5}
    c.figure.add_scatter(
        x=list(measured["n"]), y=list(measured["value"]), mode="markers" if len(predicted) else "lines+markers",
        name=name, error_y=error, line={"color": look.colour, "width": c.size.line * 0.5},
        marker={"color": look.colour, "symbol": look.symbol, "size": c.size.marker * 0.9, "opacity": 1,
                "line": {"color": style.outline(look.colour, c.theme), "width": 1.5}},
        customdata=[[None if units.missing(r.launch) else int(r.launch), units.quantity(r.value, unit)]
                    for r in measured.itertuples()],
        hovertemplate=f"<b>{labels.implementation(name)}</b>, measured<br>%{{x:,}} keys: %{{customdata[1]}}"
                      "<extra></extra>")


def _slope(rows: pd.DataFrame) -> Any:
    return log_slope([float(n) for n in rows["n"]], [float(v) for v in rows["value"]])


def _power(slope: Any) -> str:
    """The fitted exponent with its standard error, on a line of its own."""
    if slope is None or slope.points < 3:
        return ""
    return f"<br>slope {slope.value:.2f} ± {max(slope.error, 0.005):.2f}"


def title(measured: pd.DataFrame, present: Sequence[str], slopes: dict[str, Any], words: str, unit: str,
          n: str = "N") -> str:
    """The finding: how fast the first and the last implementation grow, or how far apart they are at the longest N."""
    naive = next((n for n in present if labels.is_naive(n)), None)
    fused = next((n for n in present if not labels.is_naive(n)), None)
    head = labels.sentence(words)
    one = naive or fused
    if naive and fused:
        sides = [measured[measured["implementation"].eq(name)] for name in (naive, fused)]
        both = sides[0].merge(sides[1], on="n")
        a, b = slopes[naive], slopes[fused]
        if unit == "B" and a and b and a.points > 2 and b.points > 2:
            grow = "grow" if words.endswith("bytes") else "grows"
            grow = f"{head} {grow} as {n}<sup>{a.value:.2f}</sup> in naive attention"
            if abs(a.value - b.value) < 0.05:
                return f"{grow} and in {labels.implementation(fused)} alike"
            return f"{grow}, as {n}<sup>{b.value:.2f}</sup> in FlashAttention"
        if len(both):
            r = both.iloc[-1]
            more, less = (r["value_y"], r["value_x"]) if unit == "FLOP/s" else (r["value_x"], r["value_y"])
            good = more >= less
            ratio = units.times(max(more, less) / min(more, less))
            at = f"At {n} = {units.whole(r['n'])} {labels.implementation(fused)}"
            if unit == "B":
                fewer = "fewer" if words.endswith("bytes") else "less"
                return f"{at} needs {ratio} {fewer if good else 'more'} {words} than naive"
            return f"{at} is {ratio} {'faster' if good else 'slower'} than naive"
    peers = [name for name in present if labels.is_peer(name)]
    if fused and peers and not naive and not labels.is_peer(fused) and words in ("FLOP/s", "time"):
        longest = measured[measured["n"].eq(measured["n"].max())].set_index("implementation")["value"].astype(float)
        known = longest.reindex(peers).dropna()
        if fused in longest and len(known):
            best = known.idxmax() if unit == "FLOP/s" else known.idxmin()
            a, b = (longest[fused], known[best]) if unit == "FLOP/s" else (known[best], longest[fused])
            return (f"At {n} = {units.whole(measured['n'].max())} {labels.implementation(fused)} is "
                    f"{units.times(a / b)} as fast as {labels.implementation(best)}, the fastest peer")
    slope = slopes[one] if one else None
    if not slope or slope.points < 3 or unit == "FLOP/s":
        grows = ""
    elif abs(slope.value) < 0.005:
        grows = "do not grow" if words.endswith("bytes") else "does not grow"
        return f"{head} of {labels.implementation(one)} {grows} with {n}"
    else:
        grows = f", {'growing' if slope.value > 0 else 'falling'} as {n}<sup>{slope.value:.2f}</sup>"
    return f"{head} of {labels.implementation(one)} over {n}{grows}"


def _absent(data: pd.DataFrame) -> str:
    """Which measurements are missing, and why."""
    gone = data[data["why_not_drawn"].notna()]
    parts = [f"{labels.implementation(name)} at N = {', '.join(map(units.whole, rows['n']))} ({labels.escape(why)})"
             for (name, why), rows in gone.groupby(["implementation", "why_not_drawn"], sort=False)]
    return f"Not drawn: {'; '.join(parts)}." if parts else ""


def _powers_of_two(lengths: Sequence[int]) -> list[float]:
    """Powers of two across the lengths, every second or third where they would crowd."""
    low, high = (lengths[0] - 1).bit_length(), lengths[-1].bit_length() - 1
    step = -(-(high - low + 1) // 10)
    return [float(1 << e) for e in range(low, high + 1, step)] or [float(n) for n in lengths]
