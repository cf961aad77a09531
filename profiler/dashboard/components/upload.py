"""The sidebar's part for adding files: upload, sample reports, what was added and how to remove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes
from profiler.errors import FlashScopeError
from profiler.figures import labels, units

ROUND = "fs.upload.round"        # a new number gives an empty uploader, which frees the file's bytes
SLOW_SECONDS = 1.0               # from here on it is said how long reading a file took
PROBLEMS = "fs.upload.problems"  # what could not be read, until dismissed


def sidebar() -> None:
    """Draw the upload, the added files, and what could not be read."""
    session = st.session_state
    with st.sidebar:
        turn = session.setdefault(ROUND, 0)
        files = st.file_uploader(text.ADD_TITLE, accept_multiple_files=True, key=f"fs.upload.{turn}",
                                 help=text.ADD_HELP)
        if files:
            found = [_reading(file.name, partial(store.add_file, file.name, file.getvalue())) for file in files]
            session[PROBLEMS] = [problem for problem in found if problem]
            session[ROUND] = turn + 1
            _release(files)
            st.rerun()
        _samples()
        _added()
    for i, problem in enumerate(session.get(PROBLEMS, [])):
        boxes.error(problem.what, problem.remedy, problem.detail)
        if i == len(session[PROBLEMS]) - 1 and st.button(text.DISMISS, key="fs.upload.dismiss"):
            session[PROBLEMS] = []
            st.rerun()


def _release(files: Sequence[Any]) -> None:
    """Let go of the bytes of uploads that were read: Streamlit keeps them until the browser's tab is closed."""
    context: Any = get_script_run_ctx()
    forget = getattr(getattr(context, "uploaded_file_mgr", None), "remove_file", None)
    if forget is None:
        return
    for file in files:
        forget(context.session_id, file.file_id)


def _reading(name: str, add: Callable[[store.Progress], Any]) -> FlashScopeError | None:
    """Call `add` under a progress bar; the error it raised, if any."""
    words = text.ADD_READING.format(name=boxes.plain(name))
    bar = st.progress(0.0, words)

    def told(done: int, total: int) -> None:
        said = text.ADD_READ_SO_FAR.format(done=units.whole(done), total=units.whole(total))
        bar.progress(min(1.0, done / max(1, total)), f"{words} {said}")

    try:
        add(told)
    except FlashScopeError as problem:
        if name not in problem.what:
            problem.what = f"{name}: {problem.what}"
        return problem
    finally:
        bar.empty()
    return None


def _samples() -> None:
    reports = store.samples()
    if not reports:
        return
    with st.popover(text.ADD_SAMPLE, icon=":material/science:", width="stretch"):
        for path in reports:
            if st.button(path.name, key=f"fs.sample.{path.name}", width="stretch"):
                problem = _reading(path.name, partial(store.add_sample, path))
                st.session_state[PROBLEMS] = [problem] if problem else []
                st.rerun()


def _added() -> None:
    files = store.added()
    if not files:
        return
    st.markdown(f"**{text.ADDED}**")
    for source in files.values():
        name, button = st.columns([6, 1], vertical_alignment="center", gap=None)
        name.caption(boxes.plain(source.label))
        if source.seconds >= SLOW_SECONDS:
            launches = labels.count(len(source.bundle.launches) if source.bundle else 0, "launch", "launches")
            name.caption(text.ADDED_IN.format(launches=launches, time=units.duration(1e9 * source.seconds)))
        button.button("", icon=":material/close:", key=f"fs.remove.{source.key}", type="tertiary",
                      help=text.REMOVE.format(name=boxes.plain(source.label)), on_click=store.remove, args=(source,))
    st.caption(text.ADDED_NOTE)
