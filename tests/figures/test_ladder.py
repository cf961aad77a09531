"""FlashAttention-1, 2 and 3 in steps, by hand on made-up times and counters of the suite ladder."""

from dataclasses import replace

import pytest

from profiler.figures.ladder import frame, ladder
from profiler.spec import AttentionShape
from tests import ladder as made
from tests.figures.test_figures import text, words

SHAPE = AttentionShape(4, 16, 4096, 4096, 128)
BUNDLE = made.bundle()


def test_each_step_against_the_one_before_it():
    data = frame(BUNDLE, SHAPE)
    assert list(data["step"]) == [
        "Naive, scale folded", "FlashAttention-1 schedule", "FlashAttention-2 (Triton)",
        "Hopper: TMA, a warp that loads", "+ warpgroups multiply in turn", "+ softmax under P·V",
        "+ the first block's maximum stays", "SDPA flash", "SDPA cuDNN"]
    # 9000, 2000, 1200, 1000, 900, 800, 750 µs: 9 / 2 − 1, 2 / 1.2 − 1, ...
    assert list(data["gain"][1:7]) == pytest.approx([3.5, 2 / 3, 0.2, 1 / 9, 0.125, 1 / 15])
    assert data["gain"].isna()[[0, 7, 8]].all()
    assert data["flops_per_s"][6] == pytest.approx(4 * 64 * 4096 * 4096 * 128 / 750e-6)
    assert list(data["tensor_pipe_pct"]) == pytest.approx(list(made.TENSOR_PCT))
    # the first step waits 3 of 4 for memory, the fused ones first at a barrier (2 of 4), then for matmuls (2 of 4)
    assert list(data["waits_for"][:3]) == ["long scoreboard", "barrier", "gmma"]
    assert list(data["waits_for_pct"][:3]) == pytest.approx([75, 50, 50])


def test_the_figure_says_the_finding_and_each_gain():
    figure = ladder(BUNDLE, SHAPE)
    assert words(figure).replace("\u00a0", " ") == (
        "The Hopper kernel has 1.60× the FLOP/s of FlashAttention-2; of its ideas “softmax under P·V” gives most, "
        "+12.5%")
    assert "+6.7%" in text(figure) and "4.50×" in text(figure) and "Synthetic GPU" in text(figure)


@pytest.mark.parametrize("dropped", ["flash2", "turns"])
def test_what_is_no_chain_of_steps_gives_none(dropped):
    rows = BUNDLE.timings
    if dropped == "turns":  # the step between is gone: two ideas at once
        rows = rows[~rows["parameters"].str.contains('"fixed":false,"overlap":false,"turns":true').fillna(False)]
        assert frame(replace(BUNDLE, timings=rows), SHAPE).empty
        assert "run --suite ladder" in text(ladder(replace(BUNDLE, timings=rows), SHAPE))
    else:
        data = frame(replace(BUNDLE, timings=rows[rows["implementation"].ne("flash2")]), SHAPE)
        assert len(data) == 8 and data["gain"][2] == pytest.approx(1)  # then over FlashAttention-1
