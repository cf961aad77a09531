"""Sources with a row that cannot be, or with names that nobody knows: what can be shown is, and what lacks is said."""

from __future__ import annotations

import pytest
import streamlit as st

from profiler import bundle
from profiler.parse import unverified
from tests import synthetic
from tests.dashboard.conftest import charts, visit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    one = synthetic.bundle(lengths=(512, 4096), masks=("full",), head_dims=(64,))
    one.launches.loc[3, "mask"] = "diagonal"
    bundle.write(one, folder / "one-bad-row")
    unknown = synthetic.bundle(lengths=(512, 4096), masks=("full",), head_dims=(64,))
    for frame in (unknown.launches, unknown.timings):
        frame["implementation"] = "their_" + frame["implementation"]
        frame["config_id"] = "their_" + frame["config_id"]
    bundle.write(unknown, folder / "unknown-names")
    return folder


@pytest.fixture(autouse=True)
def data(folder, monkeypatch):
    monkeypatch.setenv("FLASHSCOPE_DATA", str(folder))
    st.cache_resource.clear()


@pytest.mark.parametrize("page", ["evidence", "roofline", "memory_io", "occupancy", "launches", "compare"])
def test_a_bad_row_is_named_and_the_rest_is_shown(page):
    app = visit(page, source="one-bad-row", sources="one-bad-row,unknown-names")
    assert not app.exception and not app.error
    said = [note.value for note in app.info if "diagonal" in note.value]
    assert len(said) == 1 and "one row cannot be" in said[0] and "Row 3 of launches" in said[0]
    if page == "evidence":
        assert "fewer HBM bytes than naive" in app.title[0].value, "the other length is whole"
    if page == "launches":
        assert len(app.dataframe[0].value) == 2 * 9 - 4, "naive's four of one length are apart"


def test_unknown_names_have_no_headline_and_everything_else():
    app = visit("evidence", source="unknown-names")
    assert not app.exception and not app.error
    words = " ".join(one.value for one in app.markdown)
    assert "No headline for B1 H16 N4096" in words and "their\\_flash2" in words and "Names whose passes" in words
    for page in ("roofline", "occupancy", "scaling"):
        app = visit(page, source="unknown-names")
        assert not app.exception and not app.error
        assert len(charts(app)) == 1, page


def test_the_forms_that_nobody_could_check_are_listed():
    words = " ".join(one.value for one in visit("about_data").markdown).replace("\\", "")
    assert all(form in words for form in unverified.FORMS)
