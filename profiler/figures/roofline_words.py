"""What a roofline says: its title, the line under it, and the hover of a point, from the points and the roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler.figures import labels, units
from profiler.figures.points import LEVEL_NAMES, UNPROFILED
from profiler.model import Roof, pick, ridge
from profiler.model.roofs import ARCHITECTURE, COUNTERS, ENTERED, MEASURED, ROOF_NAMES

SPECIAL_SHARE = 0.01  # of the special-function units' rate, below which it is not worth a line
Groups = Mapping[str, Sequence[Roof]]  # GPU name: its roofs; "" where there is one GPU
HOVER = ("<b>%{customdata[2]}</b><br>%{customdata[3]}<br>%{customdata[4]} at %{customdata[5]}<br>%{customdata[6]}<br>"
         "%{customdata[7]}<br>time %{customdata[8]}<br>%{customdata[9]}launch %{customdata[10]} of %{customdata[1]}"
         "<extra></extra>")


def ends(points: pd.DataFrame, arrow: tuple[str, str] | None) -> tuple[dict, dict] | None:
    whole = points[points["whole"] & points["why_not_drawn"].isna()]
    found = [whole[whole["implementation"].eq(name)] for name in arrow or ()]
    if found and found[0].empty and arrow and arrow[0] == "naive":  # the folded form stands for it
        found[0] = whole[whole["implementation"].eq("naive_folded")]
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


def group_of(r: Mapping[str, Any], groups: Groups) -> Sequence[Roof]:
    """The roofs of the GPU that a point ran on."""
    return groups.get(str(r["device"]), groups.get("", []))


def roof_of(r: Mapping[str, Any], groups: Groups) -> Roof | None:
    """The roof over a point's kind of work: of its operand type, else one that names no type."""
    group = group_of(r, groups)
    name, _, detail = ("tensor" if units.missing(r["work"]) else str(r["work"])).partition(" ")
    exact = pick(group, name, detail=detail) if detail else None
    plain = [x for x in group if x.name == name and (not detail or not x.detail)]
    return next(iter([x for x in plain if x.source == ENTERED]), None) or exact or next(iter(plain), None)


def ridge_of(r: Mapping[str, Any], groups: Groups, level: str) -> float | None:
    """Operations a byte at which the roof over a point's kind of work meets the bandwidth of its GPU."""
    flat, memory = roof_of(r, groups), pick(group_of(r, groups), level)
    same = flat and memory and pick([x for x in group_of(r, groups) if x.name == flat.name and x.detail == flat.detail],
                                    flat.name, memory.source)
    return ridge(same or flat, memory) if flat and memory else None


def share(r: Mapping[str, Any], groups: Groups, level: str) -> tuple[float, Roof] | None:
    """(rate over the lower of the two roofs at the point's intensity, that roof); None without a roof."""
    flat, memory = roof_of(r, groups), pick(group_of(r, groups), level)
    limits = [(memory.value * r["intensity"], memory)] if memory else []
    limits += [(flat.value, flat)] if flat else []
    if not limits:
        return None
    value, roof = min(limits, key=lambda item: item[0])
    return r["flops_per_s"] / value, roof


def percent(of_one: float) -> str:
    """A share of a roof; above it with its tenth, so that 108.9% stays 108.9%."""
    return f"{100 * of_one:.1f}%" if of_one > 1 else units.percent(100 * of_one)


