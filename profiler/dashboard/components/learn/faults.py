"""The fault gallery: choose a mistake, see its code, what it produces, where it hides, how to find it."""

from __future__ import annotations

import numpy as np
import streamlit as st

from profiler.dashboard import state
from profiler.dashboard.components.learn import parts
from profiler.learn import faults
from profiler.learn.words import Words


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    key = state.select(words("choose"), "fault", {fault.key: words(fault.key) for fault in faults.FAULTS})
    fault = next(one for one in faults.FAULTS if one.key == key)
    st.subheader(words(key))
    st.markdown(words(f"{key}_what"))
    rows = [[f"**{words('shows')}**", *_case(words, fault, fault.shows)],
            [words("hides"), *(_case(words, fault, fault.hides) if fault.hides else [words("never"), "–", "–"])]]
    parts.table(["", words("input"), words("wrong"), words("right")], rows)
    left, right = st.columns(2)
    left.markdown(f"**{words('find')}**\n\n{words(f'{key}_find')}")
    right.markdown(f"**{words('said')}**\n\n{words(f'{key}_said')}")
    st.markdown(f"**{words('code')}**")
    st.code(faults.source(fault.code), language=None)
    with st.expander(words("code_right")):
        st.code(faults.source(faults.correct), language=None)
    st.markdown(f"**{words('summary')}**")
    parts.table([words("column_mistake"), words("wrong"), words("right")],
                [[words(one.key), *_case(words, one, one.shows)[1:]] for one in faults.FAULTS])


def _case(words: Words, fault: faults.Fault, arguments: faults.Arguments) -> list[str]:
    """The input in words, what the variant gives, and what is right."""
    _, k, v, scale, visible, block = arguments
    said = words("scores_values", scores=_list(k[:, 0]), values=_list(v[:, 0]), block=block)
    if not visible.all():
        said += words("hidden", keys=_list(np.flatnonzero(~visible[0]) + 1))
    if scale != 1:
        said += words("scaled", scale=f"{scale:g}")
    return [said, *(_value(faults.run(code, arguments)) for code in (fault.code, faults.correct))]


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{value:,g}".replace("-", "−") for value in values)


def _value(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.4f}"
