"""One look for every figure: colours, markers, type and margins, in light and dark, on a page and on a stage.

A tensor and an implementation keep their colour everywhere (Okabe–Ito, told apart by colour-blind readers); markers
tell implementations apart in greyscale too. Reads are a tint, writes the full colour; text is always ink.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from profiler.errors import BadInput

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
INPUTS, GRADIENTS, STATISTICS = "#0072B2", "#56B4E9", "#009E73"
SCORES, PROBABILITIES, SPECIAL = "#E69F00", "#D55E00", "#7B61A8"
TENSOR = {
    **dict.fromkeys(("s", "ds"), SCORES), **dict.fromkeys(("p", "dp", "dp∘p"), PROBABILITIES),
    **dict.fromkeys("qkvo", INPUTS),
    **dict.fromkeys(("do", "dq", "dk", "dv", "dq sum"), GRADIENTS),
    **dict.fromkeys(("lse", "lse'", "delta", "δ", "m", "l", "partial o", "partial lse"), STATISTICS),
}
OTHER = "#8A939E"  # bytes of no tensor that the model knows


def tensor_colour(name: str) -> str:
    """The colour of a tensor, whatever the case of its name."""
    return TENSOR.get(str(name).lower(), OTHER)


@dataclass(frozen=True, slots=True)
class Mark:
    """How an implementation is drawn: fill colour and marker symbol."""

    colour: str
    symbol: str


IMPLEMENTATION = {
    "naive": Mark("#D55E00", "circle"), "naive_folded": Mark("#D55E00", "cross"), "flash1": Mark("#56B4E9", "square"),
    "flash2": Mark("#0072B2", "square"), "decode": Mark("#0072B2", "hexagram"), "hopper": Mark("#009E73", "star"),
    "sdpa_flash": Mark("#7A838E", "diamond"), "sdpa_cudnn": Mark("#7A838E", "triangle-up"),
    "sdpa_math": Mark("#9AA2AC", "x"), "sdpa_efficient": Mark("#9AA2AC", "pentagon"),
    "fa3": Mark("#68717C", "triangle-down"), "fa4": Mark("#68717C", "hexagon"),
    "flash_varlen": Mark("#0072B2", "star-diamond"), "fa3_varlen": Mark("#8A939E", "triangle-left"),
    "fa4_varlen": Mark("#8A939E", "triangle-right"),
}
OURS = {"hopper": "hopper", "flash_": "flash2", "ablation": "flash2"}  # how a form's name starts -> whose colour
SPARE_SYMBOLS = ("triangle-left", "triangle-right", "bowtie", "hourglass", "star-diamond")


def mark(name: Any) -> Mark:
    """The colour and marker of an implementation. One that has none of its own has a marker that depends on its name
    alone: a further form of our kernels in their colour, anybody else's in grey."""
    text = str(name)
    colour = next((IMPLEMENTATION[ours].colour for start, ours in OURS.items() if text.startswith(start)), "#8A939E")
    return IMPLEMENTATION.get(text, Mark(colour, SPARE_SYMBOLS[sum(map(ord, text)) % len(SPARE_SYMBOLS)]))


def kernel_mark(place: int) -> Mark:
    """The look of the ``place``-th kernel of a report that is not ours: colour and marker change together."""
    colours = ("#CC79A7", GRADIENTS, STATISTICS, SCORES, INPUTS, PROBABILITIES, OTHER)
    symbols = ("diamond", "triangle-up", "square", "circle", *SPARE_SYMBOLS)
    return Mark(colours[place % len(colours)], symbols[place % len(symbols)])


def layer(name: Any) -> int:
    """Drawing order, lowest first: peers, then naive, then our kernels, so that none of ours is hidden."""
    text = str(name)
    return 2 if text.startswith(("flash", "hopper")) or text == "decode" else 1 if text.startswith("naive") else 0


@dataclass(frozen=True, slots=True)
class Theme:
    """Ground, text and grid of a theme."""

    name: str
    ground: str
    ink: str
    muted: str
    grid: str


THEMES = {
    "light": Theme("light", "#FFFFFF", "#1B1F24", "#5B6470", "#E6E9ED"),
    "dark": Theme("dark", "#0E1116", "#E8EBEF", "#9AA4B0", "#232A32"),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Type and canvas in pixels. ``narrow`` is the width at which nothing may yet collide or be cut."""

    name: str
    width: int
    narrow: int
    height: int
    body: int
    small: int
    title: int
    marker: float
    line: float
    edge: int  # distance of text from the canvas edge


SIZES = {
    "page": Size("page", 1200, 860, 600, 15, 12, 23, 14, 2.5, 12),
    "talk": Size("talk", 1920, 1920, 1080, 22, 18, 36, 22, 4.0, 64),
}


def theme_of(name: str) -> Theme:
    """The theme called ``name``; BadInput for another word."""
    if name not in THEMES:
        raise BadInput(f"theme: expected one of {', '.join(THEMES)}, got {name!r}.")
    return THEMES[name]


def size_of(name: str) -> Size:
    """The size called ``name``; BadInput for another word."""
    if name not in SIZES:
        raise BadInput(f"size: expected one of {', '.join(SIZES)}, got {name!r}.")
    return SIZES[name]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: str) -> float:
    """Relative luminance of ``#RRGGBB``, 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mix(colour: str, other: str, share: float) -> str:
    """``share`` of ``colour`` over ``other``."""
    pairs = zip(_channels(colour), _channels(other))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02X}" for a, b in pairs)


def tint(colour: str, theme: Theme) -> str:
    """The tint that stands for reads: the colour at about half strength over the ground."""
    return mix(colour, theme.ground, 0.5)


def text_on(colour: str) -> str:
    """Near-black or white, whichever reads better on ``colour``; at least 4.5:1 on any colour."""
    return max(("#0B0E12", "#FFFFFF"), key=lambda ink: contrast(ink, colour))


def outline(colour: str, theme: Theme) -> str:
    """The edge of a mark: ink where the fill has less than 3:1 against the ground, else the ground."""
    return theme.ink if contrast(colour, theme.ground) < 3 else theme.ground


@lru_cache
def template(theme: str = "light", size: str = "page") -> go.layout.Template:
    """The Plotly template of a theme and a size: use it for any chart that should look like ours."""
    t, s = theme_of(theme), size_of(size)
    axis = {"gridcolor": t.grid, "linecolor": t.grid, "zeroline": False, "ticks": "", "automargin": False,
            "color": t.ink, "tickfont": {"size": s.body}, "title": {"font": {"size": s.body, "color": t.muted}}}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": s.body, "color": t.ink}, "paper_bgcolor": t.ground,
            "plot_bgcolor": t.ground, "title": {"font": {"size": s.title, "color": t.ink}, "x": 0, "xanchor": "left"},
            "xaxis": axis, "yaxis": axis, "colorway": [m.colour for m in IMPLEMENTATION.values()], "showlegend": False,
            "hoverlabel": {"font": {"family": FONT, "size": s.body, "color": t.ink},
                           "bgcolor": mix(t.ink, t.ground, 0.06), "bordercolor": t.muted, "align": "left",
                           "namelength": -1},
            "separators": ".,",
        },
        data={"scatter": [{"cliponaxis": False}]},
    )
