"""The palette keeps its promises: contrast computed from the colours themselves."""

import itertools

import pytest

from profiler.errors import BadInput
from profiler.figures import labels, style

FILLS = sorted({*style.TENSOR.values(), *(m.colour for m in style.IMPLEMENTATION.values()), style.SPECIAL, style.OTHER,
                *(style.kernel_mark(i).colour for i in range(7))})
THEMES = list(style.THEMES.values())


def test_contrast_against_known_pairs():
    assert style.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert style.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)  # the usual example of a near miss


@pytest.mark.parametrize("theme", THEMES, ids=lambda t: t.name)
def test_text_reads_on_the_ground(theme):
    assert style.contrast(theme.ink, theme.ground) >= 7
    assert style.contrast(theme.muted, theme.ground) >= 4.5


@pytest.mark.parametrize("theme", THEMES, ids=lambda t: t.name)
@pytest.mark.parametrize("colour", FILLS)
def test_text_reads_on_every_fill_and_tint(colour, theme):
    for fill in (colour, style.tint(colour, theme)):
        assert style.contrast(style.text_on(fill), fill) >= 4.5


@pytest.mark.parametrize("theme", THEMES, ids=lambda t: t.name)
@pytest.mark.parametrize("colour", FILLS)
def test_every_mark_is_seen_by_its_fill_or_its_outline(colour, theme):
    seen = max(style.contrast(colour, theme.ground), style.contrast(style.outline(colour, theme), theme.ground))
    assert seen >= 3


def test_colours_of_the_figures_page():
    assert style.tensor_colour("S") == "#E69F00"
    assert style.tensor_colour("P") == "#D55E00"
    assert {style.tensor_colour(t) for t in "QKVO"} == {"#0072B2"}
    assert {style.tensor_colour(t) for t in ("dO", "dQ", "dK", "dV")} == {"#56B4E9"}
    assert style.tensor_colour("LSE") == "#009E73"
    assert style.mark("naive") == style.Mark("#D55E00", "circle")
    assert style.mark("flash2") == style.Mark("#0072B2", "square")
    assert style.mark("hopper") == style.Mark("#009E73", "star")


def test_implementations_differ_by_marker_where_they_share_a_colour():
    marks = [(m.colour, m.symbol) for m in style.IMPLEMENTATION.values()]
    assert len(set(marks)) == len(marks)
    greys = [m.symbol for n, m in style.IMPLEMENTATION.items() if n.startswith(("sdpa", "fa"))]
    assert len(set(greys)) == len(greys)


def grey(colour: str) -> float:
    """What a greyscale print keeps of a colour: its luminance, linear light, ITU-R BT.709."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
              for v in (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def apart(a: str, b: str) -> bool:
    """Two greys that a printer keeps apart: half as bright again, glare of 0.05 added."""
    light, dark = sorted((grey(a), grey(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05) >= 1.5


def test_in_greyscale_implementations_differ_by_marker_or_by_brightness():
    for (one, a), (other, b) in itertools.combinations(style.IMPLEMENTATION.items(), 2):
        assert a.symbol != b.symbol or apart(a.colour, b.colour), f"{one} and {other} look alike in greyscale"


@pytest.mark.parametrize("theme", THEMES, ids=lambda t: t.name)
@pytest.mark.parametrize("tensor", ["S", "P", "Q", "dO", "LSE"])
def test_in_greyscale_a_read_differs_from_a_write_and_s_from_p(tensor, theme):
    colour = style.tensor_colour(tensor)
    assert apart(colour, style.tint(colour, theme))
    assert apart(style.SCORES, style.PROBABILITIES)


def test_kernels_of_a_report_differ():
    looks = [style.kernel_mark(i) for i in range(50)]
    assert len(set(looks)) == 50
    assert all(a.colour != b.colour and a.symbol != b.symbol for a, b in itertools.pairwise(looks))


def test_an_unknown_implementation_is_the_same_every_time():
    assert style.mark("xformers_fmha") == style.mark("xformers_fmha")
    assert labels.implementation("xformers_fmha") == "xformers fmha"


def test_wrong_names_are_refused():
    with pytest.raises(BadInput, match="theme: expected one of light, dark, got 'blue'"):
        style.theme_of("blue")
    with pytest.raises(BadInput, match="size"):
        style.size_of("poster")
