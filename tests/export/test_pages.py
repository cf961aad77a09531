"""The app's Present and Export pages: what they start from, and the files they hand out."""

from __future__ import annotations

import json
import re

import pytest

from profiler.dashboard import text
from profiler.export import browser
from tests.dashboard.conftest import REPORTS, data, empty, open_page, recorded, upload, visit  # noqa: F401

CAUSAL = {"shape": "B1-H16-N8192-D64-bf16", "mask": "causal"}


def deck_of(app) -> dict:
    [frame] = app.get("iframe")
    return json.loads(re.search(r'<script id="deck" type="application/json">(.*?)</script>', frame.proto.srcdoc)[1])


def test_the_stage_shows_the_shape_and_the_screen_of_the_link(open_page):  # noqa: F811
    shown = deck_of(open_page("present", screen="theorem", **CAUSAL))
    assert shown["start"] == "?screen=theorem"
    notes = [note for screen in shown["screens"] for note in screen["figures"]["light"]["layout"]["annotations"]]
    heads = [note["text"] for note in notes if note.get("name") == "subtitle"]
    assert any("N = 8,192, D = 64, bf16, causal mask" in head.replace("<br>", " ") for head in heads)


def test_the_stage_opens_at_what_the_last_page_showed(data):  # noqa: F811
    app = visit("roofline")
    app.switch_page("profiler/dashboard/pages/present.py").run()
    assert deck_of(app)["start"] == "?screen=roofline"


def test_the_page_makes_the_files_and_says_what_is_missing(open_page, monkeypatch):  # noqa: F811
    monkeypatch.setattr(browser, "find", lambda: None)
    app = open_page("export", shape="B1-H16-N4096-D64-bf16")
    next(button for button in app.button if button.label == text.EXPORT_MAKE).click().run()
    assert not app.exception and not app.error
    assert len(app.get("download_button")) == 1
    assert [warning.value.split(" ")[0] for warning in app.warning] == ["pictures", "deck.pdf&#58;"]


@pytest.mark.parametrize("page", ["present", "export"])
def test_a_page_without_any_source_says_how_to_get_one(page, empty):  # noqa: F811
    app = visit(page)
    assert not app.exception and not app.error
    assert any(text.NO_SOURCE in m.value for m in app.markdown)


@pytest.mark.parametrize("page", ["present", "export"])
def test_a_page_on_an_added_report(page, data):  # noqa: F811
    app = upload(visit("launches"), REPORTS / "h100_five_kernels.ncu-rep")
    app.switch_page(f"profiler/dashboard/pages/{page}.py").run()
    assert not app.exception and not app.error
    if page == "present":
        assert [s["id"] for s in deck_of(app)["screens"]] == ["kernel_time", "kernel_bytes", "left_out"]
