"""How the app bears large files and many visitors, seen from a browser: `python -m tests.dashboard.big [WHAT...]`.

bundle: 20,000 launches with 900 raw metrics each, on the pages that must bear it: seconds from opening the page to its
first chart or table, what the browser gets, the server's memory. report: a binary report of 200 MB by way of the
uploader: when its progress shows, when it is there, memory. sessions: twenty visitors on the recorded profiles.
All three without WHAT. Linux only: memory is read from /proc.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.dashboard import large
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled

MEGABYTES = 205
VISITORS = 20
CHART = ".js-plotly-plot .main-svg"
TABLE = "[data-testid=stDataFrame] canvas"
PAGES = {  # page, source -> what must be there
    ("", "large"): CHART, ("roofline", "large"): CHART, ("launches", "large"): TABLE,
    ("compare?sources=large,large-report", "large"): CHART, ("about-data", "large"): "h2",
    ("launches?launch=15000", "large"): "code:has-text('kernel')",
    ("", "large-report"): "[data-testid=stExpander]", ("roofline", "large-report"): CHART,
    ("launches", "large-report"): TABLE, ("about-data", "large-report"): "h2"}


def main() -> None:
    wanted = sys.argv[1:] or ["bundle", "report", "sessions"]
    with tempfile.TemporaryDirectory(prefix="flashscope-big-") as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        for what in wanted:
            print(f"\n{what}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, priority {os.nice(0):+d}")
            {"bundle": bundle, "report": report, "sessions": sessions}[what](browser, Path(folder))
        browser.close()


def bundle(browser: Any, folder: Path) -> None:
    """Pages on two bundles: a sweep of attention calls, and a report without ranges."""
    for name, ours in (("large", True), ("large-report", False)):
        made = large.bundle(folder / "data" / name, ours=ours)
        print(f"{name}: {sum(f.stat().st_size for f in made.iterdir()) / 1e6:.0f} MB on disk")
    heads = (f"{'page':38} {'source':14} {'first s':>8} {'at rest s':>10} {'received kB':>12} {'CPU s':>6} "
             f"{'RSS MB':>7}")
    print(f"the first visitor of a fresh server\n{heads}")
    for page, source in (("", "large"), ("roofline", "large"), ("roofline", "large-report")):
        with server(folder / "data") as address:
            show(browser, address, page, source, PAGES[page, source])
    print(f"one server, page after page, each by a new visitor\n{heads}")
    with server(folder / "data") as address:
        for (page, source), content in PAGES.items():
            show(browser, address, page, source, content)


def show(browser: Any, address: str, page: str, source: str, content: str) -> None:
    pid = pid_of(address)
    before = cpu(pid)
    seen = open_page(browser, f"{address}/{page}{'&' if '?' in page else '?'}source={source}", content)
    print(f"{page or 'evidence':38} {source:14} {seen['first']:8.2f} {seen['settled']:10.2f} "
          f"{seen['received'] / 1e3:12.0f} {cpu(pid) - before:6.2f} {rss(pid):7.0f}")


def open_page(browser: Any, link: str, content: str) -> dict[str, float]:
    """Seconds until `content` shows and until the app is at rest, and bytes that came over the app's socket."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    received = listen(page)
    began = time.perf_counter()
    page.goto(link)
    page.locator(f"[data-testid=stMainBlockContainer] :is({content})").first.wait_for(timeout=120_000)
    first = time.perf_counter() - began
    settled(page)
    found = {"first": first, "settled": time.perf_counter() - began, "received": sum(received)}
    context.close()
    return found


def report(browser: Any, folder: Path) -> None:
    """A large binary report through the uploader."""
    path = folder / "large.ncu-rep"
    launches = large.report(path, MEGABYTES, "v100_openacc_five_kernels.ncu-rep")
    print(f"{path.stat().st_size / 1e6:.0f} MB, {launches:,} launches")
    with server() as address:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}/roofline")
        settled(page)
        pid, uploaded = pid_of(address), []
        page.on("requestfinished", lambda r: r.method == "PUT" and uploaded.append(time.perf_counter()))
        print(f"server before: {rss(pid):.0f} MB")
        with Peak(pid) as peak:
            began = time.perf_counter()
            page.locator("[data-testid=stFileUploader] input[type=file]").first.set_input_files(str(path))
            bar = page.locator("[data-testid=stSidebar] [data-testid=stProgress]")
            bar.wait_for(timeout=120_000)
            shown = time.perf_counter()
            bar.get_by_text(re.compile(rf"[\d,]+ of {launches:,}")).wait_for(timeout=120_000)
            moving = time.perf_counter()
            page.get_by_text("Added by you").wait_for(timeout=300_000)
            there = time.perf_counter()
            settled(page)
            page.locator(CHART).first.wait_for(timeout=60_000)
            drawn = time.perf_counter()
        end = uploaded[-1]
        said = page.locator("[data-testid=stSidebar]").get_by_text("read in").inner_text()
        print(f"upload {end - began:.1f} s; after it: progress shows {shown - end:.2f} s, first count "
              f"{moving - end:.2f} s, read {there - end:.1f} s, chart {drawn - end:.1f} s; the page says “{said}”")
        print(f"server after: {rss(pid):.0f} MB, peak {peak.own:.0f} MB; the reading process at most "
              f"{peak.children:.0f} MB")
        began = time.perf_counter()
        page.goto(f"{page.url.replace('/roofline', '/launches')}&launch={launches - 1}")
        page.get_by_role("heading", name=f"Launch {launches - 1}", exact=True).wait_for(timeout=60_000)
        settled(page)
        print(f"a launch with every metric, read from the file again: {time.perf_counter() - began:.1f} s")
        page.close()


def sessions(browser: Any, folder: Path) -> None:
    """Visitors who each open Evidence on the recorded profiles and keep it open."""
    with server() as address:
        pid, contexts = pid_of(address), []
        print(f"server without visitors: {rss(pid):.0f} MB")
        for number in range(1, VISITORS + 1):
            contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}))
            page = contexts[-1].new_page()
            page.goto(address)
            page.locator(CHART).first.wait_for(timeout=120_000)
            settled(page)
            if number in (1, 2, 5, 10, VISITORS):
                print(f"{number} visitors: {rss(pid):.0f} MB")
        for context in contexts:
            context.close()


def listen(page: Any) -> list[int]:
    """Bytes of each message that the app sends to the page from now on."""
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: received.append(len(data))))
    return received


def pid_of(address: str) -> int:
    """The process that serves the address."""
    port = address.rsplit(":", 1)[1].encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if b"streamlit" in words and port in words:
            return int(path.parent.name)
    raise RuntimeError(f"no process serves {address}")


def rss(pid: int) -> float:
    """Megabytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Peak:
    """The most memory that a process, and those it started, hold while this is open; in megabytes."""

    def __init__(self, pid: int):
        self.pid, self.own, self.children, self._end = pid, 0.0, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.own = max(self.own, rss(self.pid))
            total = 0.0
            for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
                for child in task.read_text().split():
                    try:
                        total += rss(int(child))
                    except OSError:
                        continue  # it has ended
            self.children = max(self.children, total)


if __name__ == "__main__":
    main()
