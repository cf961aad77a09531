"""Launches: the tidy table with search, choice of columns and downloads; every raw counter of one launch."""

import streamlit as st

from profiler import evidence
from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, charts, claims, selectors, tables
from profiler.figures import units
from profiler.figures.spreadsheet import csv

SEARCHED = ("kernel", "range", "range_path", "config_id", "implementation", "device")

st.title(text.LAUNCHES)
st.markdown(text.LAUNCHES_LEAD)
row = st.container(horizontal=True, vertical_alignment="bottom")
with row:
    view = selectors.source_only()
if view is None:
    boxes.end()
launches = view.bundle.launches
if launches.empty:
    boxes.missing(text.NO_LAUNCHES.format(source=view.source.label), text.NO_COUNTERS_REMEDY)
    boxes.end()
held = tables.collected(launches)
with row:
    words = state.words(text.SEARCH, "search", help=text.SEARCH_HELP, placeholder="softmax", width=320)
    with st.popover(text.COLUMNS, icon=":material/view_column:"):
        first = [name for name in tables.FIRST if name in held]
        names = {name: tables.title(name) for name in dict.fromkeys([*first, *held])}
        columns = state.select_several(text.COLUMNS, "columns", names, first, width=520)
found = tables.search(launches, words, SEARCHED)
if found.empty:
    boxes.missing(text.NO_MATCH.format(words=words), text.NO_MATCH_REMEDY)
    boxes.end()

st.caption(text.LAUNCH_COUNT.format(shown=units.whole(len(found)), all=units.whole(len(launches))))
page = tables.paged(found, columns or first, state.wish("launch"))
shown = tables.readable(page[columns or first])
tables.pick(shown, page["launch"].tolist(), "launch", tables.config("launches", shown))

name = charts.filename(f"launches-{view.source.label}")
with st.container(horizontal=True):
    st.download_button(text.DOWNLOAD_TABLE_CSV, charts.later(lambda: csv(found)), f"{name}.csv", "text/csv",
                       on_click="ignore", icon=":material/download:")
    st.download_button(text.DOWNLOAD_TABLE_PARQUET, charts.later(lambda: tables.parquet(found)), f"{name}.parquet",
                       on_click="ignore", icon=":material/download:")

chosen = state.choose("launch", [str(n) for n in launches["launch"]], "") if state.wish("launch") else ""
if not chosen:
    st.caption(text.LAUNCH_HINT)
    boxes.end()
row = launches[launches["launch"] == int(chosen)].iloc[0]
st.subheader(text.LAUNCH_TITLE.format(launch=chosen))
st.code(row["kernel"], language=None, wrap_lines=True)
claims.diagnosis(store.derive(view.source, evidence.diagnosis, int(chosen)))
raw = store.raw(view.source, int(chosen))
if raw.empty:
    boxes.missing(text.NO_RAW.format(source=view.source.label), text.NO_RAW_REMEDY)
    boxes.end()
with st.container(width=420):
    words = state.words(text.RAW_SEARCH, "counter", placeholder="dram")
st.dataframe(tables.search(raw, words, ("metric", "used_for")).drop(columns="launch"), hide_index=True, **tables.EMPTY,
             column_config=tables.config("metrics", raw))