def reasons(r: Mapping[str, Any], roof: Roof) -> list[str]:
    """Why a point may lie above ``roof``, likeliest first."""
    out = []
    if r["time_kind"] == UNPROFILED and roof.source in (COUNTERS, ARCHITECTURE):
        out.append("its time is of a run without the profiler, at another clock than the roof's")
    if not roof.flat and r["bytes_kind"] != "measured":
        out.append("its bytes are the compulsory ones, of which L2 kept some from HBM")
    if roof.source == MEASURED:
        out.append("the roof is what a copy or a matmul reached, not a peak")
    elif roof.source == ENTERED:
        out.append("the roof was typed by hand")
    elif roof.source in (COUNTERS, ARCHITECTURE):
        out.append("the roof stands at the clock of another launch")
    else:
        out.append("the data sheet's peak is at its boost clock, and this GPU may have run above it")
    if roof.name in ("tensor", "integer"):
        out.append("sparse instructions are counted in full but do half the work")
    return out


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
    drawn = points[points["why_not_drawn"].isna()].to_dict("records")
    ridges = [ridge_of(r, groups, level) for r in drawn]
    if None in ridges:
        return f"{labels.sentence(labels.count(len(drawn), 'point'))} by FLOP per {words} byte; a roof is missing"
    left = sum(r["intensity"] < at for r, at in zip(drawn, ridges) if at)
    many = f"{units.whole(left)} of {units.whole(len(drawn))} points {'lies' if left == 1 else 'lie'}"
    if left in (0, len(drawn)):
        many = {1: "The one point lies", 2: "Both points lie"}.get(
            len(drawn), f"All {labels.count(len(drawn), 'point')} lie")
    one = len({round(at, 6) for at in ridges if at}) == 1
    unit = "op" if one and all(r["unit"] == "op" for r in drawn) else "FLOP"
    where = f"the {words} ridge at {units.number(ridges[0])}{units.NBSP}{unit}/B" if one else \
        f"{'its' if len(drawn) == 1 or left == 1 else 'their'} {words} ridge"
    return f"{many} {'left' if left else 'right'} of {where}"


def _ridge(group: Sequence[Roof], level: str) -> float | None:
    memory = pick(group, level)
    tensor = pick(group, "tensor", memory.source if memory else None) or pick(group, "tensor")
    return ridge(tensor, memory) if tensor and memory else None


def agreeing(named: pd.DataFrame) -> list[list[Any]]:
    """The rows of each implementation that several sources of one GPU put within a tenth of each other."""
    if named["source"].nunique() < 2:
        return []
    groups: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    names = ("source", "intensity", "flops_per_s", "implementation", "device", "whole")
    for row in zip(named.index, *(list(named[name]) for name in names)):
        if row[4] and row[6]:
            groups.setdefault((row[4], row[5]), []).append(row)
    return [[row[0] for row in rows] for rows in groups.values() if len({row[1] for row in rows}) > 1
            and all(max(values) <= 1.1 * min(values) for values in list(zip(*rows))[2:4])]


def subtitle(points: pd.DataFrame, groups: Groups, level: str, about: str) -> str:
    memory = pick(next(iter(groups.values()), []), level)
    whole = points[points["whole"] & points["why_not_drawn"].isna()]
    naive = whole[whole["implementation"].map(lambda n: bool(n) and labels.is_naive(n)).astype(bool)]
    parts = [labels.sentence(about.rstrip(".")) + "." if about else ""]
    if len(naive) and memory and len(groups) == 1:
        r = naive.iloc[0]
        parts.append(f"At {units.intensity(r['intensity'])} the {LEVEL_NAMES[level]} roof allows {r['label']} "
                     f"{units.flops(r['intensity'] * memory.value)}; it reaches "
                     f"{units.number(r['flops_per_s'] / 1e12)}.")
    if not points["whole"].any() and points["count"].gt(1).any():
        parts.append(f"A point is a kernel: ΣFLOP over Σbytes and over Σtime of its launches, "
                     f"{units.whole(points['count'].sum())} in all.")
    if agreeing(whole):
        parts.append(f"Two numbers at a name: {labels.join(list(whole['source'].drop_duplicates()))}."
                     if whole["source"].nunique() == 2 else "Several numbers at a name: one a source.")
    if len(groups) > 1 and points["implementation"].notna().any():
        parts.append("A point's outline has its GPU's colour.")
    if points["unit"].eq("op").any():
        parts.append("Crossed diamonds are integer operations of the Tensor Cores, which are no FLOPs and have a roof "
                     "of their own.")
    return " ".join(p for p in (*parts, absent(points), above(points, groups, level)) if p)


