"""Boxes of text: errors, what is missing and how to get it, where the data comes from."""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import text
from profiler.errors import FlashScopeError

log = logging.getLogger("flashscope")
LAZY = "on_change" in inspect.signature(st.expander).parameters  # newer Streamlit tells whether an expander is open


class EndOfPage(Exception):
    """Raised by a page that has said all there is to say. (`st.stop` would also stop what follows the page.)"""


def end() -> NoReturn:
    raise EndOfPage


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever is raised inside ends in a box: a sentence and its remedy, or a number that the log explains."""
    try:
        yield
    except EndOfPage:
        pass
    except FlashScopeError as problem:
        error(problem.what, problem.remedy, problem.detail)
    except Exception:  # Streamlit's own control flow derives from BaseException and passes
        number = secrets.token_hex(4)
        log.exception("error %s", number)
        error(text.UNEXPECTED, text.UNEXPECTED_REMEDY.format(id=number))


def plain(words: str) -> str:
    """Text from a file, safe inside Markdown: no link, image, HTML or formula comes alive."""
    words = words.replace("://", ":\u2060//").replace("www.", "www\u2060.")  # else a bare address becomes a link
    entities = {"<": "&lt;", ">": "&gt;", ":": "&#58;"}
    return "".join(entities.get(c, f"\\{c}" if c in "\\`*_{}[]()#+!|$~" else c) for c in words)


@contextmanager
def folded(label: str, key: str, *, expanded: bool = False, icon: str | None = None) -> Iterator[bool]:
    """An expander; yields whether to make its content, which a closed one need neither compute nor send."""
    if not LAZY:
        with st.expander(label, expanded=expanded, icon=icon):
            yield True
        return
    with st.expander(label, expanded=expanded, icon=icon, key=f"fs.fold.{key}", on_change="rerun") as inside:
        yield bool(inside.open)


@st.fragment
def fold(label: str, key: str, make: Callable[..., Any], *arguments: Any, expanded: bool = False,
         icon: str | None = None) -> None:
    """What ``make(*arguments)`` draws, folded under ``label``; opening it draws that and nothing around it."""
    with folded(label, key, expanded=expanded, icon=icon) as open_, guarded():
        if open_:
            make(*arguments)


def error(what: str, remedy: str = "", detail: str = "") -> None:
    """An error: what it is, what to do about it, and for whoever wants to dig, the detail."""
    st.error(f"**{plain(what)}**" + (f"\n\n{remedy}" if remedy else ""), icon=":material/error:")
    if detail:
        with st.expander(text.DETAIL):
            st.code(detail[:20_000], language=None)


def missing(what: str, remedy: str = "", command: str = "", pages: tuple[str, ...] = ()) -> None:
    """An empty state: what is not there, why, how to get it, and which pages have something to show."""
    with st.container(border=True):
        st.markdown(f"**{plain(what)}**")
        if remedy:
            st.markdown(remedy)
        if command:
            st.code(command, language=None)
        with st.container(horizontal=True):
            for name in pages:
                st.page_link(f"profiler/dashboard/pages/{name}.py", icon=":material/arrow_forward:")


def no_source() -> None:
    missing(text.NO_SOURCE, text.NO_SOURCE_REMEDY, text.NO_SOURCE_COMMAND)


def no_shapes(source: Any, pages: tuple[str, ...]) -> None:
    """The empty state of pages about attention calls, for a source that names none."""
    missing(text.NO_SHAPES.format(source=source.label), text.NO_SHAPES_REMEDY, pages=pages)


def lacking(bundle: Bundle, purpose: str) -> None:
    """The command that collects what is lacking for "evidence", "roofline" or "occupancy"; nothing if complete."""
    from profiler import metrics

    work = bundle.launches[bundle.launches["tensor_flops"].ne(0).fillna(True)]  # else the peak would say nothing
    known = bool(work["tensor_peak_flops_per_s"].notna().all())
    columns = [name for name in metrics.PURPOSES[purpose] if not (known and name == "tensor_peak_flops_per_s")]
    command = metrics.advice(bundle, columns)
    if command:
        absent = [text.TITLES[name] for name in columns if bundle.launches[name].isna().any()]
        with st.container(border=True):
            st.markdown(text.LACKING.format(names=", ".join(absent)))
            st.code(command, language=None, wrap_lines=True)


def provenance(bundle: Bundle) -> str:
    """GPU, versions, clocks and date in one line, as far as they are known."""
    p: dict[str, Any] = bundle.profile
    gpu = (p.get("gpu") or {}).get("name") or _one(bundle, "device")
    known = [f"{label} {p[key]}" for key, label in text.PROVENANCE.items() if p.get(key)]
    return " · ".join([gpu or text.GPU_NOT_NAMED, *known, *([str(p["created"])[:10]] if p.get("created") else [])])


def _one(bundle: Bundle, column: str) -> str:
    return ", ".join(bundle.launches[column].dropna().unique()[:3]) if len(bundle.launches) else ""
