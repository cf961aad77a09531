"""Two browsers on one server: files of one name never mix, each keeps its own, who holds the link sees them."""

from __future__ import annotations

import re
import shutil

import pytest

from profiler.dashboard import text
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled
from tests.dashboard.conftest import REPORTS

pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not chromium(), reason="no Chromium on PATH (set CHROMIUM to one)")]
KERNELS = {"rtx3070_one_kernel": ("VecAdd_kernel", 1), "h100_five_kernels": ("stochastic_round_bf16", 5)}
NAME = "profile.ncu-rep"


def test_files_of_one_name_never_mix_and_stay_with_the_link(recorded, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with server(recorded) as address, playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        pages = {report: browser.new_context().new_page() for report in KERNELS}
        for page in pages.values():
            page.goto(f"{address}/roofline")
            settled(page)
        for report, page in pages.items():  # both are on their way before either is read
            (tmp_path / report).mkdir()
            shutil.copy(REPORTS / f"{report}.ncu-rep", tmp_path / report / NAME)
            page.locator("[data-testid=stFileUploader] input[type=file]").first.set_input_files(
                str(tmp_path / report / NAME))
        tokens = {report: added(page) for report, page in pages.items()}
        assert len(set(tokens.values())) == 2 and all(len(token) == 22 for token in tokens.values())
        for report, page in pages.items():
            page.reload()
            assert added(page) == tokens[report]
            page.locator("[data-testid=stSidebarNav]").get_by_role("link", name="Launches").click()
            assert added(page) == tokens[report]
            shows(page, report)
        stranger = browser.new_context().new_page()
        stranger.goto(f"{address}/launches?uploads={'A' * 22}")
        settled(stranger)
        stranger.get_by_text("no longer here").wait_for()
        assert stranger.get_by_text("Added by you").count() == 0
        stranger.goto(pages["h100_five_kernels"].url)
        assert added(stranger) == tokens["h100_five_kernels"]
        stranger.locator("code", has_text="stochastic_round_bf16").wait_for(timeout=30_000)
        browser.close()


def added(page) -> str:
    """The token in the link, once the page says that there are added files and who sees them."""
    page.get_by_text("Added by you").wait_for(timeout=60_000)
    page.get_by_text(text.ADDED_NOTE).wait_for()
    settled(page)
    page.wait_for_url("**uploads=**")
    return re.search(r"uploads=([\w-]+)", page.url)[1]


def shows(page, report: str) -> None:
    """The page has the launches of `report`."""
    kernel, count = KERNELS[report]
    page.get_by_text(f"{count} of {count} launches").wait_for(timeout=30_000)
    page.goto(f"{page.url}&launch=0")
    page.locator("code", has_text=kernel).wait_for(timeout=30_000)
