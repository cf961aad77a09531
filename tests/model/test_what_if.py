"""What-if rows against numbers worked out by hand, and how bytes follow M, N and d."""

import pytest

from profiler.errors import BadInput
from profiler.model import VARY, what_if
from profiler.spec import AttentionShape, DeviceSpec

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
GPU = DeviceSpec("made up", "9.0", sm_count=132, l2_size_bytes=60_000_000, sm_clock_hz=1.7e9, dram_bytes_per_s=4e12,
                 tensor_flops_per_s=1e15)


def binding(rows: list[dict]) -> list[str]:
    return [row["bound"] for row in rows if row["binding"]]


def test_l2_to_sm_falls_as_one_over_m_while_hbm_stays():
    """M of 64 KiB holds four tiles of 128 rows · 64 · 2 B: Q once and K, V for each of 32 query blocks."""
    small, large = (next(r for r in what_if(SHAPE, "flash2", GPU, "sram_bytes", [m])) for m in (1 << 15, 1 << 16))
    q = 16 * 4096 * 64 * 2
    assert small["l2_to_sm_bytes"] == q + 64 * 2 * q
    assert large["l2_to_sm_bytes"] == q + 32 * 2 * q
    assert small["hbm_bytes"] == large["hbm_bytes"] == 4 * q


def test_with_m_fixed_the_bytes_grow_as_the_square_of_d():
    """Theorem 2 has d²: twice the head size halves the rows of a tile and doubles the bytes of a row."""
    one, two = (what_if(AttentionShape(1, 16, 4096, 4096, d), "flash2", GPU, "sram_bytes", [1 << 16])[0]
                for d in (64, 128))
    q = 16 * 4096 * 64 * 2
    assert two["l2_to_sm_bytes"] - 2 * q == 4 * (one["l2_to_sm_bytes"] - q)


def test_a_faster_roof_hands_over_to_the_next():
    rows = what_if(SHAPE, "flash2", GPU, "special_ops_per_s", [1e12, 1e15])
    assert binding(rows) == ["special", "tensor"]
    special = [r for r in rows if r["bound"] == "special"]
    assert special[0]["seconds"] == pytest.approx((16 * 4096**2 + 4 * 16 * 4096 * 64) / 1e12)
    assert special[0]["seconds"] / special[1]["seconds"] == pytest.approx(1000)
    assert binding(what_if(SHAPE, "naive", GPU, "dram_bytes_per_s", [4e12, 4e15])) == ["dram", "l2_to_sm"]


def test_n_moves_naive_by_its_square_and_flash_by_itself():
    for name, growth in (("naive", 4), ("flash2", 2)):
        one, two = (what_if(SHAPE, name, GPU, "n", [n])[0]["hbm_bytes"] for n in (16384, 32768))
        assert two / one == pytest.approx(growth, rel=0.01)


def test_a_cache_grows_while_its_queries_stay():
    rows = what_if(AttentionShape(1, 16, 1, 4096, 64), "decode", GPU, "n", [8192])
    assert rows[0]["hbm_bytes"] == 2 * 16 * 64 * 2 + 2 * 16 * 8192 * 64 * 2 + 16 * 4  # Q and O, K and V, LSE


@pytest.mark.parametrize("vary", VARY)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_row_has_one_shape(vary, direction):
    rows = what_if(SHAPE, "flash2", GPU, vary, [4096, 8192], direction=direction)
    assert {row["value"] for row in rows} == {4096, 8192}
    assert all(set(r) == {"value", "bound", "seconds", "binding", "hbm_bytes", "l2_to_sm_bytes"} for r in rows)
    assert len(binding(rows)) == 2 and all(r["seconds"] > 0 for r in rows)


@pytest.mark.parametrize(("vary", "value", "said"), [
    ("weight", 1, "vary: expected one of sram_bytes"), ("n", 0, "n: expected a positive whole number, got 0"),
    ("n", 1.5, "n: expected a positive whole number, got 1.5"),
    ("dram_bytes_per_s", -1, "dram_bytes_per_s: expected a positive number"),
    ("dram_bytes_per_s", float("nan"), "positive number, got nan"),
    ("sram_bytes", 511, "sram_bytes: expected at least 512")])
def test_nonsense_is_refused_by_name(vary, value, said):
    with pytest.raises(BadInput, match=said):
        what_if(SHAPE, "flash2", GPU, vary, [value])
