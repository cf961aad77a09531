"""On-chip memory, block rows and the theorem's bytes, with measured points where the loaded profile has the shape."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import store
from profiler.dashboard.components import boxes, charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_sram, theorem, units
from profiler.learn import sram
from profiler.learn.words import Words
from profiler.model.theory import theorem2
from profiler.spec import AttentionShape

KIB = (32, 48, 64, 100, 128, 164, 192, 228)


def measured(bundle: Bundle, shape: AttentionShape) -> Mapping[int, float]:
    """Block rows -> bytes counted from L2 to the SMs on this shape. Keys in a block do not change them."""
    rows = theorem.frame(bundle, shape)
    rows = rows[rows["kind"].eq("measured") & rows["quantity"].eq("l2_to_sm") & rows["bytes"].gt(0)]
    return {int(m): float(b) for m, b in zip(rows["block_m"], rows["bytes"]) if m in sram.ROWS}


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    one, two, three, four, five = st.columns(5)
    with one:
        n = parts.slider(words("n"), "n", parts.POWERS[4:], 4096)
    with two:
        d = parts.slider(words("d"), "d", (32, 64, 128, 256), 64)
    with three:
        kib = parts.slider(words("sram"), "sram", KIB, 100)
    with four:
        bm = parts.slider(words("bm"), "rows", sram.ROWS, 64)
    with five:
        bn = parts.slider(words("bn"), "bn", (16, 32, 64, 128, 256), 128)
    shape = AttentionShape(1, 16, n, n, d)
    lines = [sram.moved(shape, m, bn) for m in sram.ROWS]
    now, half = sram.moved(shape, bm, bn), sram.moved(shape, 2 * bm, bn)
    largest, tiles = sram.largest_rows(kib << 10, bn, d), sram.tile_bytes(bm, bn, d)
    floor = sram.floor(shape)
    points: dict[int, float] = {}
    named: list[store.Source] = []
    for source in parts.sources():
        found = store.derive(source, measured, shape)
        if found.keys() - points.keys():
            named.append(source)
        points = {**found, **points}
    fits = words("fits_yes", largest=largest, sram=kib) if largest else words("fits_no", sram=kib)
    names = {name: words(name) for name in ("x", "y", "moved", "floor", "unfused", "fits", "measured")}
    parts.figure(learn_sram.blocks_and_bytes(
        sram.ROWS, lines, floor, sram.unfused(shape), bm, largest, points, names,
        words("title", bm=bm, moved=units.nbytes(now), half=units.nbytes(half)),
        words("subtitle", n=units.whole(n), d=d, bn=bn, fits=fits),
        parts.stamp(named, words("foot" if points else "foot_none")), charts.theme()), "sram")
    if points:
        st.caption(words("measured_note", source=boxes.plain(", ".join(s.label for s in named))))
    if tiles > kib << 10:
        st.warning(words("does_not_fit", bm=bm, need=units.nbytes(tiles), sram=units.nbytes(kib << 10)),
                   icon=":material/memory:")
    growth = theorem2(n, d, (kib << 10) // shape.element_bytes)
    parts.cards([
        (words("card_moved"), units.nbytes(now), words("moved_basis")),
        (words("card_floor"), units.nbytes(floor), words("floor_basis")),
        (words("card_tiles"), units.nbytes(tiles), words("tiles_basis")),
        (words("card_theorem"), units.times(growth.ratio),
         words("theorem_basis") if growth.applies else words("theorem_outside"))])
    st.markdown(words("notice"))
