"""Tidy tables as people read them: column titles with units, numbers with thousands separated, short kernel names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from profiler import evidence, table
from profiler.bundle import Bundle
from profiler.dashboard import state, text
from profiler.dashboard.components import boxes
from profiler.figures import labels, select, units
from profiler.spec import AttentionShape

FIRST = ("launch", "implementation", "range", "nq", "head_dim", "mask", "kernel", "duration_ns", "dram_read_bytes",
         "dram_write_bytes", "tensor_flops", "special_ops", "tensor_pipe_pct", "achieved_occupancy_pct",
         "occupancy_limiter")
OCCUPANCY: dict[str, Any] = {  # column -> how its values are said, in the order of the table
    "launch": str, "implementation": str, "stage": str, "achieved_occupancy_pct": units.percent,
    "theoretical_occupancy_pct": units.percent, "occupancy_limiter": str, "waves_per_sm": units.number,
    "tensor_pipe_pct": units.percent, "special_ops": lambda n: units.si(n, ""), "registers_per_thread": units.whole,
    "shared_bytes_per_block": units.nbytes, "spill_requests": units.whole, "duration_ns": units.duration, "kernel": str}
MOST_WRAPPED = 40  # rows

PAGE = 500  # rows of launches that a browser gets at once

# what an empty cell shows, where this version of Streamlit can say it
EMPTY: dict[str, Any] = {"placeholder": "–"} if "placeholder" in inspect.signature(st.dataframe).parameters else {}


def title(name: str) -> str:
    """A column's heading: dram_read_bytes reads "HBM read"."""
    return text.TITLES.get(name, name.replace("_", " "))


def config(name: str, frame: pd.DataFrame) -> dict[str, Any]:
    """Streamlit's column settings from the schema of table `name`: heading with unit, meaning and kind as help."""
    out = {}
    for column in table.TABLES[name]:
        if column.name in frame.columns:
            heading = f"{title(column.name)}{f' ({column.unit})' if column.unit else ''}"
            help_ = f"{column.meaning}. {text.COLUMN_KINDS[column.kind]} Column `{column.name}`."
            if column.dtype in (table.REAL, table.WHOLE):
                out[column.name] = st.column_config.NumberColumn(heading, help=help_, format="localized")
            else:
                out[column.name] = st.column_config.TextColumn(heading, help=help_)
    return out


def collected(frame: pd.DataFrame) -> list[str]:
    """The columns that hold at least one value."""
    return [name for name in frame.columns if frame[name].notna().any()]


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with headings for people instead of column names."""
    return frame.rename(columns=title)


def over_n(drawn: pd.DataFrame) -> pd.DataFrame:
    """A scaling figure's data with measured and predicted side by side, one row an implementation and length."""
    index = ["implementation", "n", "unit"]
    wide = drawn.pivot_table(index=index, columns="kind", values="value", sort=False).reset_index()
    out = pd.DataFrame({text.IMPLEMENTATION: wide["implementation"].map(labels.implementation),
                        "N": wide["n"].map(units.whole)})
    for kind in ("measured", "predicted"):
        if kind in wide:
            out[text.KINDS[kind]] = [units.quantity(v, u) for v, u in zip(wide[kind], wide["unit"])]
    if "measured" in wide and "predicted" in wide:
        out[text.RATIO] = [units.percent(100 * m / p) for m, p in zip(wide["measured"], wide["predicted"])]
    return out


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Kernels by their short name, implementations by the name people use; the downloads keep both in full."""
    words = {"kernel": lambda name: labels.kernel(name, 60), "implementation": labels.implementation}
    return rows.assign(**{name: rows[name].map(say, na_action="ignore") for name, say in words.items() if name in rows})


def occupancy(rows: pd.DataFrame) -> pd.DataFrame:
    """What sets and what follows from occupancy, launch by launch, in words; columns without any value left out."""
    held = set(collected(rows))
    if "stage" in held:  # then the kernel's name says no more; the table of launches has it
        held.discard("kernel")
    if not rows["spill_requests"].fillna(0).astype(bool).any():
        held.discard("spill_requests")
    steps = rows["stage"].map(lambda name: labels.stage(name, short=True), na_action="ignore")
    apart = otherwise(rows)
    rows = readable(rows).assign(stage=steps)
    if apart.ne("").any():
        rows["implementation"] = rows["implementation"] + apart.map(lambda words: f": {words}" if words else "")
    return pd.DataFrame({text.OCCUPIED.get(name, title(name)): rows[name].map(say, na_action="ignore")
                         for name, say in OCCUPANCY.items() if name in held})


def otherwise(rows: pd.DataFrame) -> pd.Series:
    """What tells a row's configuration from the others of its implementation: "turns false"; "" where there is one."""
    given = [{} if units.missing(words) else json.loads(words) for words in rows["parameters"]]
    names = list(rows["implementation"].astype("string").fillna(""))
    every: dict[str, list[dict[str, Any]]] = {}
    for name, one in zip(names, given):
        every.setdefault(name, []).append(one)
    differ = {name: [key for key in ones[0] if len({str(one.get(key)) for one in ones}) > 1]
              for name, ones in every.items()}
    return pd.Series([", ".join(f"{key.replace('_', ' ')} {str(one.get(key)).lower()}" for key in differ[name])
                      for name, one in zip(names, given)], index=rows.index, dtype=object)


