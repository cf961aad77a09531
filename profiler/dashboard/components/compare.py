"""Several sources beside one another: what differs in how they were recorded, then their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from profiler import roles
from profiler.bundle import Bundle
from profiler.dashboard import text
from profiler.figures import labels, select, units
from profiler.figures.ceilings import best, device_roofs
from profiler.figures.normalised import normalised
from profiler.figures.points import LEVEL_NAMES, MOST, attention_points, launch_points
from profiler.figures.roof_lines import short_gpu
from profiler.figures.roofline import roofline
from profiler.figures.roofline_words import percent, roof_words, share
from profiler.model import Roof
from profiler.spec import AttentionShape

RECORDED = ("driver", "cuda", "torch", "triton", "cudnn", "ncu", "cache_control", "clock_control", "replay_mode")


def recorded(bundles: Sequence[Bundle]) -> pd.DataFrame:
    """How each source was recorded, one row a fact, and whether the sources differ in it."""
    facts: dict[str, list[str]] = {text.GPU: [gpu(b) for b in bundles], text.SM_CLOCK: [clock(b) for b in bundles]}
    for key in RECORDED:
        facts[text.PROVENANCE.get(key, key.replace("_", " "))] = [str(b.profile.get(key) or units.NOT_AVAILABLE)
                                                                  for b in bundles]
    sets = [b.once(collected) for b in bundles]
    facts[text.METRIC_SET] = [text.METRICS_COLLECTED.format(n=units.whole(len(s))) if s else units.NOT_AVAILABLE
                              for s in sets]
    alike = {what: len(set(values)) == 1 for what, values in facts.items()} | {text.METRIC_SET: len(set(sets)) == 1}
    names = [b.name for b in bundles]
    return pd.DataFrame([{
        text.WHAT: what, **dict(zip(names, values)),
        text.SAME_OR_NOT: text.SAME_WORD if alike[what] else text.DIFFERS,
    } for what, values in facts.items() if set(values) != {units.NOT_AVAILABLE}])


def collected(bundle: Bundle) -> frozenset[str]:
    """The names of the raw counters that a source holds."""
    return frozenset(map(str, bundle.metrics["metric"].unique()))


def gpu(bundle: Bundle) -> str:
    """The GPU's name, from the profile or the launches."""
    named = (bundle.profile.get("gpu") or {}).get("name") or next(iter(bundle.launches["device"].dropna()), None)
    return str(named or text.GPU_NOT_NAMED)


def short_names(bundles: Sequence[Bundle]) -> dict[str, str]:
    """What a label calls each source: its GPU where that tells them apart, else its own name, shortened."""
    gpus = [short_gpu(gpu(b)) for b in bundles]
    return {b.name: name if gpus.count(name) == 1 else labels.shorten(b.name.removesuffix(".ncu-rep"), 20)
            for b, name in zip(bundles, gpus)}


def clock(bundle: Bundle) -> str:
    """The range of SM clocks during the profiled launches."""
    clocks = bundle.launches["sm_clock_hz"].dropna()
    if clocks.empty:
        return units.NOT_AVAILABLE
    low, high = units.clock(clocks.min()), units.clock(clocks.max())
    return low if low == high else f"{low} – {high}"


def without(bundles: Sequence[Bundle], shape: AttentionShape, direction: str) -> list[str]:
    """The sources that hold nothing of this shape: neither launches nor times."""
    return [b.name for b in bundles if not any(select.matching_records(frame, shape, direction=direction)
                                               for frame in (b.launches, b.timings))]


def ran(frame: pd.DataFrame, shape: AttentionShape, direction: str) -> list[str]:
    """The implementations of a table's rows on one shape, each once."""
    rows = select.matching_records(frame, shape, direction=direction)
    return list(dict.fromkeys(row["implementation"] for row in rows if row["implementation"] is not None))


def numbers(bundles: Sequence[Bundle], shape: AttentionShape, direction: str) -> pd.DataFrame:
    """What each source measured of each implementation on one shape; nothing is averaged."""
    out = [row for bundle in bundles for row in select.held(
        bundle, ("numbers", shape, direction), partial(_numbers, bundle, shape, direction))]
    return pd.DataFrame(out).pipe(lambda all_: all_.drop(columns=[c for c in (text.CARD_HBM, text.CARD_FLOPS,
                                  text.BESIDE_PEER) if len(all_) and all_[c].isin(["", units.NOT_AVAILABLE]).all()]))


def _numbers(bundle: Bundle, shape: AttentionShape, direction: str) -> list[dict[str, Any]]:
    """The rows of one source."""
    out: list[dict[str, Any]] = []
    names = [name for frame in (bundle.launches, bundle.timings) for name in ran(frame, shape, direction)]
    took = {name: ns for name in names if labels.is_peer(name)
            and (ns := (select.timing(bundle, shape, name, direction) or {}).get("median_ns"))}
    fastest = min(took, key=took.__getitem__, default=None)
    for name in dict.fromkeys(names):
        rows = select.records(bundle, shape, name, direction)
        timing = select.timing(bundle, shape, name, direction) or {}
        read, written = (select.summed(rows, f"dram_{way}_bytes") for way in ("read", "write"))
        out.append({
            text.SOURCE: bundle.name, text.IMPLEMENTATION: labels.implementation(name),
            text.CARD_HBM: units.nbytes(None if read is None or written is None else read + written),
            text.CARD_FLOPS: units.flop(select.summed(rows, "tensor_flops")),
            text.TIME_UNPROFILED: units.duration(timing.get("median_ns")),
            text.BESIDE_PEER: f"{units.times(took[fastest] / timing['median_ns'])} {labels.implementation(fastest)}"
            if fastest and timing.get("median_ns") else "",
            text.CARD_MEMORY: units.nbytes(timing.get("peak_memory_bytes")),
            text.CARD_ERROR: units.number(timing.get("error_relative"))})
    return out


