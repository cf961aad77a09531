"""The main way of each user through the app, in a real browser: someone who speaks, who visits, who profiles."""

from __future__ import annotations

import html
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from profiler.dashboard import text
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled
from tests.dashboard.conftest import REPORTS
from tests.dashboard.test_run import STAND_IN, let, say

pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not chromium(), reason="no Chromium on PATH (set CHROMIUM to one)")]
WINDOW = {"width": 1280, "height": 720}
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as play:
        one = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield one
        one.close()


@pytest.fixture(scope="module")
def address(recorded):
    with server(recorded) as url:
        yield url


@pytest.fixture
def page(browser):
    one = browser.new_page(viewport=WINDOW)
    one.set_default_timeout(PATIENCE_MS)
    yield one
    one.close()


def test_a_speaker_chooses_a_shape_sends_the_link_and_takes_picture_and_data(page, browser, address, tmp_path):
    page.goto(address)
    settled(page)
    first = page.get_by_role("heading", level=1).inner_text()
    shape = page.locator("[data-testid=stSelectbox]", has_text=text.SHAPE)
    shape.locator("input, [role=combobox]").first.click()
    options = page.get_by_role("option")
    options.first.wait_for()
    now = shape.inner_text()
    other = next(one for one in options.all() if one.inner_text() not in now)
    other.click()
    page.wait_for_function("was => document.querySelector('h1')?.innerText !== was", arg=first)
    page.wait_for_url("**shape=**")
    settled(page)
    second = page.get_by_role("heading", level=1).inner_text()

    listener = browser.new_context(viewport=WINDOW).new_page()
    listener.goto(page.url)
    settled(listener)
    assert listener.get_by_role("heading", level=1).inner_text() == second != first
    listener.context.close()

    with page.expect_download() as download:
        page.get_by_role("button", name=text.DOWNLOAD_DATA).first.click()
    table = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert table[0].startswith("implementation,stage,") and len(table) > 5
    with page.expect_download() as download:
        page.get_by_role("button", name=f"{text.PICTURE} (SVG)").first.click()
    picture = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename.endswith(".svg") and picture.lstrip().startswith("<svg")
    assert 'width="1200"' in picture and "Synthetic GPU" in picture, "without the line that says where it comes from"


def test_a_chosen_shape_stays_in_its_box_from_page_to_page(page, address):
    page.goto(address)
    settled(page)
    box = page.locator("[data-testid=stSelectbox]", has_text=text.SHAPE).locator("input").first
    box.click()
    page.get_by_role("option").last.click()
    page.wait_for_timeout(300)
    settled(page)
    chosen = box.input_value()
    for following in (text.ROOFLINE, text.OCCUPANCY, text.EVIDENCE, text.ROOFLINE):
        page.get_by_role("link", name=following, exact=True).first.click()
        settled(page)
        page.wait_for_timeout(300)
        assert box.input_value() == chosen, following


def test_one_step_back_leads_to_the_page_before_and_another_to_the_choice_before(page, address):
    """The browser's history: one entry for the visit, one for a choice, one for each page, whichever link opened it."""
    def settle(path: str, words: str = "") -> None:
        page.wait_for_url(lambda url: url.startswith(f"{address}/{path}?") and words in url)
        page.wait_for_timeout(300)
        settled(page)

    page.goto(address)
    settle("")
    visit = page.evaluate("history.length")
    page.locator("[data-testid=stSidebarNav]").get_by_role("link", name=text.ROOFLINE, exact=True).click()
    settle("roofline", "level=dram")
    page.get_by_role("radio", name="L2").first.click()
    settle("roofline", "level=l2")
    page.locator("[data-testid=stMain] [data-testid=stPageLink] a").last.click()
    settle("memory-io")
    assert page.evaluate("history.length") == visit + 3
    page.go_back()
    settle("roofline", "level=l2")
    page.go_back()
    settle("roofline", "level=dram")
    assert page.get_by_role("radio", name="HBM").first.is_checked(), "the page shows what its link says"
    page.go_back()
    settle("")
    assert "HBM" in page.get_by_role("heading", level=1).inner_text()
    page.go_forward()
    settle("roofline", "level=dram")


def test_a_picture_can_be_a_png_of_twice_the_size(page, address):
    page.goto(address)
    settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name=f"{text.PICTURE} (PNG)").first.click()
    picture = Path(download.value.path()).read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(picture[16:20], "big") == 2 * 1200