def above(points: pd.DataFrame, groups: Groups, level: str) -> str:
    """Which points lie above their roof, by how much, and the likely reasons; "" where none does."""
    found = [(r, *at) for r in points[points["why_not_drawn"].isna()].to_dict("records")
             if (at := share(r, groups, level)) and at[0] > 1]
    if not found:
        return ""
    found.sort(key=lambda item: -item[1])
    r, most, roof = found[0]
    others = f", and {labels.count(len(found) - 1, 'point')} more above theirs" if len(found) > 1 else ""
    return (f"Above a roof: {labels.escape(r['label'])}, at {percent(most)} of {roof_words(roof)}"
            f"{others}; perhaps {' or '.join(reasons(r, roof)[:2])}.")


def roof_words(roof: Roof) -> str:
    """A roof's name with its operand type, memory or measurement: "HBM copy", "GDDR", "dense bf16 tensor"."""
    if roof.name == "tensor":
        return roof.detail if roof.detail.endswith("matmul") else " ".join(x for x in ("dense", roof.detail, "tensor")
                                                                           if x)
    if roof.name == "integer":
        return f"dense {roof.detail} tensor"
    if roof.name == "dram" and roof.detail.endswith("DDR"):
        return roof.detail
    return f"{ROOF_NAMES[roof.name]} {roof.detail}".strip()


def absent(points: pd.DataFrame) -> str:
    """Which points are not drawn, and why."""
    left_out = points[points["why_not_drawn"].notna()]
    if left_out["device"].nunique() > 1 or points["device"].nunique() > 1:
        counted = [f"{labels.count(int(rows['count'].sum()), 'launch', 'launches')} on {labels.escape(device)} ({why})"
                   for (device, why), rows in left_out.groupby(["device", "why_not_drawn"], sort=False)]
        return f"Not drawn: {'; '.join(counted)}." if counted else ""
    by_reason = [f"{labels.join([labels.escape(x) for x in rows['label'].drop_duplicates()[:4]])}"
                 f"{' and others' if rows['label'].nunique() > 4 else ''} ({why})"
                 for why, rows in left_out.groupby("why_not_drawn")]
    return f"Not drawn: {'; '.join(by_reason)}." if by_reason else ""


def hover(r: Mapping[str, Any], groups: Groups, level: str) -> list[Any]:
    at, op = share(r, groups, level), r["unit"] == "op"
    lines = []
    if at:
        lines.append(f"{percent(at[0])} of the lower roof there")
        if at[0] > 1:
            lines += [f"above it, perhaps because {why}" for why in reasons(r, at[1])[:2]]
    special = pick(group_of(r, groups), "special_rate")
    if special and not units.missing(r["special_per_s"]) and r["special_per_s"] > SPECIAL_SHARE * special.value:
        lines.append(f"special functions at {units.percent(100 * r['special_per_s'] / special.value)} of their rate")
    if r["in_l2"]:
        lines.append("works from L2: its HBM bytes fit there, and L2 hands out more")
    counted = units.nbytes(r["bytes_counted"])
    note = "" if r["bytes_kind"] == "measured" else f" (compulsory; {counted} counted)"
    rate = units.si(r["flops_per_s"], "op/s") if op else units.flops(r["flops_per_s"])
    at_x = f"{units.number(r['intensity'])}{units.NBSP}op/B" if op else units.intensity(r["intensity"])
    return [int(r["launch"]), labels.escape(r["source"]), labels.escape(r["label"]),
            labels.escape(labels.shorten(str(r["kernel"]), 80)), rate, at_x,
            f"{units.si(r['flops'], 'op') if op else units.flop(r['flops'])} counted",
            f"{units.nbytes(r['bytes'])} of {LEVEL_NAMES[level]}{note}", f"{units.duration(r['ns'])}, {r['time_kind']}",
            "".join(f"{line}<br>" for line in lines), r["launches"]]
