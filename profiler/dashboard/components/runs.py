"""What the Run page shows: what a machine lacks, and the runs of this server."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from profiler.dashboard import jobs, state, store, text
from profiler.dashboard.components import boxes


def checks(lacking: Sequence[dict[str, str]]) -> None:
    """Each thing that is missing or wrong, with its remedy."""
    for check in lacking:
        st.markdown(f":material/close: **{boxes.plain(check['name'])}** · {boxes.plain(check['text'])}")
        if check["remedy"]:
            st.caption(check["remedy"])


def elsewhere(lacking: Sequence[dict[str, str]], suite: str) -> None:
    """What to run on a machine that has a GPU, where to bring the result, and what this one lacks."""
    first = next(check for check in lacking if check["name"] not in jobs.FOR_COUNTERS)
    with st.container(border=True):
        st.markdown(f"**{boxes.plain(text.RUN_CANNOT.format(why=first['text']))}**")
        st.markdown(text.RUN_ELSEWHERE)
        st.code(text.RUN_COMMANDS.format(suite=suite), language=None)
        st.markdown(text.RUN_BACK.format(folder=boxes.plain(f"{store.data_folders()[0].name}/")))
    with st.expander(text.RUN_LACKS):
        checks(lacking)


@st.fragment(run_every=1.0)
def show() -> None:
    """The runs of this server, newest first; redrawn every second without the rest of the page."""
    for number, job in reversed(list(enumerate(jobs.jobs().all()))):
        with st.container(border=True), boxes.guarded():
            _one(number, job)


def _one(number: int, job: jobs.Job) -> None:
    done, total, what = job.progress()
    st.markdown(f"**{job.out.name}** · {text.RUN_STATES[job.state]}")
    if job.state == jobs.RUNNING:
        share = min(1.0, done / total) if total else 0.0
        st.progress(share, boxes.plain(f"{done} / {total} {what}") if total else None)
    cancellable = job.state in (jobs.RUNNING, jobs.WAITING) and store.local()
    if cancellable and st.button(text.RUN_CANCEL, key=f"fs.cancel.{number}"):
        jobs.jobs().cancel(job)
    if job.state == jobs.DONE and st.button(text.RUN_OPEN, key=f"fs.open.{number}", type="primary"):
        state.put(store.SOURCE_PARAMETER, job.out.name)
        st.switch_page("profiler/dashboard/pages/evidence.py")
    with st.expander(text.RUN_LOG, expanded=job.state == jobs.FAILED):
        st.code(job.tail() or text.NOTHING, language=None, height=240)
