"""How long the app takes, seen from a browser: `python -m tests.dashboard.browser.latency`.

Cold: from starting the server to the first chart. First paint: a new session on a running server, page by page.
Control: from a click on a choice to the redrawn page, each choice of the page's first controls in turn.
"""

from __future__ import annotations

import statistics
import time

from playwright.sync_api import sync_playwright

from profiler.dashboard import frame
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled

ROUNDS = 8
CONTENT = ".js-plotly-plot, [data-testid=stDataFrame], [data-testid=stCode], [data-testid=stMarkdown] p"


def main() -> None:
    every = [name for entries in frame.LIST.values() for name, *_ in entries]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        start = time.perf_counter()
        with server() as address:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(address)
            page.locator(CONTENT).locator("visible=true").first.wait_for()
            print(f"cold start to first chart: {time.perf_counter() - start:.2f} s")
            print(f"{'page':20} {'first paint s':>13} {'control p50 ms':>15} {'p95 ms':>8}  controls")
            for name in every:
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                began = time.perf_counter()
                page.goto(f"{address}/{frame.address(name) if name != every[0] else ''}")
                main_part = page.locator(f"[data-testid=stMainBlockContainer] :is({CONTENT})")
                main_part.locator("visible=true").first.wait_for()
                settled(page)
                paint = time.perf_counter() - began
                times = controls(page)
                p50 = statistics.median(times) if times else float("nan")
                p95 = sorted(times)[int(0.95 * (len(times) - 1))] if times else float("nan")
                print(f"{name:20} {paint:13.2f} {p50:15.0f} {p95:8.0f}  {len(times)}")
                page.close()
        browser.close()


def controls(page) -> list[float]:
    """Milliseconds from each click on a choice (pills, segments, switches) to the page at rest."""
    times = []
    for turn in range(ROUNDS):
        buttons = page.locator("[data-testid=stMain] [data-testid=stButtonGroup] button, "
                               "[data-testid=stMain] [data-testid=stCheckbox] label")
        if not buttons.count():
            break
        button = buttons.nth(turn % buttons.count())
        began = time.perf_counter()
        button.click()
        page.wait_for_function(RUNNING_THEN_DONE, timeout=20_000)
        times.append(1000 * (time.perf_counter() - began))
        page.wait_for_timeout(150)
    return times


# a click is answered once the script has run again; the counter of runs is what Streamlit exposes on the app's element
RUNNING_THEN_DONE = """() => new Promise(done => {
  const app = document.querySelector('[data-testid=stApp]');
  let seen = false;
  const look = () => {
    const state = app.getAttribute('data-test-script-state');
    seen = seen || state === 'running';
    if (seen && state === 'notRunning') done(true); else requestAnimationFrame(look);
  };
  setTimeout(() => { seen = true; }, 60);
  look();
})"""


if __name__ == "__main__":
    main()
