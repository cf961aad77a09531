"""The roofs of a roofline as lines, and their names: on the lines of one GPU, in a key and at the ends for several."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler.figures import canvas, labels, style, units
from profiler.figures import roofline_words as say
from profiler.figures.place import LOWER_LEFT, LOWER_RIGHT, UPPER_LEFT, Placer
from profiler.model import Roof, pick
from profiler.model.roofs import ARCHITECTURE, COUNTERS, ENTERED, MEASURED

SOURCES = {COUNTERS: "counters", MEASURED: "measured", ARCHITECTURE: "at the report's clock"}
# anything else, a data sheet or a figure entered by hand, is dotted
STROKES = {COUNTERS: "solid", MEASURED: "dashed", ARCHITECTURE: "dash-dotted"}
DASH = {"solid": "solid", "dashed": "dash", "dotted": "dot", "dash-dotted": "dashdot"}
SAME = 0.01  # a roof nearer than this to a better sourced one of its kind is named on that one
WIDE = 7  # of more decades every second has a tick
INTEGER_SYMBOL = "diamond-x"
GLYPHS = {"diamond": "◆", "triangle-up": "▲", "square": "■", "circle": "●"}


def shown(device: str, group: Sequence[Roof], drawn: pd.DataFrame) -> list[Roof]:
    """The roofs that say something here: bandwidths, and the compute roofs of the work that the points on it did.

    The special-function roof of attention always does. Where no point of a GPU is drawn, fp32 stands for compute.
    """
    here = drawn if device == "" else drawn[drawn["device"].eq(device).fillna(False)]
    works = {str(work).partition(" ")[0] for work in here["work"].dropna()} or {"fp32"}
    return [roof for roof in group if not roof.flat or roof.name == "special" or roof.name in works
            or (roof.name == "tensor" and (roof.source == ENTERED or here["whole"].any()))]


def lines_of(device: str, group: Sequence[Roof], level: str,
           limits: tuple[float, float, float, float]) -> list[dict[str, Any]]:
    """Each roof as a line: bandwidth up to the highest compute roof of its source, compute from where it meets the
    bandwidth."""
    low, high, floor, _ = limits
    tensor = pick(group, "tensor")
    out: list[dict[str, Any]] = []
    for roof in sorted(group, key=lambda r: (r.name != "special", r.name == level)):
        active = roof.flat or roof.name == level
        if roof.name in ("l2_to_sm", "special_rate") or (not active and (
                roof.name == "l1" or roof is not pick(group, roof.name))):
            continue
        amount = units.bandwidth(roof.value) if not roof.flat else \
            units.flops(roof.value) if roof.unit == "FLOP/s" else units.si(roof.value, "op/s")
        twin = next((line for line in out if line["roof"].name == roof.name and line["active"] and active
                     and roof.source not in (COUNTERS, MEASURED, ENTERED)
                     and line["roof"].detail == roof.detail and abs(line["roof"].value / roof.value - 1) < SAME), None)
        if twin:
            twin["text"] += f" = {SOURCES.get(roof.source, roof.source)}"
            continue
        if not roof.flat:
            flats = [r for r in group if r.flat and r.name not in ("special", "special_rate")]
            top = max([r for r in flats if r.source == roof.source] or flats or [r for r in group if r.flat],
                      key=lambda r: r.value, default=None)
            end = min(high, top.value / roof.value) if top else high
            # the roof of the other level is there for scale only: its upper part
            start = max(low, floor / roof.value, 0 if active else end / 10)
            xs, ys = [start, end], [start * roof.value, end * roof.value]
        else:
            memory = pick(group, level, roof.source) or pick(group, level)
            start = roof.value / memory.value if memory else low
            xs, ys = [min(max(start, low), high), high], [roof.value] * 2
        prefix = f"{short_gpu(device)}: " if device else ""
        words = f"{say.roof_words(roof)} {amount}"
        out.append({"device": device, "words": words, "roof": roof, "x": xs, "y": ys, "active": active,
                    "dash": STROKES.get(roof.source, "dotted"),
                    "tie": roof.name == "special" and tensor is not None and abs(roof.value / tensor.value - 1) < 0.02,
                    "text": f"{prefix}{words}, {SOURCES.get(roof.source, roof.source)}",
                    "hover": f"{prefix}{words}<br>{roof.source}: {labels.escape(roof.how)}"})
    return out


def short_gpu(name: str) -> str:
    """A GPU's name without its maker and family: "A100 80GB PCIe", "RTX 3070"."""
    return labels.escape(re.sub(r"^(?:NVIDIA|Tesla|GeForce|Quadro)\s+", "", re.sub(r"^NVIDIA\s+", "", name)))


