"""Export: the story in one's own order, then deck, slides, PDF, pictures, data and tables as one zip."""

import tempfile
from pathlib import Path

import streamlit as st

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, charts, selectors, talk
from profiler.export import files, story
from profiler.figures import labels

st.title(text.EXPORT)
st.caption(text.EXPORT_LEAD)
view = selectors.choose(compare=False, need_shape=False)
if view is None:
    boxes.end()
plan = talk.of_view(view)
with st.spinner(text.TALK_DRAWING):
    ready = talk.tell(view.source, plan)
plan = talk.edited(plan, ready)
for why, topics in story.reasons(ready.left_out).items():
    st.caption(boxes.plain(f"{text.TALK_LEFT_OUT}: {'; '.join(topics)}. {labels.sentence(why).replace('`', '')}"))

with st.container(horizontal=True, vertical_alignment="center"):
    make = st.button(text.EXPORT_MAKE, type="primary", icon=":material/folder_zip:")
    st.page_link("profiler/dashboard/pages/present.py", label=text.PRESENT, icon=":material/slideshow:")
    kept_in = view.source.path if store.local() else None  # on a public server nobody writes into its profiles
    keep = kept_in is not None and st.button(text.EXPORT_KEEP, icon=":material/save:")
    if kept_in is None:
        st.download_button(text.EXPORT_TAKE, story.written(plan), story.STORY, "application/json", on_click="ignore",
                           icon=":material/download:", help=text.EXPORT_TAKE_HELP)
if keep and kept_in is not None:
    try:
        st.success(text.EXPORT_KEPT.format(file=story.save(plan, kept_in).name))
    except OSError as problem:
        boxes.error(text.EXPORT_NOT_KEPT, text.EXPORT_NOT_KEPT_REMEDY, str(problem.strerror))
if make:
    bar = st.progress(0.0)

    def told(what: str, done: int, total: int) -> None:
        bar.progress(done / total, text=what)

    with tempfile.TemporaryDirectory(prefix="flashscope-") as folder:
        made = files.export(view.bundle, Path(folder), plan, folder=view.source.path, theme=charts.theme(),
                            progress=told, story=talk.retold(view.source, plan, ready))
        content = made.zip.read_bytes()
    bar.empty()
    st.download_button(text.EXPORT_DOWNLOAD.format(count=len(made.made)), content, made.zip.name, "application/zip",
                       icon=":material/download:", on_click="ignore")
    for lack in made.missing:
        st.warning(boxes.plain(f"{lack['what']}: {lack['why']}.") + f" {lack['remedy']}", icon=":material/info:")
