"""Headline and ledger, number by number."""

from collections import defaultdict
from dataclasses import replace

import pytest

from profiler import evidence
from profiler.errors import BadInput
from profiler.spec import AttentionShape
from tests import synthetic
from tests.evidence.test_claims import changed

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
MATRIX, Q, L2 = 536_870_912, 8_388_608, 60_000_000


@pytest.fixture(scope="module")
def bundle():
    return synthetic.bundle(head_dims=(64,), lengths=(512, 4096))


def test_headline(bundle):
    h = evidence.headline(bundle, SHAPE)
    assert h.compulsory_bytes == 4 * Q
    assert h.matrix_bytes == MATRIX
    assert h.naive.dram_bytes == h.naive.predicted_dram_bytes == 6 * MATRIX + 4 * Q
    assert h.naive_folded.dram_bytes == 4 * MATRIX + 4 * Q
    assert (h.naive.matrix_passes, h.naive_folded.matrix_passes, h.flash.matrix_passes) == (6, 4, 0)
    assert h.ratio_by_floor == h.ratio_counted == 97.0  # (6·64 + 4)/4, in units of Q
    assert h.memory_ratio == pytest.approx((Q + 2 * MATRIX) / (Q + 4 * 16 * 4096))
    assert h.speedup == pytest.approx(h.naive.median_ns / h.flash.median_ns)
    assert h.flash.error_relative == 2.0e-3 and h.error_eager_relative == 2.4e-3


def test_the_ratio_to_quote_is_not_flattered_by_writes_that_stay_in_l2(bundle):
    hidden = changed(bundle, "dram_write_bytes", lambda v: 2e6, implementation="flash2")
    h = evidence.headline(hidden, SHAPE)
    assert h.ratio_by_floor == 97.0
    assert h.ratio_counted == pytest.approx((6 * MATRIX + 4 * Q) / (3 * Q + 2e6))


def test_headline_of_a_missing_shape_is_refused(bundle):
    with pytest.raises(BadInput, match=r"No headline for B1 H16 N999.*holds nothing"):
        evidence.headline(bundle, replace(SHAPE, nq=999, nk=999))


def test_default_shape_is_the_largest_up_to_4096_with_both():
    full = synthetic.bundle(head_dims=(128, 64), lengths=(512, 4096, 8192))
    assert evidence.default_shape(full) == SHAPE


def sums(rows):
    total = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        entry = total[row.stage, row.direction]
        for i, value in enumerate((row.predicted_bytes, row.measured_bytes or 0.0, row.residual_bytes)):
            entry[i] += value
    return {key: tuple(value) for key, value in total.items()}


def test_ledger_rows_add_up_to_the_counters_and_the_prediction(bundle):
    counted = changed(bundle, "dram_write_bytes", lambda v: v - 27e6, implementation="naive", stage="scores")
    counted = changed(counted, "dram_read_bytes", lambda v: v + 3e6, implementation="naive", stage="values")
    total = sums(evidence.ledger(counted, "naive", SHAPE))
    assert total["scores", "write"] == pytest.approx((MATRIX, MATRIX - 27e6, -27e6))
    assert total["values", "read"] == pytest.approx((MATRIX + Q, MATRIX + Q + 3e6, 3e6))
    assert total["softmax", "read"] == pytest.approx((MATRIX, MATRIX, 0))


def residuals(bundle, implementation="naive"):
    return {(r.stage, r.direction, r.cause): r.residual_bytes
            for r in evidence.ledger(bundle, implementation, SHAPE) if not r.tensor}


def test_a_short_write_is_dirty_lines_up_to_the_l2_and_the_rest_is_shown(bundle):
    short = changed(bundle, "dram_write_bytes", lambda v: v - 27e6, implementation="naive", stage="scores")
    assert residuals(short) == {("scores", "write", "dirty lines left in L2"): -27e6}
    shorter = changed(bundle, "dram_write_bytes", lambda v: v - 70e6, implementation="naive", stage="scores")
    assert residuals(shorter) == {("scores", "write", "dirty lines left in L2"): -L2,
                                  ("scores", "write", "rest"): -10e6}


def test_a_flash_excess_that_no_cause_explains_is_the_rest(bundle):
    """Q, K, V and O fit in L2, so nothing is fetched twice."""
    more = changed(bundle, "dram_read_bytes", lambda v: v + 1e6, implementation="flash2")
    assert residuals(more, "flash2") == {("attention", "read", "rest"): 1e6}


def test_carried_lines_only_without_a_flush(bundle):
    more = changed(bundle, "dram_write_bytes", lambda v: v + 5e6, implementation="naive", stage="scale")
    assert residuals(more) == {("scale", "write", "rest"): 5e6}
    warm = replace(more, profile={**more.profile, "cache_control": "none"})
    assert residuals(warm) == {("scale", "write", "dirty lines of earlier kernels"): 5e6}


def test_missing_counters_are_not_available_not_zero(bundle):
    blind = changed(bundle, "dram_read_bytes", lambda v: None, implementation="flash2")
    rows = [r for r in evidence.ledger(blind, "flash2", SHAPE) if r.direction == "read"]
    assert {(r.tensor, r.measured_bytes, r.kind) for r in rows} == {(t, None, "not available") for t in "QKV"}
    assert evidence.headline(blind, SHAPE).ratio_counted is None
