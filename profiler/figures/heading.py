"""What stands above a figure, without drawing it: choosing among figures needs their findings and not their marks."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_ALONE: ContextVar[bool] = ContextVar("heading alone", default=False)


class Heading(Exception):
    """Ends a drawing at its head. empty: the figure would only say why there is nothing to draw."""

    def __init__(self, title: str, subtitle: str, empty: bool) -> None:
        super().__init__(title)
        self.title, self.subtitle, self.empty = title, subtitle, empty


def of(draw: Callable[[], Any]) -> Heading:
    """The heading of the figure that ``draw`` draws with ``canvas.new`` or ``canvas.unavailable``."""
    before = _ALONE.set(True)
    try:
        draw()
    except Heading as found:
        return found
    finally:
        _ALONE.reset(before)
    raise ValueError(f"{draw} drew without a heading")


def reached(title: str, subtitle: str, *, empty: bool = False) -> None:
    """Called by a drawing that knows its heading: goes no further where that is all that is asked for."""
    if _ALONE.get():
        raise Heading(title, subtitle, empty)
