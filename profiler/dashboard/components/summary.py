"""Naive beside flash in a sentence and five cards, and tables of what was checked, from the numbers of a shape."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pandas as pd
import streamlit as st

from profiler import evidence
from profiler.bundle import Bundle
from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, tables
from profiler.dashboard.components.cards import Card
from profiler.errors import BadInput
from profiler.evidence import Faster, Headline, Side
from profiler.evidence.claim import tile
from profiler.evidence.versions import NO_SHARED
from profiler.figures import labels, units
from profiler.model import theory
from profiler.spec import AttentionShape


def sentence(h: Headline) -> str:
    """The claim with its numbers; without bytes of both sides, what is there instead."""
    base = h.naive or h.naive_folded
    if base is None or h.flash is None or h.ratio_by_floor is None or base.dram_bytes is None:
        return text.SENTENCE_WITHOUT.format(floor=units.nbytes(h.compulsory_bytes))
    said = text.SENTENCE.format(
        flash=labels.sentence(labels.implementation(h.flash.implementation)), ratio=units.times(h.ratio_by_floor),
        floor=units.nbytes(h.compulsory_bytes), naive=units.nbytes(base.dram_bytes))
    work = _work(h)
    if work is not None:
        said += text.SENTENCE_SAME_WORK if _same(work) else text.SENTENCE_MORE_WORK.format(work=units.times(work))
    if h.speedup is None:
        return f"{said}."
    faster = h.speedup >= 1
    speed = units.times(h.speedup if faster else 1 / h.speedup)
    return f"{said}{(text.SENTENCE_FASTER if faster else text.SENTENCE_SLOWER).format(speed=speed)}."


def basis(h: Headline, direction: str) -> str:
    """What the ratio rests on, and the counted bytes beside it."""
    said = text.BASIS[direction].format(floor=units.nbytes(h.compulsory_bytes))
    counted = _of(h.flash, "dram_bytes")
    if counted is None:
        return said
    ratio = text.BASIS_FEWER.format(ratio=units.times(h.ratio_counted)) if h.ratio_counted else ""
    said += text.BASIS_COUNTED.format(counted=units.nbytes(counted), ratio=ratio)
    if counted < h.compulsory_bytes and h.l2_size_bytes:
        return said + text.BASIS_L2.format(l2=units.nbytes(h.l2_size_bytes))
    return f"{said}."


def ratios(h: Headline) -> str:
    """Why a point's bytes give another ratio than the headline; "" where they give the same."""
    counted, base = _of(h.flash, "dram_bytes"), _of(h.naive or h.naive_folded, "dram_bytes")
    if counted is None or base is None or counted <= h.compulsory_bytes or not h.ratio_by_floor or not h.ratio_counted:
        return ""
    return text.RATIOS.format(
        counted=units.times(h.ratio_counted), naive=units.nbytes(base), flash=units.nbytes(counted),
        headline=units.times(h.ratio_by_floor), floor=units.nbytes(h.compulsory_bytes))


def ratios_on(bundle: Bundle, shape: AttentionShape, direction: str) -> str:
    """The same on one shape; "" too where that has no headline."""
    with suppress(BadInput):
        return ratios(evidence.headline(bundle, shape, direction))
    return ""


def configuration(h: Headline, faster: Faster | None) -> str:
    """Which configuration of flash the numbers are of, and a faster one that another source holds."""
    if h.flash is None or not tile(h.flash.parameters):
        return ""
    size, *rest = tile(h.flash.parameters).split(", ")
    count, sides = h.flash.configurations, text.CONFIGURATION_BLOCKS if rest else "{size}"
    said = text.CONFIGURATION.format(
        flash=labels.sentence(labels.implementation(h.flash.implementation)),
        tile=", ".join([sides.format(size=size), *rest]),
        which=text.CONFIGURATION_BEST.format(count=count) if count > 1 else "")
    if faster is None:
        return said
    return said + text.CONFIGURATION_FASTER.format(
        source=faster.source, tile=tile(faster.parameters), time=units.duration(faster.median_ns),
        own=units.duration(faster.same_ns or faster.headline_ns),
        where=text.CONFIGURATION_THERE if faster.same_ns else "")


