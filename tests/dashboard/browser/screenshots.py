"""Pictures of every page, light and dark: `python -m tests.dashboard.browser.screenshots OUT [PAGE...]`.

Options by environment: FLASHSCOPE_DATA (other data folders), SIZES (`1440x900,1920x1080`), THEMES (`light,dark`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from profiler.dashboard import frame
from tests.dashboard.browser.serving import FLAGS, chromium, server, settled


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    every = [name for entries in frame.LIST.values() for name, *_ in entries]
    sizes = [tuple(map(int, size.split("x"))) for size in os.environ.get("SIZES", "1440x900").split(",")]
    with server() as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        for width, height in sizes:
            for theme in os.environ.get("THEMES", "light,dark").split(","):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                for name in sys.argv[2:] or every:
                    path, _, query = name.partition("?")
                    page.goto(f"{address}/{frame.address(path) if path != every[0] else ''}?{query}")
                    settled(page)
                    page.wait_for_timeout(700)
                    page.screenshot(path=out / f"{path}-{theme}-{width}.png")
                    if os.environ.get("FULL"):
                        inner = page.evaluate("document.querySelector('[data-testid=\"stMain\"]').scrollHeight")
                        page.set_viewport_size({"width": width, "height": max(height, int(inner))})
                        page.wait_for_timeout(500)
                        page.screenshot(path=out / f"{path}-{theme}-{width}-full.png")
                        page.set_viewport_size({"width": width, "height": height})
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
