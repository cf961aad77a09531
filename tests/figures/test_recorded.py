"""Every figure on the recorded profiles that come with the project: no text cut, none over another, a finding each."""

from functools import lru_cache, partial
from pathlib import Path

import pytest

from profiler import bundle
from profiler.figures import canvas, labels, style
from profiler.figures.bars import bars
from profiler.figures.bounds import time_bounds
from profiler.figures.ledger import ledger
from profiler.figures.points import attention_points, attention_roofs
from profiler.figures.pyramid import pyramid
from profiler.figures.quadrant import quadrant
from profiler.figures.roofline import roofline
from profiler.figures.scaling import AXIS, scaling
from profiler.figures.traffic import traffic
from profiler.figures.tuning import QUANTITIES, heatmap
from profiler.spec import AttentionShape
from tests.figures.geometry import problems

DATA = Path(__file__).parents[2] / "data"
NAMES = ("naive", "flash2", "sdpa_flash", "sdpa_cudnn")
DECODE = ("naive", "decode", "sdpa_flash")
SQUARE = [AttentionShape(1, 16, n, n, d, mask=mask) for n, d, mask in (
    (4096, 64, "full"), (4096, 128, "full"), (4096, 64, "causal"), (4096, 128, "causal"), (512, 64, "full"),
    (16384, 128, "causal"))]
CASES = [("h200-evidence", shape, NAMES, "forward") for shape in (SQUARE[0], SQUARE[3], *SQUARE[4:])]
CASES += [("h200-backward", shape, NAMES, "backward") for shape in (SQUARE[0], SQUARE[3])]
CASES += [("h200-decode", AttentionShape(batch, 32, nq, nk, 128, 8, mask="causal"), DECODE, "forward")
          for batch, nq, nk in ((1, 1, 4096), (8, 1, 32768))]


@lru_cache
def read(name):
    return bundle.read(DATA / name)


def roofed(b, shape, names, *, level="dram", direction, **look):
    return roofline(attention_points(b, shape, names, level=level, direction=direction),
                    attention_roofs(b, shape, names, direction), b.profile, about=labels.call(shape, direction),
                    level=level, **look)


FIGURES = {"ledger": ledger, "bars": bars, "bounds": time_bounds, "quadrant": quadrant, "traffic": traffic,
           "pyramid": pyramid, "roofline": roofed, "roofline-l2": partial(roofed, level="l2")}


def assert_legible(make):
    for size in ("page", "talk"):
        figure = make(size=size)
        assert figure.data and canvas.title(figure)
        for width in {style.size_of(size).narrow, style.size_of(size).width}:
            assert problems(figure, width) == []


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("source, shape, names, direction", CASES,
                         ids=[f"{source}-{shape.label().replace(' ', '-')}" for source, shape, *_ in CASES])
def test_one_shape(source, shape, names, direction, name):
    assert_legible(partial(FIGURES[name], read(source), shape, names, direction=direction))


@pytest.mark.parametrize("quantity", AXIS)
@pytest.mark.parametrize("source, direction", [("h200-evidence", "forward"), ("h200-backward", "backward")])
def test_over_n(source, direction, quantity):
    for shape in (SQUARE[0], SQUARE[3]):
        assert_legible(partial(scaling, read(source), shape, quantity, NAMES, direction=direction))


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("shape", SQUARE[:2], ids=["D64", "D128"])
def test_tuning(shape, quantity):
    assert_legible(partial(heatmap, read("h200-tuning"), shape, quantity))


@pytest.mark.parametrize("mask", ("full", "causal"))
@pytest.mark.parametrize("head_dim", (64, 128))
def test_every_kernel_of_the_ladder_has_its_name_under_the_roof(head_dim, mask):
    ladder, names = bundle.read(DATA / "h200-ladder"), ("naive_folded", "flash1", "flash2", "hopper", "sdpa_flash",
                                                        "sdpa_cudnn")
    shape = AttentionShape(4, 2048 // head_dim, 4096, 4096, head_dim, mask=mask)
    points = attention_points(ladder, shape, names, stages=names[:1])
    drawn = roofline(points, attention_roofs(ladder, shape, names), ladder.profile)
    written = " ".join(note.text for note in drawn.layout.annotations)
    assert all(labels.implementation(name) in written for name in names)
    assert "Hopper: " in written and "fewer HBM bytes" in written
