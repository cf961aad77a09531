"""What-if curves and bytes over N: values worked out here from the algorithm and the synthetic GPU's peaks."""

from dataclasses import replace

import pytest

from profiler.figures import canvas
from profiler.figures.theorem import over_n, over_n_frame
from profiler.figures.what_if import curves, frame
from profiler.spec import AttentionShape
from tests import synthetic
from tests.figures.samples import BUNDLE, SHAPE
from tests.figures.test_figures import text, words
from tests.figures.test_ledger import Q, S, doctored


def rows_of(data, name):
    return data[data["implementation"].eq(name)].set_index("value")


def test_twice_the_bandwidth_halves_naive_and_leaves_flash():
    data = frame(BUNDLE, SHAPE)
    peak = synthetic.DRAM_PEAK
    naive, flash = rows_of(data, "naive"), rows_of(data, "flash2")
    assert set(data["kind"]) == {"predicted"} and list(data["value"][data["here"]]) == [peak, peak]
    for factor in (0.25, 1, 2, 4):
        assert naive["ns"][factor * peak] == pytest.approx((6 * S + 4 * Q) / (factor * peak) * 1e9)
    # flash2 is nowhere near HBM: K and V for each of 32 blocks of 128 rows come from L2, whose peak stays
    assert flash["ns"].nunique() == 1 and set(flash["hbm_bytes"]) == {4 * Q}
    assert words(curves(BUNDLE, SHAPE)) == ("At twice the HBM bandwidth the least time would be 0.500× for naive and "
                                            "the same for FlashAttention-2 (Triton)")


def test_all_of_it_is_called_predicted():
    figure = curves(BUNDLE, SHAPE, vary="n")
    assert "Predicted, not measured" in text(figure) and "all values predicted" in text(figure)
    assert all(t.marker.color == figure.layout.template.layout.paper_bgcolor for t in figure.data)  # hollow


def test_more_on_chip_memory_means_fewer_bytes_to_the_sms():
    data = rows_of(frame(BUNDLE, SHAPE, ("flash2",), "sram_bytes"), "flash2")
    for memory in (32768, 65536, 131072):
        rows = memory // (4 * 64 * 2)  # four tiles of D = 64 elements of 2 B a row
        assert data["l2_to_sm_bytes"][memory] == Q + (4096 // rows) * 2 * Q
    assert "flash2" not in set(frame(doctored(BUNDLE, "flash2", parameters="{}"), SHAPE)["implementation"])
    assert "Not drawn: SDPA flash (tiles not known)" in text(curves(BUNDLE, SHAPE, ("naive", "flash2", "sdpa_flash")))


def test_special_functions_bind_below_the_head_size_at_which_the_roofs_meet():
    """4·D FLOPs an exponential at 944 TFLOP/s against 16·132·1.746 GHz: they meet at D = 64."""
    data = rows_of(frame(BUNDLE, SHAPE, ("flash2",), "head_dim"), "flash2")
    assert data["binding"][16] == data["binding"][32] == "special" and data["binding"][256] == "tensor"
    assert words(curves(BUNDLE, SHAPE, ("flash2",), "head_dim")).startswith(
        "FlashAttention-2 (Triton) would be bound by special functions up to D = ")


def test_without_peaks_nothing_is_drawn():
    blind = replace(BUNDLE, launches=BUNDLE.launches.assign(dram_peak_bytes_per_s=None))
    blind = replace(blind, launches=blind.launches.astype(BUNDLE.launches.dtypes.to_dict()))
    assert not curves(blind, SHAPE).data
    assert not curves(BUNDLE, AttentionShape(1, 16, 333, 333, 64)).data


def test_bytes_of_both_levels_over_n():
    data = over_n_frame(BUNDLE, SHAPE)
    measured = data[data["kind"].eq("measured")]
    at = measured[measured["quantity"].eq("l2_to_sm")].set_index("n")["bytes"]
    for n in (512, 1024, 8192):
        q = 16 * n * 64 * 2
        assert at[n] == q + (n // 128) * 2 * q
    # the counters of this bundle are the formula: points on the lines, slope 1 at HBM
    assert canvas.title(over_n(BUNDLE, SHAPE)).endswith("and HBM bytes grow as N^1.00")
    assert not over_n(BUNDLE, replace(SHAPE, head_dim=32)).data
