"""What the visitor chose, kept in the query string: a link shows the same view.

Streamlit empties the query string when the page changes, so the choices also live in the session; each run ends with
`commit`, which writes those that the page used. A value in the link that does not exist gives the default and a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from profiler.dashboard import text

WISHES = "fs.wishes"    # name -> what the visitor last asked for
WRITTEN = "fs.written"  # the query string as this app last wrote it
USED = "fs.used"        # name -> value in effect in this run
FRESH = "fs.fresh"      # names whose value came with the link of this run
NOTES = "fs.notes"      # sentences to show above the page
LONGEST = 400           # characters of a parameter that are looked at
PAGE = "fs.page.now"    # the page of this run
DRAWN = "fs.drawn"      # key of a widget -> where and with which options it was drawn last
CAME_FROM = "fs.page"  # the page seen before the stage, by its address


def begin(page: str = "") -> None:
    """Start a run of ``page``: take over what the link says where it differs from what this app wrote."""
    session = st.session_state
    session[PAGE] = page
    written = session.get(WRITTEN, {})
    wishes = session.setdefault(WISHES, {})
    link = {name: value[:LONGEST] for name, value in st.query_params.to_dict().items()}
    fresh = {name for name, value in link.items() if written.get(name) != value}
    wishes.update({name: link[name] for name in fresh})
    session[FRESH], session[USED], session[NOTES] = fresh, {}, []


def commit() -> None:
    """End a run: the query string says what is on screen."""
    used = dict(st.session_state[USED])
    if st.query_params.to_dict() != used:
        st.query_params.from_dict(used)
    st.session_state[WRITTEN] = used


def wish(name: str) -> str | None:
    """What was asked for, not yet checked."""
    return st.session_state.get(WISHES, {}).get(name)


def put(name: str, value: str | None) -> None:
    """Ask for `value` from now on; None forgets it."""
    wishes = st.session_state.setdefault(WISHES, {})
    if value is None:
        wishes.pop(name, None)
    else:
        wishes[name] = value


def use(name: str, value: str) -> None:
    """Put `value` in the link of this view."""
    st.session_state.setdefault(USED, {})[name] = value


def note(sentence: str) -> None:
    """Say `sentence` above the page."""
    st.session_state.setdefault(NOTES, []).append(sentence)


def notes() -> list[str]:
    return list(dict.fromkeys(st.session_state.get(NOTES, [])))


def choose(name: str, options: Sequence[str], default: str) -> str:
    """The option in effect: the one asked for if it exists, else `default`, with a note if a link asked for it."""
    wanted = wish(name)
    value = wanted if wanted is not None and wanted in options else default
    if wanted is not None and wanted != value and name in st.session_state.get(FRESH, ()):
        note(text.BAD_PARAMETER.format(name=name, wanted=wanted[:60], shown=value))
    use(name, value)
    return value


def choose_several(name: str, options: Sequence[str], default: Sequence[str]) -> list[str]:
    """The same for a list, written with commas; unknown ones are left out and said, order is that of `options`."""
    wanted = wish(name)
    asked = [part for part in wanted.split(",") if part] if wanted is not None else list(default)
    values = [option for option in options if option in asked]
    unknown = [part for part in asked if part not in options]
    if unknown and name in st.session_state.get(FRESH, ()):
        shown = ", ".join(values) or text.NOTHING
        note(text.BAD_PARAMETER.format(name=name, wanted=", ".join(unknown)[:60], shown=shown))
    if wanted and not values:
        values = list(default)
    if wanted is not None:  # the default is long and needs no place in the link
        use(name, ",".join(values))
    return values


def _take(name: str, key: str) -> None:
    value = st.session_state[key]
    if value is not None:
        put(name, ",".join(value) if isinstance(value, (list, tuple)) else str(value))


def _seed(key: str, value: Any, options: Sequence[str] = ()) -> None:
    """Give the widget its value: only where it differs, so that a running change of the visitor stays, or where it is
    a new widget to Streamlit, on another page or with other options: that one would show its first option."""
    session = st.session_state
    drawn, now = session.setdefault(DRAWN, {}), (session.get(PAGE, ""), tuple(options))
    if session.get(key) != value or drawn.get(key) != now:
        session[key] = value
    drawn[key] = now


def select(
    label: str, name: str, options: Mapping[str, str], default: str | None = None,
    widget: Callable[..., Any] = st.selectbox, at: str = "", **more: Any,
) -> str:
    """One choice among `options` (value -> label), drawn by `widget` and held in the link as `name`.

    at: tells apart the places of a choice that is offered more than once on a page.
    """
    names = list(options)
    value = choose(name, names, default if default is not None and default in options else names[0])
    key = f"fs.widget.{name}" + (f".{at}" if at else "")
    _seed(key, value, list(options.values()))
    widget(label, names, key=key, format_func=lambda option: options.get(option, option),
           on_change=_take, args=(name, key), **more)
    return value


def select_several(
    label: str, name: str, options: Mapping[str, str], default: Sequence[str],
    widget: Callable[..., Any] = st.multiselect, **more: Any,
) -> list[str]:
    """Several choices among `options`, as `select`."""
    values = choose_several(name, list(options), default)
    key = f"fs.widget.{name}"
    _seed(key, values, list(options.values()))
    widget(label, list(options), key=key, format_func=lambda option: options.get(option, option),
           on_change=_take, args=(name, key), **more)
    return values


def said(name: str) -> str:
    """Free text held in the link, "" where there is none."""
    value = wish(name) or ""
    if value:
        use(name, value)
    return value


def words(label: str, name: str, **more: Any) -> str:
    """Free text held in the link."""
    value = said(name)
    key = f"fs.widget.{name}"
    _seed(key, value)
    st.text_input(label, key=key, on_change=_take, args=(name, key), **more)
    return value


def flag(label: str, name: str, default: bool = False, **more: Any) -> bool:
    """A switch held in the link."""
    value = choose(name, ("on", "off"), "on" if default else "off") == "on"
    key = f"fs.widget.{name}"
    _seed(key, value)
    st.toggle(label, key=key, on_change=_take_flag, args=(name, key), **more)
    return value


def _take_flag(name: str, key: str) -> None:
    put(name, "on" if st.session_state[key] else "off")
