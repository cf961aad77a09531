"""A source that changes one thing at a time: the Tuning page draws what each is worth, and no heatmap of one cell."""

import pytest
import streamlit as st

from profiler import bundle
from tests.dashboard.conftest import visit
from tests.dashboard.test_pages import assert_sound, charts
from tests.figures.test_switches import ABLATION


@pytest.fixture
def ablation(tmp_path, monkeypatch):
    bundle.write(ABLATION, tmp_path / "ablation")
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    st.cache_resource.clear()


def test_the_tuning_page_draws_the_switches_alone(ablation):
    app = visit("tuning")
    assert_sound(app)
    titles = [note["text"] for figure in charts(app) for note in figure["layout"]["annotations"]
              if note.get("name") == "title"]
    assert len(titles) == 1 and "no TMA descriptors: +25.0% time" in titles[0].replace("<br>", " ")
