"""What is handed out: CSV that no spreadsheet runs, file names that every system takes, text that stays text."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from profiler.dashboard import store, text
from profiler.dashboard.components import boxes, charts, plot, tables
from profiler.dashboard.components.learn import parts
from profiler.figures import ready, style
from profiler.figures.spreadsheet import csv
from tests.dashboard.conftest import sent_charts, visit


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK(\"http://x\")"])
def test_a_formula_in_a_name_stays_text(cell):
    written = csv(pd.DataFrame({"kernel": [cell], cell: [-1.5]}))
    back = pd.read_csv(io.BytesIO(written), dtype=str)
    kept = "'" + cell.replace("\r", " ")
    assert back["kernel"][0] == kept
    assert back.columns[1] == kept
    assert back.iloc[0, 1] == "-1.5"


def test_numbers_and_plain_names_are_untouched():
    names = pd.array(["a<b>, \"c\"", None], "string")
    frame = pd.DataFrame({"kernel": names, "ns": pd.array([-3968, None], "Float64")})
    back = pd.read_csv(io.BytesIO(csv(frame)))
    assert back["kernel"][0] == "a<b>, \"c\""
    assert back["ns"][0] == -3968 and back["ns"].isna()[1]


@pytest.mark.parametrize("words, name", [
    ("h100: a/b\\c", "h100-a-b-c"), ("../../etc/passwd", "etc-passwd"), ("…", "flashscope")])
def test_file_names(words, name):
    assert charts.filename(words) == name


def test_markdown_in_a_name_stays_text():
    said = boxes.plain("[x](http://evil) <img src=x> **b** $x$ :red[y]")
    assert "<" not in said and "](" not in said and "**" not in said and ":red[" not in said
    assert "http://" not in boxes.plain("http://evil.example") and "www." not in boxes.plain("www.evil.example")


def test_search_wants_every_word_anywhere():
    frame = pd.DataFrame({"kernel": ["softmax_kernel", "matmul.kernel", None], "range": ["naive", "naive", "flash"]})
    assert list(tables.search(frame, "NAIVE soft", ("kernel", "range")).index) == [0]
    assert list(tables.search(frame, "flash", ("kernel", "range")).index) == [2]
    assert list(tables.search(frame, "l.k", ("kernel", "range")).index) == [1]
    assert len(tables.search(frame, "", ("kernel",))) == 3


def test_a_figure_is_sent_as_it_looks_and_so_that_plotly_need_not_draw_it_twice():
    figure = go.Figure(layout={
        "template": style.template("dark"), "meta": {"x": 1}, "height": 300, "xaxis2": {"range": [0, 1]},
        "font": {"size": 9}, "hovermode": "x"})
    figure.add_scatter(x=np.array([1.0, 2.0]), y=[1, np.nan], mode="markers")
    figure.add_bar(x=[1], y=[2], xaxis="x2")
    sent = ready.ready(figure)
    spec = json.loads(pio.to_json(sent.to_dict(), validate=False))
    layout, (dots, bar) = spec["layout"], spec["data"]
    assert "template" not in layout and "meta" not in layout
    assert layout["paper_bgcolor"] == "#0E1116" and layout["font"] == {
        "family": style.FONT, "size": 9, "color": "#E8EBEF"}
    assert {layout[name]["gridcolor"] for name in ("xaxis", "xaxis2", "yaxis")} == {"#232A32"}
    assert layout["xaxis2"]["range"] == [0, 1] and layout["hovermode"] == "x"
    assert dots["x"] == [1.0, 2.0] and dots["y"] == [1, None] and dots["cliponaxis"] is False
    assert dots["unselected"] == bar["unselected"] == {"marker": {"opacity": 1}}
    other = go.Figure(figure)
    other.data[1].y = [3]
    assert ready.ready(figure).to_dict() == sent.to_dict()
    assert ready.ready(other).to_dict()["layout"]["datarevision"] != sent.to_dict()["layout"]["datarevision"]


@pytest.mark.parametrize("own", [True, False])
def test_a_figure_is_drawn_by_our_component_or_where_streamlit_is_older_by_its_own(own, shipped, monkeypatch):
    monkeypatch.setattr(plot, "OWN", own)
    app = visit("scaling")
    assert not app.exception and not app.error
    assert (len(sent_charts(app)), len(app.get("plotly_chart"))) == ((1, 0) if own else (0, 1))
    if own:
        sent = sent_charts(app)[0]
        spec = json.loads(sent["spec"])
        title = next(note["text"] for note in spec["layout"]["annotations"] if note["name"] == "title")
        assert sent["alt"] == title.replace("<br>", " ").removeprefix("<b>").removesuffix("</b>")
        assert sent["revision"] == spec["layout"]["datarevision"] and sent["picture"]["format"] == "svg"


def test_a_figure_s_name_for_screen_readers_is_plain(shipped):
    names = [sent["alt"] for sent in sent_charts(visit("memory_io"))]
    assert len(names) == 1 and "<" not in names[0] and "N^" in names[0]


def test_a_click_counts_for_the_figure_it_was_made_on(monkeypatch):
    figure = ready.ready(go.Figure(layout={"height": 300}).add_scatter(x=[1], y=[2]))
    now = figure.to_dict()["layout"]["datarevision"]
    for drawn, launch in ((now, 7), (now + 1, None)):
        state = {"launch": {"launch": 7, "drawn": drawn}}
        monkeypatch.setattr(plot, "_component", lambda state=state: lambda **sent: state)
        assert plot.show(figure, key="x", alt="", picture={}) == launch


def pictures(app) -> list[str]:
    """What the page offers as a picture below its figures, as a screen reader says it."""
    return [words for one in app.get("html") for words in re.findall(r'data-picture="\w+" aria-label="(.*?)"',
                                                                     one.proto.body)]


@pytest.mark.parametrize("page, link, figures, words", [
    ("scaling", {}, 1, text.PICTURE), ("learn", {}, 1, text.PICTURE), ("learn", {"chapter": "kernel"}, 2, text.PICTURE),
    ("learn", {"chapter": "sram", "lang": "zh"}, 1, "下载图片"), ("learn", {"chapter": "faults"}, 0, "")],
    ids=lambda one: "-".join(one.values()) if isinstance(one, dict) else None)
def test_every_figure_has_its_picture_to_download_in_two_forms(page, link, figures, words, shipped):
    app = visit(page, **link)
    sent = [one["picture"] for one in sent_charts(app)]
    assert pictures(app) == [f"{words} (SVG)", f"{words} (PNG)"] * figures and len(sent) == figures
    assert all(one["width"] == 1200 and one["height"] >= 300 for one in sent), "else the window's width would do"
    assert len({one["filename"] for one in sent}) == figures


def foot(app) -> str:
    notes = json.loads(sent_charts(app)[0]["spec"])["layout"]["annotations"]
    return next(note["text"] for note in notes if note["name"] == "foot").replace("<br>", " ").replace("\u00a0", " ")


def test_a_picture_of_the_learn_page_says_where_its_numbers_come_from(shipped):
    recorded = json.loads((shipped / "h200-evidence" / "profile.json").read_text())
    said = foot(visit("learn", chapter="sram"))
    assert said.startswith("NVIDIA H200 · ncu ") and f"driver {recorded['driver']}" in said
    assert said.endswith(f"{recorded['created'][:10]} · line predicted by the IO model, squares measured")
    assert foot(visit("learn", chapter="sram", d="256")) == "predicted by the IO model; no measurement of this " \
        "shape is loaded"
    assert foot(visit("learn")) == "computed here with NumPy in float64"


def test_sources_that_differ_stamp_a_figure_with_what_they_agree_on(monkeypatch):
    gpu = {"name": "GPU A", "power_limit_w": 1}
    both = [{"gpu": gpu, "driver": "1", "torch": "2", "created": "2026-01-02T03:04"},
            {"gpu": {"name": "GPU B"}, "driver": "1", "torch": "3", "created": "2026-01-02T05:06"}]
    monkeypatch.setattr(store, "load", lambda profile: SimpleNamespace(profile=profile))
    assert parts.stamp(both, "x").replace("\u00a0", " ") == "GPU A and GPU B · driver 1 · 2026-01-02 · x"
    assert parts.stamp(both[:1], "x").replace("\u00a0", " ") == "GPU A · driver 1 · torch 2 · 2026-01-02 · x"
    assert parts.stamp([], "x") == "x"
