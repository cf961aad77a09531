"""Every page on a source that holds the Hopper kernel, in steps and whole: no exception, no empty chart."""

import pytest
import streamlit as st

from profiler import bundle
from profiler.dashboard import text
from tests import ladder
from tests.dashboard.conftest import visit
from tests.dashboard.test_pages import assert_sound, charts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ladder")
    bundle.write(ladder.bundle(), folder / "ladder")
    return folder


@pytest.fixture
def source(folder, monkeypatch):
    monkeypatch.setenv("FLASHSCOPE_DATA", str(folder))
    st.cache_resource.clear()


def titles(app):
    return [note["text"].replace("<br>", " ") for figure in charts(app)
            for note in figure["layout"]["annotations"] if note.get("name") == "title"]


@pytest.mark.parametrize("page, link, said", [
    ("evidence", {}, "17.4"), ("evidence", {"mask": "causal"}, "268"), ("roofline", {}, "65.0× fewer bytes"),
    ("roofline", {"level": "l2"}, "fewer bytes"), ("memory_io", {"show": "parity"}, "All 24 predictions"),
    ("memory_io", {"show": "theorem"}, "128 rows"), ("memory_io", {"show": "pyramid"}, "FlashAttention (Hopper)"),
    ("memory_io", {"show": "what_if"}, ""), ("occupancy", {}, "77.0%"), ("scaling", {}, "12.0× faster"),
    ("scaling", {"axis": "shape"}, "12.0×"), ("tuning", {}, "1.60× the FLOP/s"), ("launches", {}, None)], ids=str)
def test_every_page(page, link, said, source):
    app = visit(page, **link)
    assert_sound(app)
    assert said is None or any(said in title.replace("\u00a0", " ") for title in titles(app))


def test_tuning_says_how_to_record_the_steps_where_no_source_has_them(open_page, monkeypatch):
    from profiler.dashboard.components import boxes

    monkeypatch.setattr(boxes, "LAZY", False)  # what is folded is on the page then
    app = open_page("tuning")
    assert_sound(app)
    assert any(text.NO_LADDER_COMMAND in code.value for code in app.code)
