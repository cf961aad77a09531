"""Rooflines of a source: attention on one shape, or every launch of any report, under roofs that may be typed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from profiler import devices
from profiler.bundle import Bundle
from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, tables
from profiler.figures import labels, memory_kind, units
from profiler.figures import roofline_words as say
from profiler.figures.ceilings import ENTRIES, clock_note, device_roofs, typed
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.roofline import roofline
from profiler.metrics.beside import l1_bytes
from profiler.model import Roof
from profiler.spec import AttentionShape

Entered = tuple[tuple[str, float], ...]  # roofs that the visitor typed: (name, base units)
NOT_DRAWN = ["label", "launches", "why_not_drawn"]
NUMBERS = ["label", "flops", "bytes", "bytes_kind", "ns", "time_kind", "intensity", "flops_per_s", "in_l2", "launches"]


def attention(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str], *, direction: str, level: str,
              stages: bool, theme: str, entered: Entered = ()) -> Any:
    """Implementations on one shape, one point each (ΣFLOP over Σbytes and time); `stages`: the steps of naive too."""
    naive = [name for name in implementations if stages and labels.is_naive(name)][:1]
    points = attention_points(bundle, shape, implementations, level=level, stages=naive, direction=direction)
    roofs = [*typed(dict(entered)), *attention_roofs(bundle, shape, implementations, direction)]
    return roofline(points, roofs, bundle.profile, about=labels.call(shape, direction), level=level, theme=theme)


def launches(bundle: Bundle, *, level: str, theme: str, entered: Entered = ()) -> Any:
    """Every launch of a report under the roofs of its GPU."""
    roofs = device_roofs(bundle, dict(entered))
    return roofline(launch_points(bundle, level=level), roofs, bundle.profile, level=level, theme=theme)


def levels(bundle: Bundle, whole: bool) -> dict[str, str]:
    """The levels whose bytes the launches count; L1 only where a report's counters see all of it."""
    counted = not whole and bool(l1_bytes(bundle).notna().any())
    found = {key: name for key, name in text.ROOFLINE_LEVELS.items() if key != "l1" or counted}
    return memory_kind.called(found, memory_kind.of(bundle))


def levels_of(sources: Sequence[store.Source], whole: bool) -> dict[str, str]:
    """The levels that one of several sources counts."""
    found = {key for source in sources for key in store.derive(source, levels, whole)}
    return memory_kind.called({key: name for key, name in text.ROOFLINE_LEVELS.items() if key in found},
                              store.derive(tuple(sources), memory_kind.of))


def own_roofs(source: store.Source, bundle: Bundle) -> Entered:
    """Two boxes for peaks that the visitor knows, held in the link; open where no data sheet is known by that name."""
    gpu, known = known_gpu(bundle)
    found: dict[str, float] = {}
    with boxes.folded(text.OWN_ROOFS, "own-roofs", expanded=not known) as open_:
        if open_:
            st.caption(text.OWN_ROOFS_LEAD[not known].format(gpu=gpu))
        with st.container(horizontal=True):
            for name, (_, factor, _) in ENTRIES.items():
                parameter = f"roof-{name}-{source.key}"
                said = state.words(text.OWN_ROOF[name], parameter, width=220) if open_ else state.said(parameter)
                value = _number(said)
                if value is not None:
                    found[name] = value * factor
                elif said:
                    st.warning(text.OWN_ROOF_BAD.format(name=text.OWN_ROOF[name], got=said[:40]))
    return tuple(found.items())


def known_gpu(bundle: Bundle) -> tuple[str, bool]:
    """The name of the source's first GPU, and whether the table of data sheets has it."""
    rows = bundle.launches[["device", "cc", "sm_count"]].drop_duplicates()
    if rows.empty:
        return text.GPU_NOT_NAMED, True
    name, cc, sms = (None if units.missing(v) else v for v in rows.iloc[0])
    return str(name or text.GPU_NOT_NAMED), devices.find(name, cc, sms) is not None


def _number(said: str) -> float | None:
    try:
        value = float(said.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def roofs_table(bundle: Bundle, entered: Entered = ()) -> pd.DataFrame:
    """Every roof of every GPU of a source: value, source and how it comes about."""
    groups: Mapping[str, Sequence[Roof]] = device_roofs(bundle, dict(entered))
    columns = text.ROOF_COLUMNS
    rows = [{"gpu": device or known_gpu(bundle)[0], "roof": say.roof_words(roof), "value": value(roof),
             "source": roof.source, "how": roof.how} for device, group in groups.items() for roof in group]
    return pd.DataFrame(rows, columns=list(columns)).rename(columns=columns)


def clock_notes(bundle: Bundle) -> list[str]:
    """What to know of the clocks behind the roofs, a sentence a GPU where its launches disagree."""
    notes = [clock_note(rows) for _, rows in bundle.launches.groupby("device", dropna=False)]
    return [text.CLOCK_NOTE.format(note=note) for note in notes if note]


def value(roof: Roof) -> str:
    """A roof's value with its unit."""
    return units.bandwidth(roof.value) if not roof.flat else \
        units.flops(roof.value) if roof.unit == "FLOP/s" else units.si(roof.value, "op/s")


def numbers(points: pd.DataFrame) -> pd.DataFrame:
    """The drawn points as a table: integer operations with their own unit."""
    drawn = points[points["why_not_drawn"].isna()]
    op = drawn["unit"].eq("op")
    shown = drawn[NUMBERS].assign(
        flops=[units.si(v, "op") if o else units.flop(v) for v, o in zip(drawn["flops"], op)],
        bytes=drawn["bytes"].map(units.nbytes), ns=drawn["ns"].map(units.duration),
        intensity=[units.intensity(v).replace("FLOP", "op") if o else units.intensity(v)
                   for v, o in zip(drawn["intensity"], op)],
        flops_per_s=[units.si(v, "op/s") if o else units.flops(v) for v, o in zip(drawn["flops_per_s"], op)],
        in_l2=drawn["in_l2"].map({True: text.YES, False: text.NO}))
    return tables.named(shown)
