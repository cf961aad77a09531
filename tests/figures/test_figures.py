"""Scaling, theorem, traffic, parity, bounds, bars, quadrant: drawn values by hand, frames, titles; and every layout."""

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import pytest

from profiler.figures import canvas, style
from profiler.figures.bars import bars
from profiler.figures.bounds import time_bounds
from profiler.figures.parity import frame as parity_frame
from profiler.figures.parity import parity, worst
from profiler.figures.quadrant import quadrant
from profiler.figures.scaling import convention_flops, scaling
from profiler.figures.theorem import theorem
from profiler.figures.traffic import traffic
from profiler.spec import AttentionShape
from tests.figures.geometry import problems
from tests.figures.samples import BUNDLE, FIGURES, SHAPE, SWEEP
from tests.figures.test_ledger import Q, S, doctored

LENGTHS = [512, 1024, 2048, 4096, 8192]


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def words(figure):
    return canvas.title(figure).replace("\u00a0", " ")


def text(figure):
    return " ".join(a.text for a in figure.layout.annotations if a.text).replace("<br>", " ").replace("\u00a0", " ")


@pytest.mark.parametrize("size", ["page", "talk"])
@pytest.mark.parametrize("name", FIGURES)
def test_no_label_is_cut_or_covers_another(name, size):
    figure = FIGURES[name](theme="light", size=size)
    canvas_size = style.size_of(size)
    for width in {canvas_size.narrow, canvas_size.width}:
        assert problems(figure, width) == []


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_survives_json_with_its_data_and_foot(name):
    figure = FIGURES[name](theme="dark", size="page")
    again = go.Figure(figure.to_plotly_json())
    pd.testing.assert_frame_equal(canvas.to_frame(again), canvas.to_frame(figure))
    assert len(canvas.to_frame(figure))
    assert canvas.title(figure) and "<" not in canvas.title(figure)
    foot = next(a.text for a in figure.layout.annotations if a.name == "foot").replace("\u00a0", " ")
    for part in ("Synthetic GPU", "ncu 0", "cache-control all", "clock-control none", "torch 0", "2026-01-01"):
        assert part in foot.replace("<br>", " ")
    assert figure.layout.paper_bgcolor is None and figure.layout.template.layout.paper_bgcolor == "#0E1116"


@pytest.mark.parametrize("name", FIGURES)
def test_light_and_dark_draw_the_same_values(name):
    light, dark = (canvas.to_frame(FIGURES[name](theme=theme)) for theme in ("light", "dark"))
    pd.testing.assert_frame_equal(light, dark)


def test_scaling_draws_counted_and_predicted_bytes():
    figure = scaling(BUNDLE, SHAPE)
    assert list(trace(figure, "naive").x) == LENGTHS
    assert list(trace(figure, "naive").y) == [6 * 16 * n * n * 2 + 4 * 16 * n * 64 * 2 for n in LENGTHS]
    assert list(trace(figure, "flash2").y) == [4 * 16 * n * 64 * 2 for n in LENGTHS]
    assert list(figure.layout.xaxis.tickvals) == LENGTHS
    assert trace(figure, "naive/predicted").line.dash == "dash"
    data = canvas.to_frame(figure)
    rows = data[data["implementation"].eq("naive") & data["kind"].eq("measured")]
    assert list(rows["value"]) == list(trace(figure, "naive").y)
    assert words(figure) == "HBM bytes grow as N^1.97 in naive attention, as N^1.00 in FlashAttention"


def test_scaling_of_time_and_rate():
    figure = scaling(BUNDLE, SHAPE, "time")
    seconds = (6 * S + 4 * Q) / (0.8 * 4.8e12)
    assert trace(figure, "naive").y[3] == pytest.approx(seconds * 1e9)
    assert figure.layout.yaxis.ticktext[-1].endswith("s")
    rate = scaling(BUNDLE, SHAPE, "tflops")
    assert trace(rate, "flash2").y[3] == pytest.approx(0.4 * 9.44e14)
    assert convention_flops(SHAPE) == 4 * 16 * 4096 * 4096 * 64
    assert convention_flops(replace(SHAPE, mask="causal"), "backward") == 5 * 16 * 4096 * 4096 * 64


