"""What to do on the recorded GPU, each line derived from the data and said with its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.evidence import HOLDS, Claim
from profiler.export import plates
from profiler.figures import canvas, labels, select, units
from profiler.figures.points import attention_roofs
from profiler.model import pick, ridge
from profiler.spec import AttentionShape

MOST = 5


def medians(bundle: Bundle, shape: AttentionShape, names: Sequence[str]) -> dict[str, float]:
    """Unprofiled medians on the shape by implementation, ns; those that were not measured are absent."""
    rows = {name: select.timing(bundle, shape, name) for name in names}
    return {name: float(row["median_ns"]) for name, row in rows.items() if row and not units.missing(row["median_ns"])}


def lines(
    bundle: Bundle, shape: AttentionShape, names: Sequence[str], claims: Mapping[str, Claim]
) -> list[plates.Line]:
    """At most MOST lines, each only where the data carries it."""
    found = [
        _fastest(bundle, shape, names),
        _from_length(bundle, shape, names),
        _fits(bundle, shape),
        _ridge(bundle, shape, names),
        _special(claims),
    ]
    return [line for line in found if line]


def _fastest(bundle: Bundle, shape: AttentionShape, names: Sequence[str]) -> plates.Line | None:
    times = medians(bundle, shape, names)
    if len(times) < 2:
        return None
    first, second = sorted(times, key=lambda name: times[name])[:2]
    return plates.Line(
        f"Take {labels.implementation(first)} for this shape: {units.duration(times[first])}",
        f"The next is {labels.implementation(second)} with {units.duration(times[second])}, of "
        f"{labels.count(len(times), 'implementation')} timed.",
        "measured",
        times[first],
        "ns",
    )


def _from_length(bundle: Bundle, shape: AttentionShape, names: Sequence[str]) -> plates.Line | None:
    """The shortest length from which a fused implementation is faster than naive at every longer one recorded."""
    lengths = sorted({int(n) for n in select.matching(bundle.timings, shape, free=("nq", "nk"))["nq"].dropna()})
    best: tuple[int, float] | None = None
    for n in reversed(lengths):
        times = medians(bundle, replace(shape, nq=n, nk=n), names)
        fused = [value for name, value in times.items() if not labels.is_naive(name)]
        if "naive" not in times or not fused:
            continue
        if times["naive"] <= min(fused):
            break
        best = n, times["naive"] / min(fused)
    if best is None:
        return None
    n, ratio = best
    least = " (the shortest recorded)" if n == lengths[0] else ""
    return plates.Line(
        f"Use a fused kernel from N = {units.whole(n)} on{least}",
        f"There it is {units.times(ratio)} as fast as naive, and faster at every longer N recorded.",
        "derived from medians",
        float(n),
    )


def _fits(bundle: Bundle, shape: AttentionShape) -> plates.Line | None:
    size = (bundle.profile.get("gpu") or {}).get("l2_size_bytes")
    if not size:
        return None
    n = math.isqrt(int(size) // (shape.batch * shape.heads * shape.element_bytes))
    return plates.Line(
        f"Watch the N×N matrices above N = {units.whole(n)}: they no longer fit in L2",
        f"With batch {shape.batch} and {labels.count(shape.heads, 'head')} in {shape.dtype} one is larger than "
        f"{units.nbytes(size)} from there on, and passes over it must cross HBM.",
        "predicted",
        float(n),
    )


def _ridge(bundle: Bundle, shape: AttentionShape, names: Sequence[str]) -> plates.Line | None:
    found = attention_roofs(bundle, shape, names)
    tensor, memory = pick(found, "tensor"), pick(found, "dram")
    if not tensor or not memory:
        return None
    at = ridge(tensor, memory)
    return plates.Line(
        f"Below {units.intensity(at)} save bytes, above it save instructions",
        f"The HBM roof ({units.bandwidth(memory.value)}, {memory.source}) and the Tensor Core roof "
        f"({units.flops(tensor.value)}, {tensor.source}) meet there.",
        "derived",
        at,
        "FLOP/B",
    )


def _special(claims: Mapping[str, Claim]) -> plates.Line | None:
    claim = claims.get("special_functions_bind_small_d")
    if claim is None or claim.verdict != HOLDS:
        return None
    return plates.Line(
        "At this head size spare exponentials as much as matmuls", claim.sentence, claim.kind, claim.value, claim.unit
    )


def board(
    bundle: Bundle, shape: AttentionShape, names: Sequence[str], claims: Mapping[str, Claim], theme: str
) -> go.Figure:
    """The lines as a screen; without any, a screen that says so."""
    foot = canvas.foot(bundle.profile, "the kind of each number stands beside it", bundle.launches)
    gpu = (bundle.profile.get("gpu") or {}).get("name") or labels.join(
        sorted(bundle.launches["device"].dropna().unique())
    )
    found = lines(bundle, shape, names, claims)
    if not found:
        return canvas.unavailable(
            "Nothing to advise from this data", "It takes timings of two implementations.", foot, theme, "talk"
        )
    times = medians(bundle, shape, names)
    first = min(times, key=lambda name: times[name]) if times else ""
    title = (
        f"On {labels.escape(gpu or 'this GPU')}: {labels.implementation(first)} is the fastest recorded on this shape"
        if first
        else f"On {labels.escape(gpu or 'this GPU')}: what this data advises"
    )
    return plates.sentences(title, f"{labels.sentence(labels.shape(shape))}.", found, foot, theme)