def _work(h: Headline) -> float | None:
    """Counted matmul work of flash over that of naive."""
    naive, ours = _of(h.naive or h.naive_folded, "tensor_flops"), _of(h.flash, "tensor_flops")
    return ours / naive if ours is not None and naive else None


def _same(work: float) -> bool:
    return abs(work - 1) <= 0.005


def cards(h: Headline, direction: str = "forward") -> list[Card]:
    """Equal FLOPs, peak memory, speed, error, occupancy with Tensor Core use; what is missing says so."""
    base, flash = h.naive or h.naive_folded, h.flash
    folded = text.CARD_SPEED_FOLDED.format(ratio=units.times(h.speedup_over_folded)) if h.speedup_over_folded else ""
    memory = _both(units.nbytes, _of(base, "peak_memory_bytes"), _of(flash, "peak_memory_bytes"))
    speed = _both(units.duration, _of(base, "median_ns"), _of(flash, "median_ns"))
    return [
        _flops(h, direction),
        _ratio(text.CARD_MEMORY, h.memory_ratio, text.LESS, memory, text.CARD_MEMORY_HELP),
        _ratio(text.CARD_SPEED, h.speedup, text.FASTER, speed + folded, text.CARD_SPEED_HELP),
        _error(h),
        _occupancy(h),
    ]


def _of(side: Side | None, name: str) -> float | None:
    return getattr(side, name) if side else None


def _both(unit: Callable[[float | None], str], naive: float | None, flash: float | None) -> str:
    return text.NAIVE_FLASH.format(naive=unit(naive), flash=unit(flash))


def _ratio(label: str, ratio: float | None, word: str, both: str, help_: str) -> Card:
    if ratio is None:
        return Card(label, units.NOT_AVAILABLE, "missing", both, help_)
    return Card(label, f"{units.times(ratio)} {word}", "derived", both, help_)


def _flops(h: Headline, direction: str) -> Card:
    base, flash = h.naive or h.naive_folded, h.flash
    naive, ours = _of(base, "tensor_flops"), _of(flash, "tensor_flops")
    label, help_ = text.CARD_FLOPS, text.CARD_FLOPS_HELP
    if naive is None or ours is None:
        return Card(label, units.flop(h.flops_visible), "predicted", text.CARD_FLOPS_PREDICTED[direction], help_)
    value = text.SAME.format(value=units.flop(ours)) if _same(_work(h) or 0) else units.flop(ours)
    return Card(label, value, "measured", _both(units.flop, naive, ours), help_)


def _error(h: Headline) -> Card:
    label, help_ = text.CARD_ERROR, text.CARD_ERROR_HELP
    if h.flash is None or h.flash.error_relative is None:
        return Card(label, units.NOT_AVAILABLE, "missing", text.CARD_ERROR_MISSING, help_)
    eager = h.error_eager_relative
    beside = text.CARD_ERROR_EAGER.format(error=units.number(eager)) if eager is not None else ""
    return Card(label, units.number(h.flash.error_relative), "measured", text.CARD_ERROR_BASIS + beside, help_)


def _occupancy(h: Headline) -> Card:
    base, flash = h.naive or h.naive_folded, h.flash
    if flash is None or flash.achieved_occupancy_pct is None:
        return Card(text.CARD_OCCUPANCY, units.NOT_AVAILABLE, "missing", text.NOT_COLLECTED, text.CARD_OCCUPANCY_HELP)
    value = f"{units.percent(flash.achieved_occupancy_pct)} · {units.percent(flash.tensor_pipe_pct)}"
    return Card(text.CARD_OCCUPANCY, value, "measured", text.CARD_OCCUPANCY_BASIS.format(
        occupancy=units.percent(base.achieved_occupancy_pct if base else None),
        tensor=units.percent(base.tensor_pipe_pct if base else None)), text.CARD_OCCUPANCY_HELP)


def beside_matmuls(source: store.Source, shape: AttentionShape | None, direction: str) -> None:
    """Folded: work beside the matmuls, and FlashAttention-1 beside 2 or why not."""
    boxes.fold(text.BESIDE_MATMULS, "matmuls", _matmuls, source, shape, direction)


