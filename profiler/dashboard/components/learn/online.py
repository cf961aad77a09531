"""Online softmax, stepped: the worked example first, then the reader's own numbers."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from profiler.dashboard import state
from profiler.dashboard.components import boxes, charts, tables
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_online, units
from profiler.learn import online
from profiler.learn.words import Words


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    st.latex(r"m' = \max(m,\, \max_j s_j) \qquad \alpha = e^{m - m'} \qquad l' = \alpha\, l + \sum_j e^{s_j - m'} "
             r"\qquad acc' = \alpha\, acc + \sum_j e^{s_j - m'} v_j \qquad O = acc / l")
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    with left:
        typed = state.words(words("scores"), "scores", help=words("scores_help"), placeholder="1, 2, 3, 0")
    with middle:
        typed_values = state.words(words("values"), "values", help=words("values_help"), placeholder="1, 2, 3, 4")
    with right:
        block = parts.slider(words("block"), "keys", range(1, 9), online.WORKED[2])
    scores, unknown = online.numbers(typed)
    values, unknown_values = online.numbers(typed_values)
    values = [v for v in values if math.isfinite(v)]
    if unknown + unknown_values:
        st.caption(words("unknown", words=boxes.plain(", ".join(unknown + unknown_values))))
    worked = not scores
    scores = scores or list(online.WORKED[0])
    if values and len(values) != len(scores):
        st.caption(words("length", scores=len(scores), values=len(values)))
    values = (values + [0.0] * len(scores))[:len(scores)] if values else [float(i + 1) for i in range(len(scores))]

    steps = online.walk(scores, values, block)
    m, total, output = online.at_once(scores, values)
    parts.figure(learn_online.terms(
        [step.terms for step in steps], [len(step.scores) for step in steps],
        [words("bar", block=i + 1) for i in range(len(steps))], words("axis"), _title(words, steps), words("subtitle"),
        common("foot"), charts.theme()), "online")
    tables.wrapped(pd.DataFrame([{
        words("step"): i + 1, words("state_scores"): ", ".join(map(_number, step.scores)), "m": _number(step.m),
        "α": f"{step.alpha:.4f}", "l": f"{step.l:.4f}", "acc": f"{step.acc:.4f}",
        words("output"): f"{step.output:.4f}"} for i, step in enumerate(steps)]), "steps")
    st.markdown(words("same", m=_number(m), l=f"{total:.4f}", output=f"{output:.4f}",
                      difference=units.number(abs(steps[-1].output - output), 2)))
    if worked and block == online.WORKED[2]:
        st.container(border=True).markdown(words("by_hand"))
    st.markdown(words("notice"))


def _title(words: Words, steps: list[online.Step]) -> str:
    last = f"{steps[-1].l:.4f}"
    if steps[-1].l == 0:
        return words("title_none")
    if len(steps) == 1:
        return words("title_one", l=last)
    raised = [i for i in range(1, len(steps)) if steps[i].m > steps[i - 1].m > -math.inf]
    if not raised:
        return words("title_stays", m=_number(steps[-1].m), l=last)
    at = raised[-1]
    return words("title_grows", block=at + 1, m=_number(steps[at].m), alpha=f"{steps[at].alpha:.4f}",
                 l=f"{steps[at].l:.4f}")


def _number(value: float) -> str:
    return "−∞" if value == -math.inf else f"{value:g}".replace("-", "−")
