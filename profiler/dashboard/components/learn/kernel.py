"""What one program does, as a sequence, and which program does it."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard import state
from profiler.dashboard.components import charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_flow
from profiler.learn import programs
from profiler.learn.words import Words

# from lane, to lane, key of the text, tensor: lanes are HBM and L2, shared memory, registers, Tensor Cores
STEPS = ((0, 1, "load_q", "Q"), (0, 1, "load_k", "K"), (1, 3, "dot", "Q"), (3, 2, "back", "S"), (2, 2, "softmax", "P"),
         (0, 1, "load_v", "V"), (2, 3, "rescale", "P"), (2, 2, "divide", "O"), (2, 0, "store", "O"))
LOOP = (1, 6)


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    lanes = [words(f"lane_{name}") for name in ("hbm", "shared", "registers", "tensor")]
    messages = [(a, b, words(key), tensor) for a, b, key, tensor in STEPS]
    parts.figure(learn_flow.sequence(lanes, messages, (*LOOP, words("loop")), words("flow_title"),
                                     words("flow_subtitle"), common("foot_drawn"), charts.theme()), "sequence")
    zero, one, two, three, four = st.columns([2, 1, 1, 1, 2])
    with zero:
        orders = {name: words(name) for name in programs.ORDERS}
        order = state.select(words("which"), "order", orders, "textbook", st.segmented_control)
    with one:
        batch = parts.slider(words("batch"), "batch", range(1, 4), 2)
    with two:
        heads = parts.slider(words("heads"), "heads", range(1, 5), 3)
    with three:
        blocks = parts.slider(words("blocks"), "blocks", range(1, 9), 4)
    table = programs.ORDERS[order](batch, heads, blocks)
    with four:
        pid = parts.slider(words("pid"), "pid", range(len(table)), min(5, len(table) - 1)) if len(table) > 1 else 0
    row = table[pid]
    labels = {"head": words.texts["cell_head"], "block": words.texts["cell_block"]}
    parts.figure(learn_flow.programs(
        table, pid, labels, words("title", pid=pid, **{k: row[k] for k in ("block", "head", "batch")}),
        words(f"subtitle_{order}"), common("foot_drawn"), charts.theme()), "programs")
    st.markdown(words("notice"))
