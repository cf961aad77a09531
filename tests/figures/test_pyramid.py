"""The pyramid: capacities and bandwidths by hand, the bytes as counted, what has no counter said and not drawn."""

import pytest

from profiler.figures import canvas
from profiler.figures.pyramid import frame, pyramid
from profiler.spec import AttentionShape
from tests.figures.samples import BUNDLE, SHAPE
from tests.figures.test_figures import text, words
from tests.figures.test_ledger import Q, S


def test_levels_of_the_gpu_and_bytes_of_each_implementation():
    data = frame(BUNDLE, SHAPE).set_index(["level", "implementation"])
    assert data["capacity_bytes"]["registers", "naive"] == 132 * 65_536 * 4
    assert data["capacity_bytes"]["shared memory", "naive"] == 132 * 228 * 1024  # compute capability 9.0
    assert data["bytes_per_s"]["shared memory", "naive"] == pytest.approx(128 * 132 * 1.746e9)
    assert data["capacity_bytes"]["L2", "naive"] == 60_000_000
    assert data["bytes"]["HBM", "naive"] == 6 * S + 4 * Q and data["bytes"]["HBM", "flash2"] == 4 * Q
    # flash2 reads Q once, K and V for each of 32 blocks of 128 rows, and writes O
    assert data["bytes"]["L2", "flash2"] == Q + 2 * Q * 32 + Q
    assert data["bytes"].isna()["registers", "naive"]
    assert data["why_not_drawn"]["shared memory", "flash2"] == "no counter of its bytes here"


def test_bars_share_one_scale_and_the_title_takes_the_ratio():
    figure = pyramid(BUNDLE, SHAPE)
    bars = {t.name: t.x[0] for t in figure.data if t.type == "bar"}
    assert set(bars) == {"L2/naive", "L2/flash2", "HBM/naive", "HBM/flash2"}
    assert bars["HBM/naive"] / bars["HBM/flash2"] == pytest.approx((6 * S + 4 * Q) / (4 * Q))
    assert words(figure).startswith("FlashAttention-2 (Triton) moves 97.0× fewer bytes at HBM")
    assert text(figure).count("no counter of its bytes here") == 2
    assert len(canvas.to_frame(figure)) == 8


def test_without_counters_nothing_is_drawn():
    assert not pyramid(BUNDLE, AttentionShape(1, 16, 333, 333, 64)).data