def wrapped(frame: pd.DataFrame, key: str, most: int = MOST_WRAPPED) -> None:
    """A table whose words wrap instead of being cut; beyond ``most`` rows one that scrolls.

    It is there in a tenth of the time: Streamlit's own is a canvas, which is fetched, laid out and then described.
    """
    if len(frame) > most or frame.empty:
        st.dataframe(frame, hide_index=True, **EMPTY)
        return
    lines = [[boxes.plain(str(name)) for name in frame.columns], ["---"] * len(frame.columns)]
    lines += [["–" if units.missing(cell) else boxes.plain(str(cell)) for cell in row]
              for row in frame.itertuples(index=False, name=None)]
    with st.container(key=f"dense.{key}"):
        st.markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def fold(label: str, key: str, make: Callable[..., pd.DataFrame], *arguments: Any) -> None:
    """The table ``make(*arguments)``, made when somebody unfolds it."""
    boxes.fold(label, key, _made, key, make, *arguments)


def _made(key: str, make: Callable[..., pd.DataFrame], *arguments: Any) -> None:
    wrapped(make(*arguments), key)


def of_shape(frame: pd.DataFrame, shape: AttentionShape, direction: str,
             implementations: Sequence[str]) -> pd.DataFrame:
    """The rows of launches or timings on one shape, in the order of `implementations`."""
    return pd.concat([select.matching(frame, shape, name, direction) for name in implementations])


def timings(bundle: Bundle, shape: AttentionShape, direction: str, implementations: Sequence[str]) -> None:
    """The timings of one shape as they were recorded."""
    rows = of_shape(bundle.timings, shape, direction, implementations)
    st.dataframe(rows[collected(rows)], hide_index=True, column_config=config("timings", rows), **EMPTY)


def tuned(rows: pd.DataFrame) -> pd.DataFrame:
    """Tuned configurations, fastest first: what each was asked for, what it took, what it loses to or why it is not
    there."""
    out = rows[["block_m", "block_n", "num_warps", "num_stages"]].astype("Int64")
    out = out.assign(time=rows["time"].map(units.duration), versus_best=rows["versus_best"].map(units.times),
                     registers=rows["registers"].map(units.whole), shared=rows["shared"].map(units.nbytes),
                     spills=rows["spills"].map(units.whole), reasons=rows["reasons"].fillna(rows["status"]))
    return out.rename(columns=lambda name: text.TUNED.get(name, name))


def block_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Four block pairs, here beside an article's A100; ratios to the fastest of the four of each."""
    say = {"ratio": units.times, "memory": units.nbytes}
    out = pairs[["block_m", "block_n"]].astype("Int64").assign(**{
        name: pairs[name].map(say.get(name.rpartition("_")[2], units.duration))
        for name in text.BLOCK_PAIRS if not name.startswith("block")})
    return out.rename(columns=text.BLOCK_PAIRS)


def pyramid(bundle: Bundle, shape: AttentionShape | None, direction: str) -> pd.DataFrame:
    """Capacity, bandwidth and traffic of each level of memory."""
    out = []
    for level in evidence.pyramid(bundle, shape, direction):
        row = {text.LEVEL: level.name, text.CAPACITY: units.nbytes(level.capacity_bytes),
               text.BANDWIDTH: units.bandwidth(level.bytes_per_s), text.HOW: level.source}
        out.append(row | {labels.implementation(k): units.nbytes(v) for k, v in level.traffic.items()})
    return pd.DataFrame(out).fillna("–")


def search(frame: pd.DataFrame, words: str, columns: Sequence[str]) -> pd.DataFrame:
    """The rows in which every word of `words` occurs in one of the text `columns`, in any case."""
    for word in words.split():
        hit = pd.Series(False, index=frame.index)
        for name in columns:
            hit |= frame[name].astype("string").str.contains(word, case=False, regex=False, na=False)
        frame = frame[hit]
    return frame


