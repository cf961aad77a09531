"""The backward pass: formulas, a trial in NumPy, and what each way keeps in memory."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components import charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_sizes, units
from profiler.learn import backward
from profiler.learn.words import Words
from profiler.spec import AttentionShape

LENGTHS = parts.POWERS[4:]
OPERANDS = {"S": "Q·Kᵀ", "dP": "dO·Vᵀ", "dV": "Pᵀ·dO", "dQ": "dS·K", "dK": "dSᵀ·Q"}


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    st.latex(r"S = \text{scale}\cdot QK^\top \qquad P = e^{S - \mathrm{LSE}} \qquad dP = dO\,V^\top \qquad "
             r"\Delta = \mathrm{rowsum}(dO \odot O)")
    st.latex(r"dV = P^\top dO \qquad dS = P \odot (dP - \Delta) \qquad dQ = \text{scale}\cdot dS\,K \qquad "
             r"dK = \text{scale}\cdot dS^\top Q")
    st.markdown(words("delta"))
    st.markdown(words("not_forward"))
    parts.table([words("matmul"), words("where"), words("kept_p"), words("recomputed")], [
        *([f"{name} = {operands}", words(f"use_{name.lower()}"),
           words("from_memory") if name == "S" else words("computed"),
           words("again") if name == "S" else words("computed")] for name, operands in OPERANDS.items()),
        [f"**{words('count')}**", "", "**4**", f"**{len(backward.MATMULS)}**"]])
    one, two, three = st.columns(3)
    with one:
        n = parts.slider(words("n"), "n", LENGTHS, 8192)
    with two:
        d = parts.slider(words("d"), "d", (32, 64, 128, 256), 64)
    with three:
        calls = parts.slider(words("calls"), "calls", (1, 8, 16, 32, 64, 256, 1024), 16)
    kept = [backward.kept(AttentionShape(1, calls, length, length, d)) for length in LENGTHS]
    now = kept[LENGTHS.index(n)]
    lines = {words("naive"): ([float(k.naive) for k in kept], "P"),
             words("flash"): ([float(k.flash) for k in kept], "O")}
    title = words("title", n=units.whole(n), naive=units.nbytes(now.naive), flash=units.nbytes(now.flash),
                  ratio=units.times(now.ratio))
    parts.figure(learn_sizes.over_n(lines, LENGTHS, n, words("axis"), title,
                                    words("subtitle", d=d, calls=units.whole(calls)), common("foot_derived"),
                                    charts.theme()), "backward")
    trial = backward.trial(64, d, 16)
    st.markdown(words("trial", n=64, d=d, gradients=units.number(trial.gradients, 2),
                      delta=units.number(trial.delta, 2), factor=units.number(d**0.5)))
    st.markdown(words("notice"))
