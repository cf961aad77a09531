"""The deck: nothing outside itself, every value of its figures in their CSV, and what a browser shows of it."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from profiler.export import deck, story
from profiler.figures import canvas, spreadsheet
from tests.dashboard.browser.serving import FLAGS, chromium

OUTSIDE = {"src", "href", "srcset", "data", "poster", "action", "background", "manifest", "ping"}


class Elements(HTMLParser):
    """Every element with its attributes, and the content of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self._in = ""

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._in = tag if tag in self.inside else ""
        if self._in:
            self.inside[tag].append("")

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in:
            self.inside[self._in][-1] += data


@pytest.fixture(scope="module")
def html(told) -> str:
    return deck.html(told)


@pytest.fixture(scope="module")
def elements(html) -> Elements:
    reader = Elements()
    reader.feed(html)
    return reader


def test_no_element_and_no_style_reaches_outside(elements):
    assert [(tag, attributes) for tag, attributes in elements.found if OUTSIDE & set(attributes)] == []
    assert {tag for tag, _ in elements.found} & {"link", "img", "iframe", "object", "embed", "base", "video"} == set()
    assert not [css for css in elements.inside["style"] if re.search(r"url\(|@import", css)]


def test_the_browser_is_told_to_refuse_the_outside(elements):
    policy = next(a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy and "*" not in policy


def test_plotly_is_inside_once_and_our_script_fetches_nothing(elements):
    library, data, ours = elements.inside["script"]
    assert library == deck.plotly() and "plotly.js v" in library[:200]
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket|https?://", ours)
    assert len(json.loads(data)["screens"]) > 9


def test_text_of_a_bundle_cannot_leave_its_script(bundle, told):
    from dataclasses import replace

    name = '</script><img src=x onerror=alert(1)><!--'
    screens = (replace(told.screens[0], notes=(name,)),)
    page = Elements()
    page.feed(deck.html(replace(told, screens=screens, bundle=replace(bundle, name=name))))
    assert "img" not in {tag for tag, _ in page.found}
    assert json.loads(page.inside["script"][1])["screens"][0]["notes"] == [name]


def drawn(figure) -> list[float]:
    """The values that marks stand for: bar lengths, and both coordinates of markers."""
    values: list[float] = []
    for trace in figure.data:
        if trace.type == "bar":
            values += [float(v) for v in (trace.x if trace.orientation == "h" else trace.y)]
        elif trace.type == "scatter" and "markers" in (trace.mode or ""):
            values += [float(v) for v in (*trace.x, *trace.y)]
    return values


def test_each_csv_holds_every_value_its_figure_draws(told):
    checked = 0
    for screen in told.screens:
        table = pd.read_csv(io.BytesIO(spreadsheet.csv(canvas.to_frame(screen.figure))))
        held = pd.concat([pd.to_numeric(table[c], errors="coerce") for c in table]).dropna()
        rows = table.groupby(["implementation", "stage"]) if "predicted_bytes" in table else None
        sums = [rows["predicted_bytes"].sum()] if rows is not None else []  # a hollow bar is the sum of its stage
        held = set(pd.concat([held, *sums]).astype(float).map(lambda v: float(f"{v:.12g}")))
        for value in drawn(screen.figure):
            assert float(f"{value:.12g}") in held, (screen.id, value)
            checked += 1
    assert checked > 60


def test_a_csv_cannot_run_in_a_spreadsheet():
    frame = pd.DataFrame({"kernel": ["=cmd()", "+1", "plain", None], "bytes": [-1.0, 2.0, 3.0, None]})
    assert spreadsheet.csv(frame).decode().splitlines() == ["kernel,bytes", "'=cmd(),-1.0", "'+1,2.0", "plain,3.0", ","]


@pytest.fixture(scope="module")
def page(html, tmp_path_factory):
    """The deck opened from disk in a browser without a network; requests and complaints beside it."""
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    file = tmp_path_factory.mktemp("deck") / "deck.html"
    file.write_text(html, encoding="utf-8")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        view = browser.new_context(viewport={"width": 1920, "height": 1080}, offline=True).new_page()
        view.asked, view.said, view.address = [], [], file.as_uri()
        view.on("request", lambda request: view.asked.append(request.url))
        view.on("console", lambda message: view.said.append(message.text))
        view.on("pageerror", lambda error: view.said.append(str(error)))
        view.goto(view.address)
        view.wait_for_function("document.body.dataset.at")
        yield view
        browser.close()


def at(page) -> str:
    page.wait_for_timeout(50)
    page.evaluate("busy")
    return page.evaluate("document.body.dataset.at")


@pytest.mark.browser
def test_keys_step_through_screens_and_reveals(page, told):
    first, second = told.screens[0].id, told.screens[1].id
    steps = page.evaluate("deck.screens[0].order.count")
    page.keyboard.press("Home")
    seen = [at(page)]
    for _ in range(steps + 1):
        page.keyboard.press("ArrowRight")
        seen.append(at(page))
    assert seen == [*(f"{first} {i}" for i in range(steps + 1)), f"{second} 0"]
    page.keyboard.press("ArrowLeft")
    assert at(page) == f"{first} {steps}"
    page.keyboard.press("End")
    assert at(page).split()[0] == told.screens[-1].id
    page.keyboard.press("Home")
    assert at(page) == f"{first} 0"


@pytest.mark.browser
def test_a_step_hides_what_comes_later(page):
    shown = "document.querySelectorAll('section.now .bars .point').length"
    number = page.evaluate("deck.screens.findIndex(s => s.id === 'bytes')")
    counts = []
    for step in range(page.evaluate(f"deck.screens[{number}].order.count") + 1):
        page.evaluate(f"show({number}, {step})")
        page.wait_for_timeout(50)
        counts.append(page.evaluate(shown))
    assert counts[0] == 0 and counts == sorted(counts) and len(set(counts)) == len(counts)


@pytest.mark.browser
def test_notes_theme_and_type(page):
    page.keyboard.press("n")
    assert page.locator("#notes").is_visible() and page.locator("#notes p").count() >= 1
    page.keyboard.press("n")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    at(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("t")
    at(page)
    small = page.evaluate("""Math.min(...[...document.querySelectorAll("section.now text, #bar")].map(
        e => parseFloat(getComputedStyle(e).fontSize)))""")
    assert small >= 18


@pytest.mark.browser
def test_the_deck_asks_for_nothing_and_complains_of_nothing(page):
    assert [url for url in page.asked if url.split("?")[0] != page.address] == []
    assert page.said == []


@pytest.mark.browser
def test_no_text_is_cut_or_covered_on_any_screen(page, told):
    from tests.figures.render import BOXES, TEXT, collisions

    query = BOXES.replace("document.querySelectorAll", "document.querySelector('section.now').querySelectorAll")
    for i, screen in enumerate(told.screens):
        page.evaluate(f"show({i}, 99)")
        page.wait_for_timeout(100)
        assert collisions([tuple(box) for box in page.evaluate(query, TEXT)], 1920, 1080) == [], screen.id


def test_the_frame_of_the_app_starts_where_it_is_told(told):
    page = Elements()
    page.feed(deck.html(told, start="?screen=theorem"))
    assert json.loads(page.inside["script"][1])["start"] == "?screen=theorem"


def test_the_last_screen_is_no_claim(told, doctored):
    again = story.tell(doctored("flash2", "dram_write_bytes", 2 * 536_870_912))
    assert again.screens[-1].claims == () and "Synthetic GPU" in str(again.screens[-1].figure.layout.annotations)