def name_on_lines(c: canvas.Canvas, placer: Placer, lines: Sequence[dict[str, Any]]) -> None:
    """Each roof's name on the roof, on the side away from the others of its kind.

    What finds no room under a lower flat roof, and a roof that lies on another, is named above the highest of its kind.
    """
    order = sorted((line for line in lines if not line["tie"]), key=lambda line: line["roof"].value)
    for line in order:
        kin = [other for other in order if other["roof"].name == line["roof"].name]
        flat, highest = line["y"][0] == line["y"][1], line is kin[-1]
        below = LOWER_LEFT if flat else LOWER_RIGHT
        sides = (UPPER_LEFT, below) if len(kin) == 1 else (UPPER_LEFT,) if highest else (below,)
        above = [other["text"] for other in lines if other["tie"]] if line["roof"].name == "tensor" else []
        above += [other["text"] + (f" ({other['dash']})" if other["dash"] != "solid" else "")
                  for other in kin[:-1] if other.get("unplaced")]
        text = "<br>".join([*(above if highest else []), line["text"]])
        line["unplaced"] = not _on_line(c, placer, line, text, sides, flat)


def _on_line(c: canvas.Canvas, placer: Placer, line: dict[str, Any], text: str, sides: Sequence[tuple[int, int]],
             flat: bool) -> bool:
    """Write ``text`` close to the line: at the right end of a flat one, along the lower half of a rising one."""
    (x0, x1), (y0, y1) = line["x"], line["y"]
    for share in [0.99, 0.8, 0.6, 0.4] if flat else [0.25, 0.3, 0.2, 0.4, 0.15, 0.5, 0.1, 0.6]:
        x, y = math.exp(math.log(x0) + share * math.log(x1 / x0)), math.exp(math.log(y0) + share * math.log(y1 / y0))
        spot = placer.put(text, x, y, c.size.small, distance=6, reach=18, sides=sides)
        if canvas.write(c, spot, c.size.small, x_log=True, y_log=True, name=f"roof/{line['roof'].name}"):
            return True
    return False


def looks(groups: Mapping[str, Sequence[Roof]]) -> dict[str, style.Mark]:
    """Of several GPUs each has a colour and a marker, for its roofs and for points that no implementation owns."""
    return {name: style.kernel_mark(i) for i, name in enumerate(groups)} if len(groups) > 1 else {}


def end_names(lines: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Names of the flat roofs of several GPUs, to stand at their right ends: number of the line -> text."""
    return {i: f"{short_gpu(line['device'])}<br>{line['words']}" for i, line in enumerate(lines) if line["roof"].flat}


def key(c: canvas.Canvas, placer: Placer, lines: Sequence[dict[str, Any]], gpus: Mapping[str, style.Mark],
        x: float, y: float, other: tuple[float, float] | None = None) -> None:
    """Above the rising lines, where nothing else can be: each GPU's mark, name and bandwidth.

    other: the corner below the roofs, where there is room if a roof rises through the first; names alone as a last way.
    """
    rows, names = [], []
    for device, look in gpus.items():
        rising = [line for line in lines if line["device"] == device and not line["roof"].flat and line["active"]]
        said = "; ".join(f"{line['words']}, {SOURCES.get(line['roof'].source, line['roof'].source)}" for line in rising)
        glyph = f'<span style="color:{look.colour}">{GLYPHS.get(look.symbol, "●")}</span>'
        names.append(f"{glyph} {short_gpu(device)}")
        rows.append(names[-1] + (f": {said or 'no bandwidth known'}" if lines else ""))
    corners = [((x, y), LOWER_RIGHT), *([(other, UPPER_LEFT)] if other else [])]
    spots = (placer.put("<br>".join(words), at[0], at[1], c.size.small, distance=4, reach=10 * c.size.body,
                        sides=(side,)) for words in (rows, names) for at, side in corners)
    spot = next((found for found in spots if found), None)
    canvas.write(c, spot, c.size.small, x_log=True, y_log=True, name="key")
