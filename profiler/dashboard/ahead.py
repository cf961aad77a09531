"""Reads the recorded sources while nobody waits for a page, so that the first look at each is as quick as the next."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import streamlit as st
from streamlit.runtime import Runtime

from profiler.dashboard import store
from profiler.errors import FlashScopeError

QUIET_SECONDS = 1.0        # nobody clicked for so long
MOST_BYTES = 5_000_000     # of files: larger sources are read when somebody asks for them
SWITCH_SECONDS = 0.0005    # at most so long until the server may answer, which Python makes ten times longer
Step = Callable[[], Any]


class Ahead:
    """What to do in quiet moments, and whether this is one. quiet: seconds without a page being drawn."""

    def __init__(self, quiet: float = QUIET_SECONDS) -> None:
        self._lock, self._quiet, self._drawing, self._last = threading.Lock(), quiet, 0, time.monotonic()

    @contextmanager
    def page(self) -> Iterator[None]:
        """While a page is drawn, nothing else is begun."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, by: int) -> None:
        with self._lock:
            self._drawing, self._last = self._drawing + by, time.monotonic()

    def work(self, steps: Sequence[Step]) -> threading.Thread:
        """Do ``steps`` one by one, each in a quiet moment; what one raises is for whoever asks for it."""
        thread = threading.Thread(target=self._work, args=(steps,), daemon=True, name="ahead")
        thread.start()
        return thread

    def _work(self, steps: Sequence[Step]) -> None:
        for step in steps:
            while self._drawing or time.monotonic() - self._last < self._quiet:
                time.sleep(self._quiet / 6)
            with suppress(FlashScopeError):
                step()


@st.cache_resource(show_spinner=False)
def _ahead() -> Ahead:
    """The one of this server."""
    return Ahead()


@st.cache_resource(show_spinner=False)
def _read() -> None:
    """Begin to read, once: before the first visitor came it would only slow down how the app gets to their browser."""
    _begin(list(_steps()))


def _begin(steps: Sequence[Step]) -> None:
    """Do ``steps`` in quiet moments; in a test without a server there is nothing to read ahead of."""
    if isinstance(Runtime.instance() if Runtime.exists() else None, Runtime):
        _ahead().work(steps)


def page() -> Any:
    """Around the drawing of a page; the first one starts the reading."""
    _read()
    return _ahead().page()


def first() -> None:
    """Import what pages need and find the headline of the first one, while no page is drawn yet."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        from profiler import evidence
        from profiler.dashboard import frame  # noqa: F401  what it imports is what takes time
        from profiler.dashboard.components import claims, selectors, summary  # noqa: F401

        if source := next(iter(store.recorded().values()), None):
            store.derive(source, selectors.rows_of)
            if shape := evidence.default_shape(store.load(source)):
                store.derive(source, evidence.headline, shape, "forward")
    except FlashScopeError:
        pass  # the page says what is wrong with the source
    finally:
        gc.enable()
        sys.setswitchinterval(before)
    _begin([rest])


def rest() -> None:
    """What the first page shows after its headline: a figure, and below it what the other sources say."""
    from profiler import evidence
    from profiler.dashboard.components import claims
    from profiler.figures import ledger, ready

    others = tuple(store.recorded().values())[:claims.MOST_SOURCES]
    if others and (shape := evidence.default_shape(store.load(others[0]))):
        ready.ready(ledger.ledger(store.load(others[0]), shape))  # the first one of a process imports half of Plotly
        store.derive(others, evidence.faster, shape, "forward")
        store.derive(others, evidence.evaluate_beside, shape)


def _steps() -> Iterator[Step]:
    """What most pages first ask of a source."""
    from profiler.dashboard.components import compare, selectors
    from profiler.figures.ceilings import device_roofs

    for source in store.recorded().values():
        if source.path and sum(file.stat().st_size for file in source.path.glob("*.parquet")) <= MOST_BYTES:
            yield partial(store.load, source)
            yield partial(store.derive, source, selectors.rows_of)
            yield partial(store.derive, source, device_roofs)
            yield from (partial(store.derive, source, compare.every_point, level) for level in ("dram", "l2"))
