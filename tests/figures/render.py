"""Render figures with a headless Chromium: pictures to look at, and the boxes of all text as the browser lays it out.

As a script: ``python -m tests.figures.render OUT_FOLDER [NAME ...]`` draws every figure of the synthetic bundle, in
light and dark, on a page and on a stage.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

VIEWPORTS = {"page": (1200, 680), "narrow": (860, 680), "talk": (1920, 1080)}
TEXT = "text.annotation-text, .annotation text, .gtitle, .gtitle-subtitle, .xtick text, .ytick text, .xtitle, .ytitle"
BOXES = """(selector) => [...document.querySelectorAll(selector)].filter(e => e.textContent.trim()).map(e => {
  const b = e.getBoundingClientRect(); return [e.textContent, b.left, b.top, b.right, b.bottom]; })"""


def chromium() -> str | None:
    """A Chromium or Chrome of this machine; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A page of a headless Chromium that shows figures: ``show(figure, viewport)``."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        engine = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield engine.new_page()
        finally:
            engine.close()


def show(page: Any, figure: go.Figure, viewport: str = "page") -> list[tuple[str, float, float, float, float]]:
    """Draw ``figure`` on ``page``; the text on it with its box (left, top, right, bottom) in pixels."""
    width, height = VIEWPORTS[viewport]
    page.set_viewport_size({"width": width, "height": max(height, int(figure.layout.height or 0))})
    html = figure.to_html(include_plotlyjs=True, config={"displayModeBar": False, "responsive": True})
    page.set_content(html.replace("<body>", '<body style="margin:0">'))
    page.wait_for_function("document.querySelectorAll('.main-svg').length > 0")
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(300)
    return [tuple(box) for box in page.evaluate(BOXES, TEXT)]


def collisions(boxes: list[tuple[str, float, float, float, float]], width: float, height: float) -> list[str]:
    """Texts that overlap by more than a pixel, or that leave the canvas."""
    found = [f"cut: {text}" for text, x0, y0, x1, y1 in boxes if x0 < 0 or y0 < 0 or x1 > width or y1 > height]
    for i, (text, x0, y0, x1, y1) in enumerate(boxes):
        for other, a0, b0, a1, b1 in boxes[i + 1:]:
            if min(x1, a1) - max(x0, a0) > 1 and min(y1, b1) - max(y0, b0) > 2:
                found.append(f"overlap: {text} / {other}")
    return found


def main(folder: Path, names: list[str]) -> None:
    from tests.figures.samples import FIGURES

    folder.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        for name, make in FIGURES.items():
            if names and name not in names:
                continue
            for viewport in VIEWPORTS:
                for theme in ("light", "dark") if viewport != "narrow" else ("light",):
                    figure = make(theme=theme, size="talk" if viewport == "talk" else "page")
                    boxes = show(page, figure, viewport)
                    width, height = VIEWPORTS[viewport]
                    for problem in collisions(boxes, width, max(height, int(figure.layout.height or 0))):
                        print(f"{name} {viewport} {theme}: {problem}")
                    page.screenshot(path=folder / f"{name}-{viewport}-{theme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
