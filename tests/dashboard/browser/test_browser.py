"""A real browser on a real server: upload a report, see its kernels, keep them over a reload."""

from __future__ import annotations

import pytest

from profiler.dashboard import frame
from profiler.figures import style
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled
from tests.dashboard.conftest import REPORTS

pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not chromium(), reason="no Chromium on PATH (set CHROMIUM to one)")]


# what Streamlit draws without a text, colour or label of ours: its bars, its menus, the canvas of a table, icons
STREAMLITS = """target => { const at = document.querySelector(Array.isArray(target) ? target[0] : target);
  return Boolean(at && at.closest('[data-testid=stHeader], [data-testid=stToolbar], [data-testid=stElementToolbar],' +
    ' [data-testid=stDataFrameGlideDataEditor], [data-testid=stIconMaterial], [data-testid=stSidebarCollapseButton],' +
    ' [data-testid=stFileUploaderDropzone], [data-baseweb=popover], #portal')); }"""


@pytest.fixture(scope="module")
def address(recorded):
    with server(recorded) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as play:
        one = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield one
        one.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_accessibility_finding(browser, address, theme):
    """axe-core on every page; nothing is excluded. A finding in what Streamlit itself draws (its header, its sidebar's
    frame, the inside of its widgets) is listed apart in the output, one in what we wrote or coloured fails."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    serious, streamlits = [], []
    for name in [name for entries in frame.LIST.values() for name, *_ in entries]:
        page.goto(f"{address}/{frame.address(name)}")
        settled(page)
        page.wait_for_timeout(500)
        for found in axe.Axe().run(page).response["violations"]:
            for node in found["nodes"]:
                said = f"{name}: {found['id']} ({found['impact']}): {node['failureSummary']} {node['html'][:100]}"
                if page.evaluate(STREAMLITS, node["target"][0]):
                    streamlits.append(said)
                elif found["impact"] in ("serious", "critical"):
                    serious.append(said)
    page.close()
    print(f"Streamlit's own findings, {theme}: {len(streamlits)}", *streamlits, sep="\n")
    assert serious == []


def test_an_uploaded_report_shows_its_kernel_and_stays(browser, address):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    outside = []
    page.on("request", lambda r: r.url.startswith((address, "data:", "blob:")) or outside.append(r.url))
    page.goto(address)
    settled(page)
    page.locator("[data-testid=stFileUploaderDropzoneInput], [data-testid=stFileUploader] input[type=file]").first \
        .set_input_files(str(REPORTS / "rtx3070_one_kernel.ncu-rep"))
    page.get_by_text("Added by you").wait_for(timeout=60_000)
    settled(page)
    page.locator("[data-testid=stSidebarNav]").get_by_role("link", name="Launches").click()
    page.get_by_text("1 of 1 launches").wait_for(timeout=30_000)
    page.wait_for_url("**/launches?**source=added-**")
    page.goto(f"{page.url}&launch=0")
    page.locator("code", has_text="VecAdd_kernel").wait_for(timeout=30_000)
    page.reload()
    page.locator("code", has_text="VecAdd_kernel").wait_for(timeout=30_000)
    assert "source=added-" in page.url and "uploads=" in page.url
    assert outside == [], f"the app asked other servers for {outside}"
    stranger = browser.new_context().new_page()
    stranger.goto(address)
    settled(stranger)
    assert stranger.get_by_text("Added by you").count() == 0


def test_a_click_on_a_mark_leads_to_its_launch(browser, address):
    page = browser.new_page(viewport={"width": 1440, "height": 1400})
    page.goto(f"{address}/occupancy")
    settled(page)
    page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for()
    offered = page.locator(".modebar-btn").evaluate_all("buttons => buttons.map(one => one.dataset.title)")
    assert "Fullscreen" in offered and not any("Share" in words for words in offered), "no figure leaves the machine"
    box = page.locator(".js-plotly-plot .scatterlayer .point").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    link = page.get_by_role("link", name="every counter of it")
    link.wait_for(timeout=20_000)
    number = link.inner_text().split(":")[0].split()[-1]
    link.click()
    page.get_by_role("heading", name=f"Launch {number}", exact=True).wait_for(timeout=20_000)
    page.wait_for_url(f"**launch={number}**")
    page.close()


def test_figures_follow_when_the_system_turns_dark(browser, address):
    """Streamlit recolours its own elements and runs nothing; a figure, the logo and the small print are ours."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page.goto(f"{address}/scaling")
    settled(page)
    page.emulate_media(color_scheme="dark")
    dark = style.THEMES["dark"].ground
    page.wait_for_function(f"() => document.querySelector('.fs-chart').layout.paper_bgcolor === '{dark}'")
    page.locator("[data-testid=stSidebarNav]").get_by_role("link", name="Launches").click()
    page.get_by_role("heading", name="Launches").wait_for()
    settled(page)
    page.emulate_media(color_scheme="light")
    page.wait_for_function("""ink => [...document.images].some(one => decodeURIComponent(one.src).includes(ink) ||
        atob(one.src.split("base64,")[1] ?? "").includes(ink))""", arg=style.THEMES["light"].ink)
    page.close()


@pytest.mark.parametrize("width", [1280, 1440])
def test_no_words_of_a_control_or_a_card_are_cut(browser, address, width):
    page = browser.new_page(viewport={"width": width, "height": 720})
    for name in ("", "scaling", "occupancy", "compare", "memory-io", "tuning"):
        page.goto(f"{address}/{name}")
        settled(page)
        cut = page.evaluate("""() => [...document.querySelectorAll(
            '[data-testid=stMetricValue], [data-testid=stMetricLabel], [data-testid=stButtonGroup] [role], ' +
            '[data-testid=stSelectbox] input')]
            .filter(one => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
            .map(one => one.value || one.textContent)""")
        assert cut == [], (name, cut)
    page.close()


def test_no_sign_of_a_formula_is_cut(browser, address):
    """Streamlit cuts a formula at the height of its line, and the bar of a transpose stands above that."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{address}/learn?chapter=backward")
    settled(page)
    page.locator(".katex-display").nth(1).wait_for()
    over = page.locator(".katex-display").evaluate_all("""all => all.map(one => Math.min(...[...one.querySelectorAll(
        '.mord')].filter(sign => sign.textContent === '⊤').map(sign => sign.getBoundingClientRect().top))
        - one.getBoundingClientRect().top)""")
    assert len(over) == 2 and min(over) >= 0
    page.close()
