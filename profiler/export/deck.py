"""One self-contained HTML file of a story: opens from disk without a network, plotly.js inside it once."""

from __future__ import annotations

import html as escape
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from profiler.export import reveal
from profiler.export.story import Screen, Story
from profiler.figures import canvas
from profiler.figures.style import FONT, THEMES, theme_of

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)  # the browser itself refuses whatever would reach outside
KEYS = (
    ("→ space", "next step or screen"),
    ("←", "back"),
    ("Home End", "first, last"),
    ("n", "notes"),
    ("t", "light or dark"),
    ("f", "full screen"),
    ("?", "this help"),
)


def html(story: Story, theme: str = "light", *, start: str = "", name: str = "") -> str:
    """The deck as text.

    theme: the one it opens in. start: a query string (screen, step, theme) for a frame that has no address of its own;
    "": taken from the address. name: title of the window.
    """
    theme_of(theme)
    themes = [theme, *(other for other in THEMES if other != theme)]
    data = {"themes": themes, "start": start, "screens": [_screen(s, themes) for s in story.screens]}
    head = name or f"{story.bundle.name} · FlashScope"
    rows = "".join(f"<p><kbd>{escape.escape(keys)}</kbd> {escape.escape(does)}</p>" for keys, does in KEYS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape.escape(head)}</title>
<style>{style()}</style>
</head>
<body class="{theme}">
<main></main>
<div id="notes" role="note"></div>
<div id="help">{rows}<p id="type"></p></div>
<button id="bar" type="button" aria-label="keys"></button>
<noscript>This deck is drawn by the script inside this file; allow scripts for it.</noscript>
<script>{plotly()}</script>
<script id="deck" type="application/json">{embedded(data)}</script>
<script>{(HERE / "deck.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def plotly() -> str:
    """plotly.js as it comes with the library."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def style() -> str:
    """The deck's style sheet with the figures' own colours and font."""
    css = (HERE / "deck.css").read_text(encoding="utf-8").replace("FONT", FONT)
    for name, theme in THEMES.items():
        for part in ("ground", "ink", "muted", "grid"):
            css = css.replace(f"{name.upper()}_{part.upper()}", getattr(theme, part))
    return css


def embedded(data: Any) -> str:
    """JSON that may stand inside a script element: no text of it can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def drawing(figure: go.Figure) -> dict[str, Any]:
    """A figure as plotly.js takes it, without the table it carries."""
    plain = json.loads(figure.to_json())
    plain["layout"].get("meta", {}).pop(canvas.DATA, None)
    return {"data": plain["data"], "layout": plain["layout"]}


def _screen(screen: Screen, themes: list[str]) -> dict[str, Any]:
    return {
        "id": screen.id,
        "title": screen.title,
        "notes": list(screen.notes),
        "order": reveal.order(screen.figure, screen.steps),
        "figures": {theme: drawing(screen.figures[theme]) for theme in themes},
    }
