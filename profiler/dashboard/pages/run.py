"""Run: profile on this machine, watch it, open the result; or what to run on a machine that has a GPU."""

import inspect

import streamlit as st

from profiler.collect import suites
from profiler.dashboard import jobs, state, store, text
from profiler.dashboard.components import boxes, runs
from profiler.figures import labels

st.title(text.RUN)
with st.spinner(text.RUN_LOOKING):
    checks = jobs.machine(jobs.python())
lacking = [check for check in checks if check["state"] != "ok"]
here = not any(check["name"] not in jobs.FOR_COUNTERS for check in lacking)
counters = start = False
with st.container(horizontal=True, vertical_alignment="bottom"):
    suite = state.select(text.RUN_SUITE, "suite", {name: name for name in suites.SUITES}, "quick", width=260)
    if here:
        counters = not lacking and state.flag(text.RUN_COUNTERS, "counters", True, help=text.RUN_COUNTERS_HELP)
        start = st.button(text.RUN_START, type="primary", icon=":material/play_arrow:")
configs = suites.suite(suite)
st.markdown(inspect.getdoc(suites.SUITES[suite]) or "")
st.caption(text.RUN_PLAN.format(
    configs=labels.sentence(labels.count(len(configs), "configuration")),
    shapes=labels.count(len({config.shape for config in configs}), "shape"),
    names=labels.join(list(dict.fromkeys(labels.implementation(config.implementation) for config in configs)))))
if not here:
    runs.elsewhere(lacking, suite)
    boxes.end()
if lacking:
    boxes.missing(text.RUN_NO_COUNTERS)
    runs.checks(lacking)
if start:
    jobs.jobs().start(suite, counters, store.data_folders()[0])
runs.show()
