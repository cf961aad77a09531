"""How long the app takes, seen from a browser: `python -m tests.dashboard.browser.latency`.

Cold: from starting the server to the headline on the screen. Paint: a new visitor, nothing in the browser's cache, from
the address to the first content of the page, and until all of it is there. Control: from the click to the last change
that it makes on the page; every choice of every segmented control, pill, switch, list, slider and folded part in turn.
CPU: what the server's process (all threads) and the browser's main thread (its scripts; all tasks, with style, layout
and paint) spent on one control. Other work lengthens those by less than the time; it still does by up to a half.
The first row is an app of one control: what Streamlit itself takes on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

from profiler.dashboard import frame
from tests.dashboard.browser.serving import FLAGS, Address, chromium, server, settled

PAGES = [name for entries in frame.LIST.values() for name, *_ in entries]
WINDOW = {"width": 1440, "height": 900}
MAIN = "[data-testid=stMainBlockContainer]"
CONTENT = f"{MAIN} :is(h1, .js-plotly-plot, [data-testid=stDataFrame], [data-testid=stCode], iframe, p)"
BUTTONS = f"{MAIN} [data-testid=stButtonGroup] button, {MAIN} [data-testid=stCheckbox] label"
FOLDED = f"{MAIN} [data-testid=stExpander] summary"
CPUS = ("server", "browser", "script")
MOST_OPTIONS = 3  # of a list
QUIET_MS = 300    # no change for so long, and no script running: the page is at rest

# Notes the time of the last change in the main part, and that of the last click or key, in the page itself. A change
# of a canvas is what is drawn on it; the words inside, for screen readers, follow 200 ms later, as its makers meant.
WATCH = """() => { if (window.fsWatched) return; window.fsWatched = true; window.fsClick = window.fsLast = 0;
  const note = () => requestAnimationFrame(() => { window.fsLast = performance.now(); });
  const seen = change => !(change.target.nodeType === 1 ? change.target : change.target.parentNode)?.closest('canvas');
  new MutationObserver(changes => { if (changes.some(seen)) note(); }).observe(
    document.querySelector('[data-testid=stMain]'),
    {subtree: true, childList: true, attributes: true, characterData: true});
  for (const what of ['fillText', 'fillRect', 'drawImage', 'clearRect', 'stroke']) {
    const draw = CanvasRenderingContext2D.prototype[what];
    CanvasRenderingContext2D.prototype[what] = function (...how) {
      if (this.canvas.isConnected) note();
      return draw.apply(this, how); }; }
  for (const what of ['click', 'keydown'])
    document.addEventListener(what, () => { window.fsClick = performance.now(); }, true); }"""
REST = """quiet => new Promise(done => { const look = () => { const now = performance.now();
  const idle = document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning';
  if (idle && now - window.fsLast > quiet && now - window.fsClick > quiet)
    done(Math.max(0, window.fsLast - window.fsClick));
  else setTimeout(look, 15); }; look(); })"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", nargs="*", default=PAGES, help="only these")
    parser.add_argument("--rounds", type=int, default=2, help="times that each choice is clicked")
    parser.add_argument("--cold", type=int, default=3, help="cold starts")
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    asked = parser.parse_args()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        colds = [cold(browser) for _ in range(asked.cold)]
        print("cold start to the headline, s:", " ".join(f"{s:.2f}" for s in colds), flush=True)
        print(f"{'page':18} {'paint s':>8} {'whole s':>8} {'n':>4} {'p50 ms':>7} {'p95 ms':>7} {'most':>6} "
              f"{'CPU ms p50/p95: server':>23} {'browser':>9} {'of it script':>13} {'server + browser':>17}",
              flush=True)
        rows = []
        with server(script=Path(__file__).with_name("empty.py")) as address:
            rows.append(measured(browser, address, "", "(an empty app)", 2 * asked.rounds))
        with server() as address:
            for name in asked.pages:
                path = frame.address(name) if name != PAGES[0] else ""
                rows.append(measured(browser, address, path, name, asked.rounds))
        browser.close()
    if asked.json:
        found = {"cold_s": colds, "cpus": os.cpu_count(), "load_1_5_15_min": os.getloadavg(), "pages": rows}
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def cold(browser: Browser) -> float:
    """Seconds from starting a server to the headline of the first page."""
    page = browser.new_page(viewport=WINDOW)
    began = time.perf_counter()
    with server() as address:
        page.goto(address)
        page.locator(f"{MAIN} h1").first.wait_for()
        took = time.perf_counter() - began
    page.close()
    return took