def test_scaling_names_what_did_not_fit():
    timings = BUNDLE.timings.copy()
    gone = timings["implementation"].eq("naive") & timings["nq"].eq(8192)
    timings.loc[gone, ["median_ns", "peak_memory_bytes"]] = pd.NA
    timings.loc[gone, "status"] = "out of memory"
    figure = scaling(replace(BUNDLE, timings=timings), SHAPE, "peak_memory")
    assert list(trace(figure, "naive").x) == LENGTHS[:-1]
    assert "Not drawn: naive at N = 8,192 (out of memory)." in text(figure)


def test_scaling_says_when_flash_is_slower():
    timings = BUNDLE.timings.copy()
    slow = timings["implementation"].eq("flash2")
    timings.loc[slow, "median_ns"] = timings.loc[slow, "median_ns"] * 100
    figure = scaling(replace(BUNDLE, timings=timings), SHAPE, "time")
    assert "slower than naive" in words(figure)


def test_theorem_points_and_line():
    figure = theorem(SWEEP, SHAPE)
    expected = {b: 16 * (4096 // b) * 2 * 4096 * 64 * 2 + Q for b in (16, 32, 64, 128, 256)}
    assert dict(zip(trace(figure, "L2 → SM").x, trace(figure, "L2 → SM").y)) == {b: expected[b] for b in (64, 128)}
    line = trace(figure, "L2 → SM/predicted")
    assert dict(zip(line.x, line.y)) == expected
    assert list(trace(figure, "HBM/predicted").y) == [4 * Q] * 5
    assert words(figure) == "From 64 to 128 rows a block, L2 → SM bytes are within 0.01% of the theorem's prediction"


def test_theorem_that_does_not_hold_is_not_claimed():
    bundle = doctored(SWEEP, "flash2", l2_to_sm_bytes=2e9)
    assert "off the theorem's prediction" in words(theorem(bundle, SHAPE)).replace("up to ", "")
    assert words(theorem(BUNDLE.renamed("other"), SHAPE, "naive")).endswith("not available")


def test_traffic_bands_share_one_scale():
    figure = traffic(BUNDLE, SHAPE)
    thick = {t.name: max(t.y) - min(t.y) for t in figure.data}
    assert thick["naive/HBM → L2"] / thick["flash2/HBM → L2"] == pytest.approx((3 * S + 3 * Q) / (3 * Q))
    assert thick["naive/HBM → L2"] / thick["naive/L2 → HBM"] == pytest.approx((3 * S + 3 * Q) / (3 * S + Q))
    data = canvas.to_frame(figure).set_index(["implementation", "path"])["bytes"]
    assert data["flash2", "L2 → SM"] == Q + 32 * 2 * Q  # the synthetic counter: Q + N/128 · (K + V)
    assert words(figure).startswith("FlashAttention moves 97.0× fewer bytes at HBM and")
    kept = traffic(doctored(BUNDLE, "flash2", dram_write_bytes=0.0), SHAPE)  # counted 3Q, compulsory 4Q
    assert words(kept).startswith("FlashAttention moves 97.0× fewer bytes at HBM and")
    more = traffic(doctored(BUNDLE, "flash2", dram_read_bytes=float(12 * S)), SHAPE)
    assert "more at HBM" in words(more)


def test_traffic_without_a_counter_draws_no_band():
    figure = traffic(doctored(BUNDLE, "flash2", l2_to_sm_bytes=pd.NA), SHAPE)
    assert not [t for t in figure.data if t.name == "flash2/L2 → SM"]
    assert "L2 → SM not available" in text(figure).replace("<b>", "").replace("</b>", "").replace("  ", " ")


def test_parity_counts_and_names_the_worst():
    figure = parity(BUNDLE, "dram_read")
    assert words(figure) == "All 190 predictions of HBM bytes read hold within 0.01%"
    bundle = doctored(BUNDLE, "sdpa_flash", dram_read_bytes=3.3 * Q)  # 20 shapes; right only where 3Q is meant
    data = parity_frame(bundle, "dram_read")
    row = data[data["implementation"].eq("sdpa_flash") & data["shape"].eq(SHAPE.label())].iloc[0]
    assert row["deviation_pct"] == pytest.approx(10)  # 3.3Q / 3Q
    # Q, K and V do not stay in L2 at N 8192: there the model predicts an interval, and 10% more lies in it
    assert row["within"] == False and row["low"] == row["high"] == 3 * Q  # noqa: E712
    assert words(parity(bundle, "dram_read")).startswith("17")
    assert " (170 within 2%" in words(parity(bundle, "dram_read"))
    assert set(worst(data, 3)["implementation"]) == {"sdpa_flash"}


def test_parity_of_lower_bounds_is_not_drawn():
    data = parity_frame(BUNDLE, "l2_to_sm")
    naive = data[data["implementation"].eq("naive")]
    assert set(naive["why_not_drawn"]) == {"predicted as a lower bound only"}
    assert "lower bound" in text(parity(BUNDLE, "l2_to_sm"))


def test_bounds_are_bytes_over_bandwidth():
    figure = time_bounds(BUNDLE, SHAPE)
    assert trace(figure, "naive/dram").x[0] == pytest.approx((6 * S + 4 * Q) / 4.8e12 * 1e9)
    assert trace(figure, "flash2/tensor").x[0] == pytest.approx(4 * 16 * 4096 * 4096 * 64 / 9.44e14 * 1e9)
    assert trace(figure, "naive/measured").x[0] == pytest.approx((6 * S + 4 * Q) / (0.8 * 4.8e12) * 1e9)
    assert trace(figure, "naive/dram").marker.color == "rgba(0,0,0,0)"  # predicted is hollow
    assert words(figure).startswith("The HBM roof asks for 80% of naive's time")


def test_bars_draw_the_medians_and_say_what_is_missing():
    timings = BUNDLE.timings.copy()
    gone = timings["implementation"].eq("naive")
    timings.loc[gone, "peak_memory_bytes"] = pd.NA
    timings.loc[gone, "status"] = "out of memory"
    figure = bars(replace(BUNDLE, timings=timings), SHAPE)
    assert list(trace(figure, "time").x) == pytest.approx([(6 * S + 4 * Q) / 3840, FLASH_NS])
    assert list(trace(figure, "peak_memory").x) == [Q + 4 * 16 * 4096]
    assert "out of memory" in text(figure)
    assert words(bars(BUNDLE, SHAPE)).startswith("FlashAttention-2 (Triton) against naive: 4.66× faster and 125× less")


FLASH_NS = 4 * 16 * 4096 * 4096 * 64 / (0.4 * 9.44e14) * 1e9


def test_quadrant_draws_each_launch():
    figure = quadrant(BUNDLE, SHAPE)
    naive = trace(figure, "naive")
    assert sorted(naive.x) == [12.5, 12.5, 12.5, 94.0]
    assert trace(figure, "flash2").y[0] == pytest.approx(40)
    assert words(figure) == ("FlashAttention keeps the Tensor Cores 40.0% busy at 12.5% occupancy, "
                             "naive 8.59% at 39.4%")
    null = quadrant(doctored(BUNDLE, "flash2", tensor_pipe_pct=pd.NA), SHAPE)
    assert [t.name for t in null.data] == ["naive"]


@pytest.mark.parametrize("shape", [
    AttentionShape(2, 32, 1, 8192, 128, kv_heads=8, dtype="fp16", mask="causal"), AttentionShape(1, 1, 7, 7, 8),
])
def test_a_shape_that_is_not_there_says_so(shape):
    for make in (scaling, traffic, time_bounds, bars, quadrant, theorem):
        figure = make(BUNDLE, shape)
        assert not figure.data
        assert canvas.to_frame(figure).empty
        assert len(text(figure)) > 20


@pytest.mark.parametrize(("naive", "ours", "said"), [(400, 100, "4.00× less peak memory"),
                                                     (100, 400, "4.00× more peak memory")])
def test_scaling_of_two_lengths_calls_memory_less_or_more_and_never_fast(naive, ours, said):
    timings = BUNDLE.timings[BUNDLE.timings["nq"].isin(LENGTHS[:2])].copy()
    for name, value in (("naive", naive), ("flash2", ours)):
        timings.loc[timings["implementation"].eq(name), "peak_memory_bytes"] = value
    title = words(scaling(replace(BUNDLE, timings=timings), SHAPE, "peak_memory"))
    assert said in title and "fast" not in title and "slow" not in title
