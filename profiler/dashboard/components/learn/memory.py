"""How large S and P are, and the pyramid of memory of the loaded GPU."""

from __future__ import annotations

import streamlit as st

from profiler import evidence
from profiler.dashboard import state, store
from profiler.dashboard.components import charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_sizes, units
from profiler.learn import sizes
from profiler.learn.words import Words
from profiler.spec import AttentionShape


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    one, two, three, four = st.columns([2, 2, 2, 3])
    with one:
        n = parts.slider(words("n"), "n", parts.POWERS[4:], 8192)
    with two:
        d = parts.slider(words("d"), "d", (32, 64, 128, 256), 64)
    with three:
        calls = parts.slider(words("calls"), "calls", (1, 8, 16, 32, 64, 256, 1024), 16)
    with four:
        types = {name: name for name in ("fp32", "fp16", "bf16", "fp8")}
        dtype = state.select(words("dtype"), "dtype", types, "fp16", st.segmented_control)
    shape = AttentionShape(1, calls, n, n, d, dtype=dtype)
    size = sizes.sizes(shape)
    source = next(iter(parts.sources()), None)
    bundle = store.load(source) if source else None
    levels = store.derive(source, evidence.pyramid) if source else []
    name = parts.gpu_name(bundle) if bundle else ""
    of_gpu = f" ({name})" if name else ""
    bars = [(words("matrix"), size.matrix, "S"), (words("probabilities"), size.matrix, "P"),
            (words("one_head"), size.one_head, "S"), (words("tensors"), size.tensors, "Q"),
            (words("statistics"), size.lse, "LSE")]
    called = {"registers": words("registers"), "shared memory": words("shared")}
    capacities = {called.get(v.name, v.name): v.capacity_bytes for v in levels if v.capacity_bytes}
    parts.figure(learn_sizes.beside_levels(
        bars, capacities, words("axis"),
        words("title", matrix=units.nbytes(size.matrix), ratio=units.times(size.ratio)),
        words("subtitle", n=units.whole(n), d=d, calls=units.whole(calls), dtype=dtype, gpu=of_gpu),
        parts.stamp([source] if source and levels else [], common("foot_derived")), charts.theme()), "memory")
    st.markdown(words("exact", lse=units.nbytes(size.lse)))
    st.subheader(words("pyramid_title"))
    if not levels:
        st.markdown(words("pyramid_missing"))
    else:
        st.markdown(words("pyramid", gpu=of_gpu))
        known = [(units.nbytes(v.capacity_bytes) if v.capacity_bytes else words("absent"),
                  units.bandwidth(v.bytes_per_s) if v.bytes_per_s else words("absent")) for v in levels]
        parts.table([words("level"), words("capacity"), words("bandwidth"), words("how")],
                    [[called.get(v.name, v.name), *two, v.source or v.missing] for v, two in zip(levels, known)])
        speed = {level.name: level.bytes_per_s for level in levels}
        shared, hbm = speed.get("shared memory"), speed.get("HBM")
        if shared and hbm:
            st.markdown(words("ratio", ratio=units.times(shared / hbm)))
    st.markdown(words("notice"))