def measured(browser: Browser, address: Address, path: str, name: str, rounds: int) -> dict[str, Any]:
    """One row of the table, printed: a new visitor on a page, then its controls."""
    page = browser.new_page(viewport=WINDOW)
    began = time.perf_counter()
    page.goto(f"{address}/{path}")
    page.locator(CONTENT).locator("visible=true").first.wait_for(timeout=120_000)
    paint = time.perf_counter() - began
    settled(page)
    whole = time.perf_counter() - began
    page.evaluate(WATCH)
    page.evaluate(REST, 2 * QUIET_MS)
    found = list(controls(page, address, rounds))
    page.close()
    times = sorted(one["ms"] for one in found)
    row = {"page": name, "paint_s": round(paint, 3), "whole_s": round(whole, 3), "controls": len(times),
           "p50_ms": _at(times, 0.5), "p95_ms": _at(times, 0.95), "most_ms": _at(times, 1.0),
           **{f"{who}_cpu_ms": _two(one[who] for one in found) for who in CPUS},
           "cpu_ms": _two(one["server"] + one["browser"] for one in found), "each": found}
    shown = [f"{value:>{width}}" if value is not None else f"{'–':>{width}}" for value, width in (
        (row["controls"], 4), (row["p50_ms"], 7), (row["p95_ms"], 7), (row["most_ms"], 6),
        (row["server_cpu_ms"], 23), (row["browser_cpu_ms"], 9), (row["script_cpu_ms"], 13), (row["cpu_ms"], 17))]
    print(f"{name:18} {paint:8.2f} {whole:8.2f} {' '.join(shown)}", flush=True)
    return row


def controls(page: Page, address: Address, rounds: int) -> Iterator[dict[str, Any]]:
    """What each choice of the page's controls took; choices that a click takes away are left out."""
    cdp = page.context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> tuple[float, float, float]:
        found = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
        return _cpu(address.process.pid), 1000 * found["TaskDuration"], 1000 * found["ScriptDuration"]

    def took(what: str, act: Any) -> Iterator[dict[str, Any]]:
        before = spent()
        try:
            act()
        except Error:
            return
        ms = page.evaluate(REST, QUIET_MS)
        if ms:
            yield {"what": what, "ms": round(ms),
                   **{who: round(b - a) for who, a, b in zip(CPUS, before, spent())}}

    for _ in range(rounds):
        for i in range(page.locator(BUTTONS).count()):
            one = page.locator(BUTTONS).nth(i)
            if _usable(one):
                yield from took(one.inner_text()[:40], lambda one=one: one.click(timeout=3000))
        for i in range(page.locator(FOLDED).count()):
            for _ in ("open", "close"):
                one = page.locator(FOLDED).nth(i)
                yield from took(one.inner_text()[-40:], lambda one=one: one.click(timeout=3000))
        for i in range(page.locator(f"{MAIN} [data-testid=stSelectbox]").count()):
            for k in range(MOST_OPTIONS):
                box = page.locator(f"{MAIN} [data-testid=stSelectbox]").nth(i)
                if not _usable(box):
                    break
                box.locator("input, [role=combobox]").first.click()
                options = page.locator("[role=option]")
                if not options.count() or k >= options.count():
                    page.keyboard.press("Escape")
                    break
                name = options.nth(k).inner_text()[:40]
                yield from took(name, lambda k=k, options=options: options.nth(k).click(timeout=3000))
        for i in range(page.locator(f"{MAIN} [role=slider]").count()):
            one = page.locator(f"{MAIN} [role=slider]").nth(i)
            if _usable(one):
                one.focus()
                yield from took("slider", lambda: page.keyboard.press("ArrowRight"))


def _usable(one: Locator) -> bool:
    return bool(one.count()) and one.is_visible() and one.is_enabled()


def _at(times: list[float], share: float) -> float | None:
    """The quantile `share` of sorted times, the higher of two neighbours."""
    return times[min(len(times) - 1, int(share * len(times)))] if times else None


def _two(values: Iterable[float]) -> str | None:
    """Median and 95th percentile, "60/95"."""
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f}/{_at(ordered, 0.95):.0f}" if ordered else None


def _cpu(pid: int) -> float:
    """CPU milliseconds that a process has used; Linux."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
