"""The causal block map with sliders."""

from __future__ import annotations

import streamlit as st

from profiler.dashboard.components import charts
from profiler.dashboard.components.learn import parts
from profiler.figures import learn_blocks, units
from profiler.learn.words import Words
from profiler.model import count_blocks, visible_pairs
from profiler.model.counts import ceil_div, rows_that_see
from profiler.spec import Mask

LENGTHS = (16, 32, 64, 113, 128, 203, 256, 384, 512, 799, 1024, 1536, 2048)
BLOCKS = (16, 32, 64, 128, 256)


def draw(words: Words, common: Words) -> None:
    st.markdown(words("lead"))
    one, two, three, four = st.columns(4)
    with one:
        nq = parts.slider(words("nq"), "nq", LENGTHS, 512)
    with two:
        nk = parts.slider(words("nk"), "nk", LENGTHS, 512)
    with three:
        bm = parts.slider(words("bm"), "bm", BLOCKS, 64)
    with four:
        bn = parts.slider(words("bn"), "bn", BLOCKS, 64)
    mask = Mask.parse("causal")
    blocks, visible = count_blocks(mask, nq, nk, bm, bn), visible_pairs(mask, nq, nk)
    names = {name: words(name) for name in ("full", "crossing", "skipped", "keys", "queries")}
    title = words("title", all=units.whole(blocks.visited + blocks.skipped), full=units.whole(blocks.full),
                  crossing=units.whole(blocks.crossing), skipped=units.whole(blocks.skipped))
    parts.figure(learn_blocks.block_map(
        mask, nq, nk, bm, bn, names, title if blocks.visited else words("title_nothing"),
        words("subtitle", nq=nq, nk=nk, bm=bm, bn=bn), common("foot_derived"), charts.theme()), "blocks")
    pairs, computed = nq * nk, blocks.computed_pairs
    wasted = 100 * (1 - visible / computed) if computed else 0
    parts.cards([
        (words("card_visible"), units.whole(visible), words("of_matrix", share=units.percent(100 * visible / pairs))),
        (words("card_computed"), units.whole(computed), words("wasted", share=units.percent(wasted))),
        (words("card_share"), units.percent(100 * computed / pairs), words("not_half")),
        (words("card_rows"), units.whole(blocks.key_rows),
         words("rows_basis", full=units.whole(ceil_div(nq, bm) * nk))),
    ])
    if blind := nq - rows_that_see(mask, nq, nk):
        st.container(border=True).markdown(words("blind", count=units.whole(blind)))
    st.markdown(words("notice"))
