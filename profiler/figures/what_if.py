"""What if the GPU's rates, the length, the head size or the on-chip memory were others: predicted, nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.errors import BadInput
from profiler.figures import canvas, labels, select, style, units
from profiler.figures.place import BELOW, LOWER_LEFT, LOWER_RIGHT, UPPER_LEFT, UPPER_RIGHT
from profiler.model import MATERIALISING, knows, what_if
from profiler.model import VARY as ROOF_OF
from profiler.model.prediction import rates
from profiler.spec import AttentionShape, DeviceSpec

COLUMNS = ["implementation", "vary", "value", "here", "ns", "binding", "hbm_bytes", "l2_to_sm_bytes", "kind"]
VARY = {  # what varies: (words, unit)
    "dram_bytes_per_s": ("HBM bandwidth", "B/s"), "tensor_flops_per_s": ("Tensor Core rate", "FLOP/s"),
    "special_ops_per_s": ("special-function rate", "op/s"), "l2_bytes_per_s": ("L2 bandwidth", "B/s"),
    "n": ("sequence length N", ""), "head_dim": ("head size D", ""), "sram_bytes": ("on-chip memory M a program", "B")}
BINDS = {"dram": "HBM", "l2": "L2", "l2_to_sm": "L2 → SM", "tensor": "Tensor Cores", "special": "special functions"}
SIDES = (UPPER_RIGHT, LOWER_RIGHT, BELOW, LOWER_LEFT, UPPER_LEFT)
LENGTHS = tuple(1 << e for e in range(9, 17))
HEAD_DIMS = (16, 32, 64, 96, 128, 192, 256)
MEMORIES = tuple(1 << e for e in range(14, 20))  # 16 kB to 512 kB


def frame(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
          vary: str = "dram_bytes_per_s", direction: str = "forward") -> pd.DataFrame:
    """One row an implementation and value: the least time (ns) and the roof that asks for it, and the bytes.

    Tiles and peaks are those of the recorded launches; without known tiles a fused implementation is left out. here:
    whether the value is this GPU's or this shape's own.
    """
    out: list[dict[str, Any]] = []
    device = _device(bundle, shape, implementations, direction)
    for name in implementations:
        if device is None:
            break
        rows = select.records(bundle, shape, name, direction)
        if not rows or not knows(name, direction):
            continue
        tiles = select.config(rows[0]).parameters
        if not tiles and name not in MATERIALISING:
            continue
        own, values = _values(shape, device, vary)
        try:
            found = what_if(shape, name, device, vary, values, direction=direction, parameters=tiles)
        except BadInput:
            continue  # the model asks for tiles or a size that this implementation does not take
        tiled = name not in MATERIALISING  # else the tiles are a library's: its L2 → SM bytes are a lower bound only
        out += [{"implementation": name, "vary": vary, "value": float(r["value"]), "here": r["value"] == own,
                 "ns": 1e9 * r["seconds"], "binding": r["bound"], "hbm_bytes": r["hbm_bytes"],
                 "l2_to_sm_bytes": r["l2_to_sm_bytes"] if tiled else None, "kind": "predicted"}
                for r in found if r["binding"]]
    numbers = dict.fromkeys(("ns", "hbm_bytes", "l2_to_sm_bytes"), "Float64")
    data = pd.DataFrame(out, columns=COLUMNS).astype(numbers)
    return data.drop_duplicates(["implementation", "value"])  # two roofs that ask for the same time are one point


def _device(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
            direction: str) -> DeviceSpec | None:
    """One set of peaks for all: those at the clock of the longest launch that knows its tensor peak."""
    rows = [row for name in implementations for row in select.records(bundle, shape, name, direction)]
    rows = [row for row in rows if row["tensor_peak_flops_per_s"] is not None] or rows
    return select.device(bundle, max(rows, key=lambda row: row["duration_ns"] or 0)) if rows else None


def _values(shape: AttentionShape, device: DeviceSpec, vary: str) -> tuple[float | None, list[float]]:
    """The value that is so here, and all to draw; a rate from a quarter to four times its own, none where not known."""
    if vary == "n":
        return shape.nk, sorted({*LENGTHS, shape.nk})
    if vary == "head_dim":
        return shape.head_dim, sorted({*HEAD_DIMS, shape.head_dim})
    if vary == "sram_bytes":
        return None, [m for m in MEMORIES if m >= 64 * shape.head_dim * shape.element_bytes]
    own = rates(device).get(str(ROOF_OF[vary]))
    return own, [own * 2 ** (k / 2) for k in range(-4, 5)] if own else []


def curves(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str] = ("naive", "flash2"),
           vary: str = "dram_bytes_per_s", *, direction: str = "forward", theme: str = "light",
           size: str = "page") -> go.Figure:
    """Least time over what varies, log-log, the binding roof named on each stretch; over M the bytes of each level."""
    data = frame(bundle, shape, implementations, vary, direction)
    foot = canvas.foot(bundle.profile, "all values predicted by the IO model from the peaks that the counters saw")
    words, unit = VARY[vary]
    if data.empty:
        return canvas.unavailable(f"What if the {words} were another: not available", (
            f"No launch of {labels.call(shape, direction)} with the peaks that this needs."), foot, theme, size)
    s = style.size_of(size)
    lines = _lines(data, vary)
    low, high = min(min(line["y"]) for line in lines) / 2, max(max(line["y"]) for line in lines) * 2
    y_unit = "B" if vary == "sram_bytes" else "ns"
    ticks = canvas.decades(low, high)
    right = canvas.beside([f"<b>{line['text']}</b>" for line in lines], s.body) + 1.2 * s.marker
    gone = [labels.implementation(n) for n in implementations if n not in set(data["implementation"])]
    about = f"Predicted, not measured. {labels.sentence(labels.call(shape, direction))}; only the {words} varies."
    about += f" Not drawn: {labels.join(gone)} (tiles not known)." if gone else ""
    c = canvas.new(title(data, vary), about, foot, theme, size, right=right,
                   left=canvas.beside([units.tick(v, y_unit) for v in ticks], s.body) + 1.9 * s.body)
    values = sorted(data["value"].unique())
    own = next(iter(data.loc[data["here"], "value"]), None)
    rate = unit.endswith("/s")
    marked = [v for v in values if own and any(abs(v / own / k - 1) < 1e-6 for k in (0.25, 0.5, 1, 2, 4))] \
        if rate else values
    x_axis = canvas.log_axis(values[0] / 1.08, values[-1] * 1.08, unit, marked)
    if rate:
        x_axis["ticktext"] = [f"{units.quantity(v, unit)}<br>{v / (own or v):.3g}×" for v in marked]
    elif unit:
        x_axis["ticktext"] = [units.quantity(v, unit) for v in marked]
    y_axis = canvas.log_axis(low, high, y_unit, ticks)
    c.figure.update_xaxes(**x_axis, title_text=words)
    c.figure.update_yaxes(**y_axis, title={"text": "bytes of one pass" if y_unit == "B" else "least time of one pass",
                                           "standoff": s.body / 2})
    placer = c.placer(x_axis["range"], y_axis["range"], True, True)
    if own:
        c.figure.add_shape(type="line", x0=own, x1=own, y0=low, y1=high, layer="below", name="here",
                           line={"color": c.theme.muted, "width": 1.25, "dash": "dot"})
        placer.avoid_line([own, own], [low, high])
    for line in lines:
        look = style.mark(line["implementation"])
        colour = look.colour if line["main"] else c.theme.muted
        placer.avoid_line(line["x"], line["y"])
        c.figure.add_scatter(
            x=line["x"], y=line["y"], mode="lines+markers", name=line["name"],
            line={"color": colour, "width": s.line, "dash": "solid" if line["main"] else "dash"},
            marker={"symbol": look.symbol, "size": s.marker * 0.7, "color": c.theme.ground,
                    "line": {"color": colour, "width": 2}},
            customdata=[[units.quantity(v, unit) if unit else units.number(v), units.quantity(y, y_unit), b]
                        for v, y, b in zip(line["x"], line["y"], line["binds"])],
            hovertemplate=f"<b>{line['name']}</b>, predicted<br>{words} %{{customdata[0]}}: %{{customdata[1]}}"
                          "%{customdata[2]}<extra></extra>")
    for line in lines:
        for x, y, text in line["notes"]:
            spot = placer.put(text, x, y, s.body, distance=s.marker, sides=SIDES)
            canvas.write(c, spot, s.body, x_log=True, y_log=True, name="binding", colour=c.theme.muted)
    ends = [(f"<b>{line['text']}</b>", line["x"][-1], line["y"][-1]) for line in lines]
    for line, spot in zip(lines, placer.column(ends, s.body, distance=1.2 * s.marker, outside=right - s.body)):
        canvas.write(c, spot, s.body, x_log=True, y_log=True, name=line["name"])
    return canvas.finish(c, data)


def _lines(data: pd.DataFrame, vary: str) -> list[dict[str, Any]]:
    """What is drawn: over M bytes at both levels, else the least time of each implementation."""
    out = []
    for name in data["implementation"].unique():
        rows = data[data["implementation"].eq(name)].sort_values("value")
        word = labels.implementation(name)
        columns = [("ns", word)] if vary != "sram_bytes" else \
            [(c, f"{word},<br>{at}") for c, at in (("l2_to_sm_bytes", "L2 → SM"), ("hbm_bytes", "HBM"))
             if rows[c].notna().all()]
        for column, text in columns:
            spans = rows.groupby(rows["binding"].ne(rows["binding"].shift()).cumsum()) if column == "ns" else ()
            middles = [span.iloc[len(span) // 2] for _, span in spans]
            out.append({
                "implementation": name, "name": text.replace("<br>", " "), "text": text, "x": list(rows["value"]),
                "y": [float(v) for v in rows[column]], "main": column != "hbm_bytes",
                "binds": [f"<br>{_binds(b)}" if column == "ns" else "" for b in rows["binding"]],
                "notes": [(float(r.value), float(r.ns), _binds(r.binding)) for r in middles]})
    return out


def _binds(roof: str) -> str:
    return f"{BINDS[roof]} bind{'' if BINDS[roof].endswith('s') else 's'}"


def title(data: pd.DataFrame, vary: str) -> str:
    """The finding: what twice as much of it does to each implementation, or which roof binds up to which size."""
    words = VARY[vary][0]
    names = list(data["implementation"].unique())
    if vary == "head_dim":
        fused = next((n for n in names if not labels.is_naive(n)), names[0])
        rows = data[data["implementation"].eq(fused)].sort_values("value")
        spans = rows.groupby(rows["binding"].ne(rows["binding"].shift()).cumsum())
        parts = [f"{BINDS[span['binding'].iloc[0]]} {'up to' if i == 0 else 'from'} D = "
                 f"{span['value'].iloc[-1 if i == 0 else 0]:g}" for i, (_, span) in enumerate(spans)]
        if len(parts) == 1:
            only = BINDS[rows["binding"].iloc[0]]
            return f"At every head size {labels.implementation(fused)} would be bound by {only}"
        return f"{labels.implementation(fused)} would be bound by {labels.join(parts)}"
    ratios = {name: ratio for name in names if (ratio := _doubled(data, name, vary)) is not None}
    if not ratios:
        return f"What if the {words} were another"
    if vary == "sram_bytes":
        said = labels.join([f"{units.times(r)} in {labels.implementation(n)}" for n, r in ratios.items()])
        return f"With twice the on-chip memory, bytes from L2 to the SMs would be {said}"
    groups: dict[str, list[str]] = {}
    for name, ratio in ratios.items():
        same = "the same" if abs(ratio - 1) < 0.005 else units.times(ratio)
        groups.setdefault(same, []).append(labels.implementation(name))
    said = labels.join([f"{ratio} for {labels.join(names)}" for ratio, names in groups.items()])
    return f"At twice the {words} the least time would be {said}"


def _doubled(data: pd.DataFrame, name: str, vary: str) -> float | None:
    """The quantity at twice the value over that at the value that is so here (the first one, where none is)."""
    column = "l2_to_sm_bytes" if vary == "sram_bytes" else "ns"
    rows = data[data["implementation"].eq(name)].sort_values("value")
    known = rows.dropna(subset=[column])
    if known.empty:
        return None
    start = next(iter(known.index[known["here"]]), known.index[0])
    at, base = float(known.loc[start, "value"]), float(known.loc[start, column])
    twice = known[(known["value"] / (2 * at)).between(0.999, 1.001)]
    return float(twice[column].iloc[0]) / base if len(twice) else None
