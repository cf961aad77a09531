"""What a browser really lays out: no text cut, none over another, at every canvas."""

import html
import re

import pytest

from tests.figures.render import VIEWPORTS, browser, chromium, collisions, show
from tests.figures.samples import FIGURES

pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(chromium() is None, reason="no Chromium or Chrome on this machine")]


def letters(text: str) -> str:
    """A text without tags, entities and blanks: what both the figure and the browser can be asked for."""
    return re.sub(r"[\s\u200b]", "", html.unescape(re.sub(r"<[^>]+>", "", text)))


@pytest.fixture(scope="module")
def page():
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("viewport", VIEWPORTS)
@pytest.mark.parametrize("name", FIGURES)
def test_browser_lays_out_every_text_apart(page, name, viewport):
    figure = FIGURES[name](size="talk" if viewport == "talk" else "page")
    boxes = show(page, figure, viewport)
    width, height = VIEWPORTS[viewport]
    assert len(boxes) > 5
    assert collisions(boxes, width, max(height, figure.layout.height)) == []
    seen = {letters(text) for text, *_ in boxes}
    written = {letters(a.text) for a in figure.layout.annotations if a.text}
    assert written - seen == set()  # Plotly drops an annotation whose point lies a hair outside its axis