def _matmuls(source: store.Source, shape: AttentionShape | None, direction: str) -> None:
    rows = store.derive(source, evidence.beside_matmuls, shape, direction)
    st.caption(text.BESIDE_MATMULS_WHY)
    tables.wrapped(pd.DataFrame([{
        text.IMPLEMENTATION: labels.implementation(w.implementation),
        text.BESIDE["matmul"]: units.flop(w.matmul_flops), text.BESIDE["core"]: units.flop(w.core_flops),
        text.BESIDE["special"]: units.si(w.special_ops, "op"),
        text.BESIDE["share"]: units.number(None if w.share is None else 100 * w.share),
        text.BESIDE["stall"]: w.stall or units.NOT_AVAILABLE} for w in rows]), "matmuls")
    why = store.derive(source, evidence.why_no_versions, shape, direction)
    if why:
        st.caption(text.NO_VERSIONS.format(why=why, shared=NO_SHARED))


def paper() -> None:
    """Folded: the table that the FlashAttention paper prints, beside what its algorithms must move."""
    boxes.fold(text.PAPER, "paper", _paper)


def _paper() -> None:
    size = dict(theory.PAPER)
    st.caption(text.PAPER_LEAD.format(**{name: units.whole(value) for name, value in size.items()}))
    tables.wrapped(paper_rows(), "paper")
    st.caption(text.PAPER_NOTE.format(sram=f"{size['sram_bytes'] // 1024} KiB"))


def paper_rows() -> pd.DataFrame:
    """The paper's table: as printed, and predicted from the algorithms; the last column is standard over Flash."""
    both = theory.paper_table()
    values: list[tuple[str, str, float, Callable[[float], str]]] = [
        ("gb_printed", "printed_gb", 1e9, units.nbytes), ("gb_counted", "schedule_gb", 1e9, units.nbytes),
        ("gb_most", "most_gb", 1e9, units.nbytes), ("ms_printed", "printed_ms", 1e6, units.duration),
        ("gflop_printed", "printed_gflop", 1e9, units.flop), ("gflop_counted", "whole_gflop", 1e9, units.flop)]
    rows = []
    for key, name, unit, words in values:
        standard, flash = (getattr(row, name) * unit for row in both)
        rows.append((text.PAPER_ROWS[key], words(standard), words(flash), units.times(standard / flash)))
    return pd.DataFrame(rows, columns=list(text.PAPER_COLUMNS))


def worst(source: store.Source, quantity: str) -> None:
    """Folded: the ten stages furthest from their prediction, each with what explains the difference."""
    boxes.fold(text.WORST, "worst", _furthest, source, quantity)


def _furthest(source: store.Source, quantity: str) -> None:
    rows = store.derive(source, furthest, quantity)
    if len(rows):
        tables.wrapped(rows, "worst")
    else:
        st.caption(text.WORST_NONE)


def furthest(bundle: Bundle, quantity: str, count: int = 10) -> pd.DataFrame:
    """Measured, predicted and allowed of the rows furthest off that are no lower bounds, and the causes by name."""
    rows = [r for r in evidence.parity(bundle, quantity) if r.high is not None and r.predicted]
    out = []
    for r in evidence.worst(rows, count):
        found = next(x for x in evidence.residuals(bundle, r.implementation, r.shape, r.direction)
                     if (x.stage, x.quantity) == (r.stage, r.quantity))
        amount = {w: units.quantity(v, r.unit) for w, v in (("measured", r.measured), ("predicted", r.predicted),
                                                            ("low", r.low), ("high", r.high))}
        out.append({
            text.IMPLEMENTATION: labels.implementation(r.implementation), text.WORST_STAGE: labels.stage(r.stage),
            text.SHAPE: r.shape.label(), text.KINDS["measured"]: amount["measured"],
            text.KINDS["predicted"]: amount["predicted"], text.RATIO: f"{100 * r.measured / r.predicted:.2f}%",
            text.WORST_WHY: "; ".join(f"{cause} {units.quantity(part, r.unit)}" for cause, part in found.causes),
            text.WORST_ALLOWED: f"{amount['low']} … {amount['high']}",
            text.WORST_WITHIN: text.YES if r.good else text.NO})
    return pd.DataFrame(out)