def gathered(bundles: Sequence[Bundle], shape: AttentionShape | None, direction: str,
             level: str) -> tuple[pd.DataFrame, dict[str, list[Roof]]]:
    """Every source's points, and the best sourced roofs of each GPU; on a shape its implementations as wholes."""
    points = []
    having = [b for b in bundles if not shape or ran(b.launches, shape, direction)]
    called = short_names(having) if len(having) > 1 else {}  # points of one source need not say whose they are
    gpus = {short_gpu(gpu(b)) for b in bundles} if len({gpu(b) for b in bundles}) > 1 else set()
    roofs: dict[str, list[Roof]] = {}
    for bundle in bundles:
        names = ran(bundle.launches, shape, direction) if shape else ()
        found = select.held(bundle, ("wholes", shape, level, direction), partial(
            attention_points, bundle, shape, names, level=level, stages=(), direction=direction)) if shape else \
            every_point(bundle, level)
        whose = called.get(bundle.name)
        if whose and whose not in gpus:  # else its GPU's colour says whose it is
            found = found.assign(label=found["label"] + f" · {whose}")
        points.append(found.assign(device=found["device"].fillna(gpu(bundle))))
        for device, group in device_roofs(bundle).items():
            roofs.setdefault(device or gpu(bundle), best(group))
    return pd.concat([p for p in points if len(p)] or points, ignore_index=True).infer_objects(), roofs


def shared_roofline(bundles: Sequence[Bundle], shape: AttentionShape | None, direction: str, *, level: str,
                    theme: str, view: str = "own") -> Any:
    """The points of several sources, each under the roofs of its GPU; view "ridge": in units of those roofs."""
    points, roofs = gathered(bundles, shape, direction, level)
    about = labels.call(shape, direction) if shape else ""
    if view == "ridge":
        return normalised(points, roofs, about=about, level=level, theme=theme)
    profile = {"gpu": {"name": labels.join(list(roofs))}}
    return roofline(points, roofs, profile, about=about, level=level, arrow=None, theme=theme)


def proposed(bundle: Bundle) -> Bundle:
    """A report whose launches have the roles that are proposed."""
    return replace(bundle, launches=roles.assign(bundle.launches, {}))


def every_point(bundle: Bundle, level: str = "dram") -> pd.DataFrame:
    """Each launch of a source as a point, found once."""
    return select.held(bundle, ("points", level), lambda: launch_points(bundle, level=level))


def by_role(bundles: Sequence[Bundle], shape: AttentionShape | None, direction: str, level: str) -> pd.DataFrame:
    """What each source needed for each role: Σtime, Σbytes, Σwork and the share of the lower roof; no mean of ratios.

    Launches of a report have the roles that the visitor chose, else those that are proposed.
    """
    names = {key: word.format(level=LEVEL_NAMES[level]) for key, word in text.COMPARE_ROLE_COLUMNS.items()}
    out = [row for bundle in bundles for row in select.held(
        bundle, ("roles", shape, direction, level), partial(_of_roles, bundle, shape, direction, level))]
    return pd.DataFrame(out, columns=list(names)).rename(columns=names)


def _of_roles(bundle: Bundle, shape: AttentionShape | None, direction: str, level: str) -> list[dict[str, Any]]:
    """The rows of one source."""
    out: list[dict[str, Any]] = []
    chosen = bool(bundle.launches["stage"].notna().any())
    rows = bundle if chosen else bundle.once(proposed)
    here = rows.launches["launch"]
    if shape:  # of that call, and launches that name none
        mine = [row["launch"] for name in ran(rows.launches, shape, direction)  # of several tunings the fastest
                for row in select.records(rows, shape, name, direction)]
        here = here[here.isin(mine) | rows.launches["nq"].isna()]
    if len(here) < len(rows.launches) > MOST:  # there a point is a kernel, of these launches alone
        points = launch_points(replace(rows, launches=rows.launches.loc[here.index]), level=level)
    else:
        points = every_point(rows, level)
        points = points[points["launch"].isin(here)]
    groups = {device or gpu(bundle): best(group) for device, group in device_roofs(bundle).items()}
    points = points[points["stage"].notna()].assign(device=points["device"].fillna(gpu(bundle)))
    for (name, stage), mine in points.groupby(["implementation", "stage"], sort=False):
        done, moved, ns = (select.total(mine[c]) for c in ("flops", "bytes_counted", "ns"))
        one = mine.iloc[0].to_dict() | {"bytes_kind": "measured"}
        rate = done / ns * 1e9 if done and ns else None
        at = share(one | {"intensity": done / moved, "flops_per_s": rate}, groups, level) \
            if done and rate and moved else None
        op = one["unit"] == "op"
        out.append({
            "source": bundle.name, "role": f"{labels.implementation(name)}: {labels.stage(stage, short=True)}",
            "by": text.ROLE_BY[bundle.profile.get("kind") == "profile", chosen], "launches": len(mine),
            "time": units.duration(ns), "bytes": units.nbytes(moved),
            "work": units.si(done, "op") if op else units.flop(done),
            "rate": units.si(rate, "op/s") if op else units.flops(rate),
            "share": f"{percent(at[0])} of {roof_words(at[1])}" if at else units.NOT_AVAILABLE})
    return out