def test_pictures_of_the_learn_page_come_from_the_figure_above_them_and_from_no_other_server(page, address):
    """The second figure of a chapter: its own picture, in the reader's language, with where its numbers come from."""
    outside = []
    page.on("request", lambda r: r.url.startswith((address, "data:", "blob:")) or outside.append(r.url))
    page.goto(f"{address}/learn?chapter=kernel&lang=zh")
    settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="下载图片 (SVG)").nth(1).click()
    picture = Path(download.value.path()).read_text(encoding="utf-8")
    words = html.unescape(re.sub("<[^>]*>", "", picture))
    assert download.value.suggested_filename == "learn-programs.svg" and 'width="1200"' in picture
    assert "示意图，不含数据" in words, "without the line that says where it comes from"
    with page.expect_download() as download:
        page.get_by_role("button", name="下载图片 (PNG)").first.click()
    picture = Path(download.value.path()).read_bytes()
    assert download.value.suggested_filename == "learn-sequence.png"
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(picture[16:20], "big") == 2 * 1200
    assert outside == []


def test_a_visitor_adds_a_report_and_is_told_what_it_lacks_and_what_to_run(page, address):
    page.goto(f"{address}/roofline")
    settled(page)
    page.locator("[data-testid=stFileUploader] input[type=file]").first.set_input_files(
        str(REPORTS / "rtx3070_one_kernel.ncu-rep"))
    page.wait_for_url("**source=added-**")
    settled(page)
    page.get_by_text(text.LACKING.partition("{")[0].strip(), exact=False).first.wait_for()
    advice = page.locator("[data-testid=stCode]", has_text="ncu").first.inner_text()
    assert "--metrics" in advice and "dram__bytes" in advice


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a #! line")
def test_an_engineer_runs_reloads_in_the_middle_and_opens_the_result(page, recorded, tmp_path):
    (tmp_path / "results").mkdir()
    script = tmp_path / "python"
    script.write_text(textwrap.dedent(STAND_IN.format(python=sys.executable, bundle=str(recorded / "synthetic"))))
    script.chmod(0o755)
    say(tmp_path, name="GPU", state="ok")
    with server(tmp_path / "results", FLASHSCOPE_PYTHON=str(script)) as url:
        page.goto(f"{url}/run")
        settled(page)
        page.get_by_role("button", name=text.RUN_START).click()
        page.get_by_text("1 / 3").first.wait_for()
        let(tmp_path, "step1")
        page.get_by_text("2 / 3").first.wait_for()
        page.reload()
        page.get_by_text("2 / 3").first.wait_for()
        let(tmp_path, "step2", "step3")
        page.get_by_role("button", name=text.RUN_OPEN).click()
        page.locator("h1", has_text="HBM").wait_for()
        page.wait_for_url("**source=quick-**")


def test_an_address_that_leads_nowhere_lists_the_pages(page, address):
    page.goto(f"{address}/rooflines")
    settled(page)
    main = page.locator("[data-testid=stMain]")
    main.get_by_text(text.NO_PAGE.format(name="rooflines")).wait_for()
    assert page.get_by_role("dialog").count() == 0
    main.get_by_role("link", name=text.ROOFLINE).click()
    page.wait_for_url("**/roofline?**")
    page.goto(f"{address}/evidence?mask=full")  # the first page is at /
    page.wait_for_url(lambda url: url.startswith(f"{address}/?") and "mask=full" in url)
    page.locator("h1", has_text="HBM").wait_for()
    assert page.get_by_role("dialog").count() == 0


def test_every_control_can_be_reached_and_seen_with_the_keyboard(page, address):
    """Tab walks through the sidebar's links and the page's controls, and each shows where one is."""
    page.goto(address)
    settled(page)
    reached, hidden = set(), []
    for _ in range(60):
        page.keyboard.press("Tab")
        role, words, seen = page.evaluate("""() => { const at = document.activeElement; let seen = false;
          for (let e = at, i = 0; e && i < 4; e = e.parentElement, i++) { const s = getComputedStyle(e);
            seen = seen || s.outlineStyle !== 'none' || s.boxShadow !== 'none' || at.closest('[data-baseweb]'); }
          return [at.tagName + (at.getAttribute('role') || ''), (at.innerText || at.ariaLabel || '').slice(0, 60),
                  Boolean(seen)]; }""")
        reached.add(words.strip().splitlines()[-1] if words.strip() else role)
        if role.startswith(("A", "BUTTON")) and not seen:
            hidden.append(words)
    assert {text.ROOFLINE, text.DOWNLOAD_DATA} <= reached
    assert hidden == [], "controls that do not show that they have the focus"
