"""A source of windows, grouped heads and packed sequences opens on every page that draws what was timed."""

import pytest
import streamlit as st

from profiler import bundle
from tests.dashboard.conftest import charts, visit
from tests.dashboard.test_pages import assert_sound
from tests.figures.test_shapes import SHAPES


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    bundle.write(SHAPES, tmp_path / "shapes")
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    st.cache_resource.clear()


@pytest.mark.parametrize("page", ["scaling", "evidence", "compare", "tuning", "roofline", "about_data"])
def test_every_page_opens(shapes, page):
    app = visit(page, source="shapes")
    assert_sound(app)
    assert not app.error
    assert len(charts(app)) == (page == "scaling")
