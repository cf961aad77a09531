"""The story of what is on screen: for the stage and for export, with the source, shape and mask of the last page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import streamlit as st

from profiler.bundle import Bundle
from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes, selectors
from profiler.errors import FlashScopeError
from profiler.export import arrange, story
from profiler.export.story import Pick, Plan, Story
from profiler.spec import AttentionShape

WIDTHS = {text.TALK_SHOW: 76, text.TALK_ORDER: 82, text.TALK_TITLE: 755}  # pixels: titles in full on 1280
FIRST = {"roofline": "roofline", "memory-io": "theorem", "occupancy": "occupancy", "scaling": "generations",
         "": "again", "launches": "launches"}  # page -> the screen the stage opens at


def told(bundle: Bundle, plan: Plan, folder: str) -> Story:
    """The story by ``plan``; folder: where the bundle lies, "" for an added file."""
    return story.tell(bundle, plan, folder=Path(folder) if folder else None)


def tell(source: store.Source, plan: Plan) -> Story:
    """The same, kept for the next look."""
    return store.derive(source, told, plan, str(source.path or ""))


def retold(source: store.Source, plan: Plan, ready: Story) -> Story:
    """``ready`` as ``plan`` wants it; drawn anew only where the plan asks for what ``ready`` does not hold."""
    return arrange.arranged(ready, plan) or tell(source, plan)


def saved(source: store.Source) -> Plan:
    """The story saved in the bundle; the ready one where there is none, and where it is damaged a note beside it."""
    file = source.path and source.path / story.STORY
    if not file or not file.is_file():
        return Plan()
    try:
        return story.load(file)
    except FlashScopeError as problem:
        state.note(problem.what)
        return Plan()


def wished() -> tuple[store.Source, Plan] | None:
    """The source and the shape in the link, no control drawn; None, and the empty state drawn, without any source."""
    everything = store.sources()
    if not everything:
        boxes.no_source()
        return None
    recorded = [key for key, s in everything.items() if s.origin == "recorded"]
    source = everything[state.choose(store.SOURCE_PARAMETER, list(everything), (recorded or list(everything))[0])]
    table = store.derive(source, selectors.configurations)
    wish, mask = state.wish("shape"), state.wish("mask") or "full"
    rows = table[table["key"] == wish] if wish and len(table) else table.head(0)
    if rows.empty:
        return source, saved(source)
    state.use("shape", str(wish))
    rows = rows[rows["mask"] == mask] if rows["mask"].eq(mask).any() else rows
    if rows["mask"].iloc[0] == mask:
        state.use("mask", mask)
    return source, replace(saved(source), shape=_shape(rows).label())


def frame(html: str) -> None:
    """Show ``html`` in a frame of its own."""
    if hasattr(st, "iframe"):
        st.iframe(html, height=1080)
        return
    from streamlit.components import v1  # older Streamlit has no st.iframe

    v1.html(html, height=1080)


def of_view(view: selectors.View) -> Plan:
    """The saved story on the shape chosen above."""
    return replace(saved(view.source), shape=view.shape.label() if view.shape else "")


def _shape(rows: pd.DataFrame) -> AttentionShape:
    r = rows.iloc[0]
    return AttentionShape(int(r["batch"]), int(r["heads"]), int(r["nq"]), int(r["nk"]), int(r["head_dim"]),
                          int(r["kv_heads"]), str(r["dtype"]), str(r["mask"]))


def edited(plan: Plan, ready: Story) -> Plan:
    """A table of the screens to reorder, drop and retitle; the plan it says. An emptied title is what it finds."""
    picks = plan.picks or tuple(
        Pick(s.id) for s in ready.screens if s.id not in (story.LEFT_OUT, story.LOOK))
    known = {s.id: s for s in ready.screens}
    titles = [p.title or (known[p.id].title if p.id in known else f"{p.id}: {text.TALK_DROPPED}") for p in picks]
    rows = pd.DataFrame({text.TALK_SHOW: True, text.TALK_ORDER: range(1, len(picks) + 1), text.TALK_TITLE: titles})
    chosen = st.data_editor(
        rows, hide_index=True, key="talk.story", num_rows="fixed", height=33 * len(rows) + 36,
        column_config={name: st.column_config.Column(width=width) for name, width in WIDTHS.items()})
    kept = chosen[chosen[text.TALK_SHOW].astype(bool)].sort_values(text.TALK_ORDER, kind="stable")
    said = {i: str(title or "").strip()[:200] for i, title in kept[text.TALK_TITLE].items()}
    return replace(plan, picks=tuple(
        replace(picks[i], title=picks[i].title if title == titles[i] else title) for i, title in said.items()))