def paged(found: pd.DataFrame, columns: Sequence[str], chosen: str | None) -> pd.DataFrame:
    """The rows of one page, with controls for which and in what order where there are more; a browser gets no more.

    chosen: the launch that the link names; its page is the first one shown.
    """
    if len(found) <= PAGE:
        return found
    with st.container(horizontal=True, vertical_alignment="bottom"):
        numbers = [name for name in columns if name != "launch" and pd.api.types.is_numeric_dtype(found[name])]
        order = state.select(text.ORDER, "order", {name: title(name) for name in ("launch", *numbers)}, "launch",
                             help=text.ORDER_HELP, width=260)
        found = found.sort_values(order, ascending=order == "launch", kind="stable", na_position="last")
        pages = {str(i + 1): text.ROWS_RANGE.format(
            first=units.whole(i * PAGE + 1), last=units.whole(min((i + 1) * PAGE, len(found))),
            all=units.whole(len(found))) for i in range(-(-len(found) // PAGE))}
        at = found["launch"].astype(str).eq(str(chosen)).to_numpy().nonzero()[0]
        page = state.select(text.ROWS_SHOWN, "page", pages, str(at[0] // PAGE + 1) if len(at) else "1", width=260)
    return found.iloc[(int(page) - 1) * PAGE:int(page) * PAGE]


def pick(shown: pd.DataFrame, keys: Sequence[Any], name: str, columns: dict[str, Any]) -> None:
    """A table whose chosen row goes into the link: its entry of `keys` becomes the parameter `name`."""
    key = f"fs.table.{name}"

    def take() -> None:
        rows = st.session_state[key]["selection"]["rows"]
        state.put(name, str(keys[rows[0]]) if rows else None)

    st.dataframe(shown, hide_index=True, column_config=columns, key=key, on_select=take, selection_mode="single-row",
                 height=min(35 * (len(shown) + 1) + 3, 460), **EMPTY)


def parquet(frame: pd.DataFrame) -> bytes:
    """`frame` as a parquet file."""
    return frame.to_parquet(index=False)


def contents(bundle: Bundle) -> list[str]:
    """How much a bundle holds, which quantities, and which not."""
    held = set(collected(bundle.launches))
    quantities = [c.name for c in table.LAUNCHES if c.kind != "identity"]
    named = {text.HOLDS: [title(n) for n in quantities if n in held],
             text.LACKS: [title(n) for n in quantities if n not in held]}
    counts = text.ROWS.format(launches=units.whole(len(bundle.launches)), metrics=units.whole(bundle.metric_count),
                              timings=units.whole(len(bundle.timings)))
    return [counts, *(line.format(names=", ".join(names) or text.NOTHING) for line, names in named.items())]


def overview(sources: Sequence[tuple[str, Bundle]]) -> pd.DataFrame:
    """One row a source: GPU, date, what was run, how much it holds and which quantities it lacks."""
    out = []
    for label, bundle in sources:
        held, profile = set(collected(bundle.launches)), bundle.profile
        lacks = [title(c.name) for c in table.LAUNCHES if c.kind != "identity" and c.name not in held]
        gpu = (profile.get("gpu") or {}).get("name") or ", ".join(bundle.launches["device"].dropna().unique()[:3])
        more = f" and {units.whole(len(lacks) - 4)} more" if len(lacks) > 4 else ""
        out.append((label, gpu or text.GPU_NOT_NAMED, str(profile.get("created") or text.NOT_SAID)[:10],
                    str(profile.get("suite") or text.NOT_SAID), units.whole(len(bundle.launches)),
                    units.whole(len(bundle.timings)),
                    (", ".join(lacks[:4]) or text.NOTHING) + more if bundle.has_counters else text.ALL_COUNTERS))
    return pd.DataFrame(out, columns=list(text.DATA_COLUMNS))


def ceilings(entries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Measured ceilings of a profile."""
    return pd.DataFrame({
        text.WHAT: [text.CEILING_NAMES.get(str(e.get("quantity")), str(e.get("quantity", "")).replace("_", " "))
                    for e in entries],
        text.VALUE: [units.si(e.get("value"), str(e.get("unit", ""))) for e in entries],
        text.KIND: [str(e.get("kind", "")) for e in entries], text.HOW: [str(e.get("how", "")) for e in entries]})


def schema(name: str) -> pd.DataFrame:
    """The columns of a table with unit, meaning and kind."""
    return pd.DataFrame([{text.COLUMN: c.name, text.UNIT: c.unit, text.MEANING: c.meaning, text.KIND: c.kind}
                         for c in table.TABLES[name]])
