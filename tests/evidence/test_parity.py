"""Parity, worst residuals and the memory pyramid on known counters."""

from dataclasses import replace

import pytest

from profiler import evidence
from profiler.spec import AttentionShape
from tests import synthetic
from tests.evidence.test_claims import changed

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
MATRIX, Q = 536_870_912, 8_388_608


@pytest.fixture(scope="module")
def bundle():
    return synthetic.bundle(head_dims=(64,), lengths=(4096,), masks=("full",))


def one(bundle, implementation, stage, quantity):
    return next(r for r in evidence.parity(bundle, quantity) if (r.implementation, r.stage) == (implementation, stage))


def test_counters_equal_to_the_prediction_are_all_good(bundle):
    rows = evidence.parity(bundle)
    assert {r.quantity for r in rows} == {"dram_read", "dram_write", "l2_to_sm", "sm_to_l2", "tensor_flops",
                                          "special_ops"}
    assert [r for r in rows if not r.good] == []
    assert one(bundle, "flash2", "attention", "l2_to_sm").predicted == Q + 32 * 2 * Q


def test_an_error_counts_from_the_edge_of_the_interval(bundle):
    short = changed(bundle, "dram_write_bytes", lambda v: v - 113_687_091.2, implementation="naive", stage="scores")
    row = one(short, "naive", "scores", "dram_write")
    # 60 MB may stay in L2; the other 53.687 MB are a tenth of the matrix
    assert row.error == pytest.approx(-0.1) and not row.good
    assert row.low == MATRIX - 60_000_000 and row.high == MATRIX


def test_a_lower_bound_is_never_exceeded_wrongly(bundle):
    row = one(bundle, "naive", "softmax", "l2_to_sm")
    assert row.high is None and row.error == 0
    less = changed(bundle, "l2_to_sm_bytes", lambda v: MATRIX / 2, implementation="naive", stage="softmax")
    assert one(less, "naive", "softmax", "l2_to_sm").error == pytest.approx(-0.5)


def test_a_library_that_reads_s_more_than_once_is_within_its_lower_bound(bundle):
    """sdpa_math chooses its launches: Q, K, V, S, P once is the least it can read."""
    rows = bundle.launches[bundle.launches["implementation"].eq("sdpa_flash")].assign(
        implementation="sdpa_math", config_id="math", dram_read_bytes=3.0 * (2 * MATRIX + 3 * Q))
    row = one(replace(bundle, launches=rows), "sdpa_math", "attention", "dram_read")
    assert row.predicted == 2 * MATRIX + 3 * Q and row.high is None and row.error == 0


def test_worst_first_in_multiples_of_the_tolerance(bundle):
    doctored = changed(bundle, "tensor_flops", lambda v: v * 1.01, implementation="flash2")  # ten times its 0.1%
    doctored = changed(doctored, "dram_read_bytes", lambda v: v * 1.05, implementation="flash2")  # 2.5 times its 2%
    found = evidence.worst(evidence.parity(doctored), 2)
    assert [r.quantity for r in found] == ["tensor_flops", "dram_read"]


def test_pyramid(bundle):
    registers, shared, l2, hbm = evidence.pyramid(bundle, SHAPE)
    assert registers.capacity_bytes == 132 * 262_144 and registers.bytes_per_s is None and registers.missing
    assert shared.capacity_bytes == 132 * 228 * 1024
    assert shared.bytes_per_s == pytest.approx(128 * 132 * 1.746e9)
    assert l2.capacity_bytes == 60_000_000 and l2.traffic["flash2"] == Q + 32 * 2 * Q + Q
    assert (hbm.bytes_per_s, hbm.source) == (4.2e12, "measured ceiling")
    assert hbm.traffic["naive"] == 6 * MATRIX + 4 * Q and hbm.traffic["flash2"] == 4 * Q
    uncounted = replace(bundle, profile={**bundle.profile, "ceilings": []})
    assert evidence.pyramid(uncounted)[3].source == "report counters"
