"""What to look at: source, shape, mask, direction, what to compare; in the order people decide, held in the link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, honest
from profiler.figures import labels, scaling_words, units
from profiler.figures.place import text_width
from profiler.spec import AttentionShape

SHAPE = ["batch", "heads", "kv_heads", "nq", "nk", "head_dim", "dtype"]
KEY = [*SHAPE, "mask", "direction", "implementation"]
TYPE, FRAME = 12.4, 58  # of a box of choices: pixels that its type is as wide as, and pixels around its words


@dataclass(frozen=True)
class View:
    """What the visitor chose. shape carries the mask and is None for sources that name none."""

    source: store.Source
    bundle: Bundle
    shape: AttentionShape | None = None
    direction: str = "forward"
    implementations: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    controls: Any = st  # where the page puts controls of its own


def choose(default: Sequence[str] | None = None, compare: bool = True, need_shape: bool = True,
           over_n: bool = False, prefer: str = "") -> View | None:
    """The row of controls and what is chosen in it.

    None where there is nothing to show; the reason is then on the page.
    default: implementations compared at first, as far as they are there; None: all but repetitions of naive.
    compare: whether to offer that choice. need_shape: whether the page is about attention calls; if not, a report
    that names none gives a View without shape. over_n: all lengths at once; the shape chosen is one of them.
    prefer: the suite whose source is shown while the visitor has chosen none.
    """
    everything = store.sources()
    if not everything:
        boxes.no_source()
        return None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        source = everything[_source(everything, prefer)]
        bundle = store.load(source)
        honest.kept_apart(bundle)
        rows = store.derive(source, rows_of)
        if not rows:
            chosen = None if need_shape else View(source, bundle)
        else:
            chosen = _rest(source, bundle, rows, over_n)
    if chosen is None:
        boxes.no_shapes(source, pages=("roofline", "launches"))
    return chosen if chosen is None or chosen.shape is None or not compare else _compare(chosen, default)


def source_only() -> View | None:
    """The choice of a source alone; None, and the empty state drawn, where there is none."""
    everything = store.sources()
    if not everything:
        boxes.no_source()
        return None
    source = everything[_source(everything)]
    view = View(source, store.load(source))
    honest.kept_apart(view.bundle)
    return view


def quantity(place: Any, view: View, name: str, options: dict[str, str]) -> str:
    """The choice of what is drawn over N, in ``place``; at first what the source measured."""
    first = store.derive(view.source, scaling_words.first_known, view.shape, tuple(options), view.implementations,
                         view.direction)
    with place:
        return state.select(text.QUANTITY, name, options, first, st.segmented_control, label_visibility="collapsed")


def several_sources() -> tuple[store.Source, ...]:
    """The choice of sources to compare; empty, and the empty state drawn, where there is none."""
    everything = store.sources()
    if not everything:
        boxes.no_source()
        return ()
    names = {key: source.label for key, source in everything.items()}
    first = list(names)[:min(3, max(2, len(store.added()) + 1))]  # their own come first, then a recorded one
    picked = state.select_several(text.SOURCES, "sources", names, first, st.pills, selection_mode="multi")
    for key in picked:
        honest.kept_apart(store.load(everything[key]))
    return tuple(everything[key] for key in picked)


def common_shape(bundles: dict[str, Bundle], tables: dict[str, pd.DataFrame]) -> View | None:
    """The choice of shape and mask among those that most sources share; None where no source names one."""
    known = pd.concat([table.assign(source=name) for name, table in tables.items()])
    if known.empty:
        return None
    shared = known.groupby([*SHAPE, "mask", "direction"])["source"].transform("nunique")
    known = known[shared == shared.max()]
    first = known["source"].iloc[0]
    return _rest(store.Source(first, first, "", ""), bundles[first], known.to_dict("records"), over_n=False)


def _source(everything: dict[str, store.Source], prefer: str = "") -> str:
    recorded = [key for key, s in everything.items() if s.origin == "recorded"]
    recorded.sort(key=lambda key: not prefer or everything[key].suite != prefer)
    names = {key: source.label for key, source in everything.items()}
    return state.select(text.SOURCE, store.SOURCE_PARAMETER, names, (recorded or list(names))[0], width=300)


def _rest(source: store.Source, bundle: Bundle, rows: Sequence[dict], over_n: bool) -> View:
    distinct = list({row["key"]: row for row in rows}.values())
    default = default_shape(distinct, rows)
    shapes = families(distinct, default) if over_n else {row["key"]: shape_words(row) for row in distinct}
    key = state.select(text.SHAPE, "shape", shapes, default, width=_width(shapes, 350))
    rows = [row for row in rows if row["key"] == key]
    mask = _unless_one(text.MASK, "mask", rows, "full", 110)
    rows = [row for row in rows if row["mask"] == mask]
    direction = _unless_one(text.DIRECTION, "direction", rows, "forward", 130)
    rows = [row for row in rows if row["direction"] == direction]
    names = in_order(dict.fromkeys(row["implementation"] for row in rows))
    shape = AttentionShape(**{name: int(rows[0][name]) for name in SHAPE[:-1]}, dtype=str(rows[0]["dtype"]), mask=mask)
    return View(source, bundle, shape, direction, names, names)


def _compare(view: View, default: Sequence[str] | None) -> View | None:
    names = {name: labels.implementation(name) for name in view.available}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        picked = state.select_several(text.COMPARE, "compare", names, default_compare(names, default), st.pills,
                                      selection_mode="multi")
        controls = st.container(horizontal=True, width="content")
    if not picked:
        boxes.missing(text.NOTHING_CHOSEN, text.NOTHING_CHOSEN_REMEDY)
        return None
    return replace(view, implementations=tuple(picked), controls=controls)


def _unless_one(label: str, name: str, rows: Sequence[dict], default: str, width: int) -> str:
    options = {row[name]: labels.mask(row[name]) if str(row[name]).startswith("window") else row[name] for row in rows}
    if len(options) == 1:
        return next(iter(options))
    return state.select(label, name, options, default, width=_width(options, width))


def _width(options: dict[str, str], least: int) -> int:
    """Pixels of a box in which the longest of ``options`` is not cut."""
    return max(least, round(max(text_width(words, TYPE) for words in options.values())) + FRAME)


def families(rows: Sequence[dict], default: str) -> dict[str, str]:
    """Shapes that differ in length only, as one option each: key of the wished or default one -> words for all.

    Where there are fewer queries than keys, the keys alone are the length.
    """
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        queries = None if row["nq"] == row["nk"] else row["nq"]
        groups.setdefault((queries, *(row[name] for name in SHAPE if name not in ("nq", "nk"))), []).append(row)
    options: dict[str, str] = {}
    for group, tokens in _by_tokens(list(groups.values())):
        keys = [row["key"] for row in group]
        first = str(next((key for key in (state.wish("shape"), default) if key in keys), keys[-1]))
        ends = dict.fromkeys(units.whole(end(int(row["nk"]) for row in group)) for end in (min, max))
        options[first] = shape_words(group[0], n=" … ".join(ends), tokens=tokens)
    return options


def _by_tokens(groups: list[list[dict]]) -> list[tuple[list[dict], int]]:
    """Groups of one length each whose batches hold as many tokens, as one group with these tokens; the rest with 0."""
    together: dict[tuple, list[dict]] = {}
    for i, group in enumerate(groups):
        row = group[0]
        alone = row["nq"] == row["nk"] and len({one["nk"] for one in group}) == 1
        rest = (row[name] for name in SHAPE if name not in ("batch", "nq", "nk"))
        together.setdefault((row["batch"] * row["nq"], *rest) if alone else (0, i), []).extend(group)
    return [(rows, key[0] if len({row["batch"] for row in rows}) > 1 else 0) for key, rows in together.items()]


def configurations(bundle: Bundle) -> pd.DataFrame:
    """The distinct configurations of a bundle, launches and timings together; empty for foreign reports."""
    frames = [frame[KEY].dropna() for frame in (bundle.launches, bundle.timings) if len(frame)]
    if not frames:
        return pd.DataFrame(columns=[*KEY, "key"])
    table = pd.concat(frames).drop_duplicates().sort_values(["head_dim", "nq", "nk", "batch"], kind="stable")
    shapes = table[SHAPE].drop_duplicates()
    return table.merge(shapes.assign(key=[shape_key(row) for row in shapes.to_dict("records")]), on=SHAPE, how="left")


def rows_of(bundle: Bundle) -> list[dict]:
    """The same as records: choosing among few rows needs no table."""
    return bundle.once(configurations).to_dict("records")


def default_shape(distinct: Sequence[dict], rows: Sequence[dict]) -> str:
    """The shape nearest to N 4096, D 64 among those that naive and another implementation ran, if any."""
    ran: dict[str, set[bool]] = {}
    for row in rows:
        ran.setdefault(row["key"], set()).add(row["implementation"].startswith("naive"))
    nearest = min(distinct, key=lambda row: (len(ran[row["key"]]) < 2, abs(row["nq"] - 4096),
                                             abs(row["head_dim"] - 64)))
    return nearest["key"]


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """As the source has them; where it has hopper, that comes after naive and before the rest, flash2 next: a figure's
    finding is about the first that is not naive."""
    found = tuple(names)
    if "hopper" not in found:
        return found
    place = {"hopper": 1, "flash2": 2}
    return tuple(sorted(found, key=lambda name: 0 if labels.is_naive(name) else place.get(name, 3)))


def default_compare(names: Iterable[str], wanted: Sequence[str] | None) -> list[str]:
    """Those of `wanted` that are there; without any, everything but what only repeats naive. The folded form stands for
    naive where that is absent."""
    names = list(names)
    again = ("naive_folded", "sdpa_math") if "naive" in names else ("sdpa_math",)
    found = [name for name in names if wanted and (name in wanted or (name == "naive_folded" and name not in again
                                                                      and "naive" in wanted))]
    return found or [name for name in names if name not in again] or names


def shape_key(row: dict) -> str:
    """A shape as the link holds it: B1-H16-N4096-D64-bf16."""
    return shape_words(row, compact=True)


def shape_words(row: dict, compact: bool = False, n: str = "", tokens: int = 0) -> str:
    """A shape as people choose it: N 4,096 · D 64 · batch 1 · 16 heads · bf16."""
    lengths = (row["nq"],) if row["nq"] == row["nk"] else (row["nq"], row["nk"])
    heads = (row["heads"],) if row["heads"] == row["kv_heads"] else (row["heads"], row["kv_heads"])
    if compact:
        return (f"B{row['batch']}-H{'.'.join(map(str, heads))}-N{'.'.join(map(str, lengths))}-D{row['head_dim']}"
                f"-{row['dtype']}")
    n = n or units.whole(row["nk"])
    length = f"N {n}" if row["nq"] == row["nk"] else f"{labels.count(row['nq'], 'query', 'queries')} × {n} keys"
    batch = f"batch of {units.whole(tokens)} tokens" if tokens else f"batch {row['batch']}"
    return f"{length} · D {row['head_dim']} · {batch} · {'/'.join(map(str, heads))} heads · {row['dtype']}"
