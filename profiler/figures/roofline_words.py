"""What a roofline says: its title, the line under it, and the hover of a point, from the points and the roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler.figures import labels, units
from profiler.figures.points import LEVEL_NAMES
from profiler.model import Roof, pick, ridge

Groups = Mapping[str, Sequence[Roof]]  # GPU name: its roofs; "" where there is one GPU
HOVER = ("<b>%{customdata[2]}</b><br>%{customdata[3]}<br>%{customdata[4]} at %{customdata[5]}<br>%{customdata[6]}<br>"
         "%{customdata[7]}<br>time %{customdata[8]}<br>%{customdata[9]}launch %{customdata[10]} of %{customdata[1]}"
         "<extra></extra>")


def ends(points: pd.DataFrame, arrow: tuple[str, str] | None) -> tuple[dict, dict] | None:
    whole = points[points["whole"] & points["why_not_drawn"].isna()]
    found = [whole[whole["implementation"].eq(name)] for name in arrow or ()]
    if len(found) < 2 or any(f.empty for f in found):
        return None
    return found[0].iloc[0].to_dict(), found[1].iloc[0].to_dict()


def change(a: Mapping[str, Any], b: Mapping[str, Any], words: str = "HBM") -> str:
    """What differs from ``a`` to ``b``: "same 68.7 GFLOP, 94.8× fewer HBM bytes"."""
    mine, base = units.flop(b["flops"]), units.flop(a["flops"])
    work = f"same {mine}" if _same(a, b) else f"{mine} instead of {base}"
    ratio = a["bytes"] / b["bytes"]
    if abs(ratio - 1) < 0.02:
        return f"{work}, the same {words} bytes"
    fewer = f"{units.times(ratio)} fewer" if ratio > 1 else f"{units.times(1 / ratio)} more"
    return f"{work}, {fewer} {words} bytes"


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return abs(a["flops"] / b["flops"] - 1) < 0.01


def title(points: pd.DataFrame, groups: Groups, level: str, arrow: tuple[str, str] | None) -> str:
    """The finding, from the points and the ridge."""
    words = LEVEL_NAMES[level]
    pair = ends(points, arrow)
    at = _ridge(next(iter(groups.values()), []), level)
    if pair and at:
        a, b = pair
        names = [labels.sentence(labels.implementation(p["implementation"])) for p in pair]
        if a["intensity"] < at <= b["intensity"]:
            work = "same FLOPs" if _same(a, b) else f"{units.number(100 * b['flops'] / a['flops'])}% of the FLOPs"
            return f"FlashAttention leaves the {words} roof: {work}, {units.times(a['bytes'] / b['bytes'])} fewer bytes"
        side = "left" if b["intensity"] < at else "right"
        if (a["intensity"] < at) == (b["intensity"] < at):
            return f"{names[0]} and {names[1]} both lie {side} of the {words} ridge: {change(a, b, words)}"
        return f"{names[1]} lies left of the {words} ridge, {labels.implementation(a['implementation'])} right of it"
    drawn = points[points["why_not_drawn"].isna()]
    if at is None:
        return f"{labels.sentence(labels.count(len(drawn), 'point'))} by FLOP per {words} byte; a roof is missing"
    left = int((drawn["intensity"] < at).sum())
    many = f"{units.whole(left)} of {units.whole(len(drawn))} points lie"
    if left in (0, len(drawn)):
        many = {1: "The one point lies", 2: "Both points lie"}.get(
            len(drawn), f"All {labels.count(len(drawn), 'point')} lie")
    return f"{many} {'left' if left else 'right'} of the {words} ridge at {units.intensity(at)}"


def _ridge(group: Sequence[Roof], level: str) -> float | None:
    memory = pick(group, level)
    tensor = pick(group, "tensor", memory.source if memory else None) or pick(group, "tensor")
    return ridge(tensor, memory) if tensor and memory else None


def subtitle(points: pd.DataFrame, groups: Groups, level: str, about: str) -> str:
    memory = pick(next(iter(groups.values()), []), level)
    whole = points[points["whole"] & points["why_not_drawn"].isna()]
    naive = whole[whole["implementation"].map(lambda n: bool(n) and labels.is_naive(n)).astype(bool)]
    parts = [labels.sentence(about) + "." if about else ""]
    if len(naive) and memory:
        r = naive.iloc[0]
        parts.append(f"At {units.intensity(r['intensity'])} the {LEVEL_NAMES[level]} roof allows {r['label']} "
                     f"{units.flops(r['intensity'] * memory.value)}; it reaches "
                     f"{units.number(r['flops_per_s'] / 1e12)}.")
    if not points["whole"].any() and points["count"].gt(1).any():
        parts.append(f"A point is a kernel: ΣFLOP over Σbytes and over Σtime of its launches, "
                     f"{units.whole(points['count'].sum())} in all.")
    return " ".join(p for p in (*parts, absent(points)) if p)


def absent(points: pd.DataFrame) -> str:
    """Which points are not drawn, and why."""
    left_out = points[points["why_not_drawn"].notna()]
    by_reason = [f"{labels.join([labels.escape(x) for x in rows['label'].drop_duplicates()[:4]])}"
                 f"{' and others' if rows['label'].nunique() > 4 else ''} ({why})"
                 for why, rows in left_out.groupby("why_not_drawn")]
    return f"Not drawn: {'; '.join(by_reason)}." if by_reason else ""


def hover(r: Mapping[str, Any], groups: Groups, level: str) -> list[Any]:
    group = groups.get(str(r["device"]), next(iter(groups.values()), []))
    memory, tensor = pick(group, level), pick(group, "tensor")
    roof = min([v for v in (memory and memory.value * r["intensity"], tensor and tensor.value) if v], default=None)
    share = f"{units.percent(100 * r['flops_per_s'] / roof)} of the lower roof there<br>" if roof else ""
    counted = units.nbytes(r["bytes_counted"])
    note = "" if r["bytes_kind"] == "measured" else f" (compulsory; {counted} counted)"
    return [int(r["launch"]), labels.escape(r["source"]), labels.escape(r["label"]),
            labels.escape(labels.shorten(str(r["kernel"]), 80)), units.flops(r["flops_per_s"]),
            units.intensity(r["intensity"]), f"{units.flop(r['flops'])} counted",
            f"{units.nbytes(r['bytes'])} of {LEVEL_NAMES[level]}{note}", f"{units.duration(r['ns'])}, {r['time_kind']}",
            share, r["launches"]]
