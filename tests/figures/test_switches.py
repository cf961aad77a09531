"""What each switch is worth, by hand on made-up times: percentages, order, what is one change and what is not."""

import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import canvas
from profiler.figures.switches import frame, switches
from profiler.spec import AttentionShape, RunConfig, parameters_text
from tests import synthetic
from tests.figures.test_figures import text, words

SHAPE = AttentionShape(4, 32, 4096, 4096, 64)
ALL_ON = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 2, "tma": True, "folded": True, "staged": True}


def timed(asked, ns, implementation="ablation", direction="forward", also=None, **other):
    """A row whose configuration asked for ``asked``; ``also`` changed with it. Percentiles 2% around the median."""
    config = RunConfig(implementation, SHAPE, direction, asked)
    given = {**ALL_ON, **asked, **(also or {})}
    spread = {"p20_ns": 0.98 * ns, "p80_ns": 1.02 * ns} if ns else {}
    return {**config.key(), "parameters": parameters_text(given), "status": "ok", "median_ns": ns, **spread, **other}


def bundle(*rows):
    return Bundle("made up", {"gpu": synthetic.GPU, "suite": "ablation"}, timings=table.make("timings", rows))


ABLATION = bundle(
    timed({"num_stages": 1}, 220_000.0), timed({}, 200_000.0), timed({"tma": False}, 250_000.0),
    timed({"folded": False}, 199_000.0), timed({"staged": False}, None, status="refused: out of registers"))


def test_each_change_against_none_the_dearest_first():
    data = frame(ABLATION, SHAPE, "ablation")
    assert list(data["changed"].fillna("none")) == [
        "none", "pointers, no TMA descriptors", "1 stage instead of 2", "scale apart, natural exponentials",
        "one loop, the edge inside"]
    assert list(data["more"][:4]) == pytest.approx([0, 0.25, 0.1, -0.005]) and data["more"].isna().iloc[4]
    # 0.98 and 1.02 of 250 µs over 200 µs
    assert (data["more_low"][1], data["more_high"][1]) == pytest.approx((0.225, 0.275))


def test_the_figure_says_the_finding_and_what_is_not_drawn():
    figure = switches(ABLATION, SHAPE)
    said = text(figure).replace("\u00a0", " ")
    assert words(figure) == "Pointers, no TMA descriptors: +25.0% time, the dearest of 3"
    assert "against none (200 µs)" in said and "one loop, the edge inside (refused: out of registers)" in said
    assert [bar for bar in figure.data[0].x] == pytest.approx([0.25, 0.1, -0.005])
    assert {"+25.0%", "+10.0%", "\u22120.5%"} <= {note.text.strip("</b>") for note in figure.layout.annotations}
    assert "Synthetic GPU" in said and len(canvas.to_frame(figure)) == 5


def test_blocks_that_an_option_brings_with_it_are_not_a_second_change():
    rows = bundle(timed({}, 100.0, "flash2"), timed({"dropout_p": 0.1}, 150.0, "flash2", also={"block_n": 32}),
                  timed({"attn_bias": True}, 140.0, "flash2", also={"block_n": 32}),
                  timed({"attn_bias": 1}, 130.0, "flash2", also={"block_n": 32}))
    assert list(frame(rows, SHAPE, "flash2")["changed"])[1:] == [
        "dropout 0.1", "a bias for every head", "one bias for all heads"]


@pytest.mark.parametrize("rows", [
    [timed({}, 100.0)],
    [timed({"num_warps": 4}, 100.0), timed({"num_warps": 8}, 120.0)],  # neither is the one without a request
    [timed({}, 100.0), timed({"tma": False}, 120.0, also={"folded": False})],
    [timed({}, None, status="out of memory"), timed({"tma": False}, 120.0)],
])
def test_what_is_no_single_change_gives_no_figure(rows):
    assert frame(bundle(*rows), SHAPE, "ablation").empty
    assert "not available" in words(switches(bundle(*rows), SHAPE)) and not switches(bundle(*rows), SHAPE).data
