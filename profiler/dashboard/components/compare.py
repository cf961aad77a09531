"""Several sources beside one another: what differs in how they were recorded, then their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from profiler.bundle import Bundle
from profiler.dashboard import text
from profiler.figures import labels, select, units
from profiler.figures.ceilings import best, device_roofs
from profiler.figures.points import attention_points, launch_points
from profiler.figures.roof_lines import short_gpu
from profiler.figures.roofline import roofline
from profiler.model import Roof
from profiler.spec import AttentionShape

RECORDED = ("driver", "cuda", "torch", "triton", "cudnn", "ncu", "cache_control", "clock_control", "replay_mode")


def recorded(bundles: Sequence[Bundle]) -> pd.DataFrame:
    """How each source was recorded, one row a fact, and whether the sources differ in it."""
    facts: dict[str, list[str]] = {text.GPU: [gpu(b) for b in bundles], text.SM_CLOCK: [clock(b) for b in bundles]}
    for key in RECORDED:
        facts[text.PROVENANCE.get(key, key.replace("_", " "))] = [str(b.profile.get(key) or units.NOT_AVAILABLE)
                                                                  for b in bundles]
    names = [b.name for b in bundles]
    return pd.DataFrame([{
        text.WHAT: what, **dict(zip(names, values)),
        text.SAME_OR_NOT: text.SAME_WORD if len(set(values)) == 1 else text.DIFFERS,
    } for what, values in facts.items() if set(values) != {units.NOT_AVAILABLE}])


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


def numbers(bundles: Sequence[Bundle], shape: AttentionShape, direction: str) -> pd.DataFrame:
    """What each source measured of each implementation on one shape; nothing is averaged."""
    out: list[dict[str, Any]] = []
    for bundle in bundles:
        of_shape = select.matching(bundle.launches, shape, direction=direction)
        timed = select.matching(bundle.timings, shape, direction=direction)
        for name in dict.fromkeys([*of_shape["implementation"], *timed["implementation"]]):
            rows = select.launches(bundle, shape, name, direction)
            timing = select.timing(bundle, shape, name, direction) or {}
            read, written = select.total(rows["dram_read_bytes"]), select.total(rows["dram_write_bytes"])
            out.append({
                text.SOURCE: bundle.name, text.IMPLEMENTATION: labels.implementation(name),
                text.CARD_HBM: units.nbytes(None if read is None or written is None else read + written),
                text.CARD_FLOPS: units.flop(select.total(rows["tensor_flops"])),
                text.TIME_UNPROFILED: units.duration(timing.get("median_ns")),
                text.CARD_MEMORY: units.nbytes(timing.get("peak_memory_bytes")),
                text.CARD_ERROR: units.number(timing.get("error_relative"))})
    return pd.DataFrame(out)


def shared_roofline(bundles: Sequence[Bundle], shape: AttentionShape | None, direction: str, *, level: str,
                    theme: str) -> Any:
    """Every source's points on one roofline, under the roofs of each GPU; on a shape its implementations as wholes."""
    points, called = [], short_names(bundles)
    gpus = {short_gpu(gpu(b)) for b in bundles} if len({gpu(b) for b in bundles}) > 1 else set()
    roofs: dict[str, list[Roof]] = {}
    for bundle in bundles:
        names = select.matching(bundle.launches, shape, direction=direction)["implementation"].unique() if shape else ()
        found = attention_points(bundle, shape, names, level=level, stages=(), direction=direction) if shape else \
            launch_points(bundle, level=level)
        alone = found["implementation"].isna() & (called[bundle.name] in gpus)  # its GPU's colour and marker name it
        points.append(found.assign(label=[label if bare else f"{label} · {called[bundle.name]}"
                                          for label, bare in zip(found["label"], alone)]))
        for device, group in device_roofs(bundle).items():
            roofs.setdefault(device or gpu(bundle), best(group))
    about = labels.shape(shape) if shape else ""
    profile = {"gpu": {"name": labels.join(list(roofs))}}
    drawn = pd.concat([p for p in points if len(p)] or points, ignore_index=True).infer_objects()
    return roofline(drawn, roofs, profile, about=about, level=level, arrow=None, theme=theme)
