"""Number cards: a value, what it is, and how it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from profiler.dashboard import text


@dataclass(frozen=True)
class Card:
    """value: formatted, with its unit. kind: measured, derived, predicted or missing. basis: what it comes from."""

    label: str
    value: str
    kind: str
    basis: str = ""
    help: str = ""


def row(cards: Sequence[Card]) -> None:
    """Cards side by side, each with its kind in small type."""
    for column, card in zip(st.columns(len(cards)), cards):
        with column.container(border=True, height="stretch"):
            st.metric(card.label, card.value, help=card.help or None)
            st.caption(f"{text.KINDS[card.kind]}{': ' + card.basis if card.basis else ''}")
