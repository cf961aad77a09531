"""What a counter may show beyond the prediction: each cause within what it can explain, and no further."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler import evidence
from profiler.spec import AttentionShape
from tests import synthetic
from tests.evidence.test_claims import changed, verdicts

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
LONG = AttentionShape(1, 16, 8192, 8192, 64)  # Q + K + V is 50.3 MB, and 60 MB of L2 hold two copies of 30
Q, MATRIX = 8_388_608, 536_870_912


@pytest.fixture(scope="module")
def bundle():
    return synthetic.bundle(head_dims=(64,), lengths=(4096, 8192))


def causes(bundle, implementation, shape, stage, quantity):
    found = next(r for r in evidence.residuals(bundle, implementation, shape)
                 if (r.stage, r.quantity) == (stage, quantity))
    return dict(found.causes)


def good(bundle, implementation, shape, stage, quantity):
    return next(r for r in evidence.parity(bundle, quantity)
                if (r.implementation, r.shape, r.stage) == (implementation, shape, stage)).good


def test_k_and_v_again_once_a_wave_and_no_more(bundle):
    """64 blocks of 128 queries; 3.9 waves are four, so K and V come three times more at most: 6 · 16.8 MB."""
    most = 3 * 2 * 2 * Q
    for extra, inside in ((most, True), (most + 0.1 * most, False)):
        more = changed(bundle, "dram_read_bytes", lambda v, e=extra: v + e, implementation="flash2", n=8192)
        assert good(more, "flash2", LONG, "attention", "dram_read") == inside
        found = causes(more, "flash2", LONG, "attention", "dram_read")
        assert found["refetch: the working set exceeds L2"] == most
        assert found.get("rest", 0) == pytest.approx(extra - most)
        claim = verdicts(more, LONG)["compulsory_floor"]
        assert claim.verdict == ("cannot tell" if inside else "fails")
    assert "30.0 MB" in verdicts(changed(bundle, "dram_read_bytes", lambda v: 1.1 * v, implementation="flash2", n=8192),
                                 LONG)["compulsory_floor"].missing


def test_without_waves_once_a_block(bundle):
    blind = changed(bundle, "waves_per_sm", lambda v: None, implementation="flash2", n=8192)
    more = changed(blind, "dram_read_bytes", lambda v: v + 63 * 4 * Q, implementation="flash2", n=8192)
    assert good(more, "flash2", LONG, "attention", "dram_read")  # 64 blocks of 128 queries, each fetches K and V once


def test_a_matmul_whose_operands_leave_l2_fetches_at_most_what_its_tiles_take(bundle):
    """Q and K are 33.6 MB, and 40 MB are counted from L2 to the SMs."""
    tiled = changed(bundle, "l2_to_sm_bytes", lambda v: 40e6, implementation="naive", stage="scores", n=8192)
    for read, rest in ((39e6, 0), (42e6, 2e6)):
        more = changed(tiled, "dram_read_bytes", lambda v, r=read: r, implementation="naive", stage="scores", n=8192)
        found = causes(more, "naive", LONG, "scores", "dram_read")
        assert found["operands read again by several tiles"] == pytest.approx(min(read, 40e6) - 4 * Q)
        assert found.get("rest", 0) == pytest.approx(rest)
        assert verdicts(more, LONG)["naive_passes"].verdict == ("fails" if rest else "holds")
    short = changed(bundle, "dram_read_bytes", lambda v: 1.05 * v, implementation="naive", stage="scores")
    assert verdicts(short)["naive_passes"].verdict == "fails"  # 16.8 MB stay in L2: nothing may come twice


def test_half_a_matrix_more_is_no_longer_pass_by_pass(bundle):
    """Within what the tiles take, and yet not what the claim says."""
    tiled = changed(bundle, "l2_to_sm_bytes", lambda v: 10 * MATRIX, implementation="naive", stage="values")
    for passes, verdict in ((0.4, "holds"), (0.6, "fails")):
        more = changed(tiled, "dram_read_bytes", lambda v, p=passes: v + p * MATRIX, implementation="naive",
                       stage="values")
        assert verdicts(more)["naive_passes"].verdict == verdict


def test_spilled_registers_leave_the_sms_and_may_be_evicted(bundle):
    """1000 requests of 128 B: 128 kB more to L2; at DRAM no more than that, and read back no more than was written."""
    spilling = changed(bundle, "spill_requests", lambda v: 1000, implementation="sdpa_flash")
    lse = 16 * 4096 * 4  # written by it too, and left out of the made-up counter
    for column, extra in (("sm_to_l2_bytes", lse + 128e3), ("dram_write_bytes", 128e3), ("dram_read_bytes", 128e3)):
        spilling = changed(spilling, column, lambda v, e=extra: v + e, implementation="sdpa_flash")
    assert causes(spilling, "sdpa_flash", SHAPE, "attention", "dram_read") == {"spilled registers": 128e3}
    assert causes(spilling, "sdpa_flash", SHAPE, "attention", "sm_to_l2") == {
        "row statistics": lse, "spilled registers": 128e3}
    clean = changed(spilling, "spill_requests", lambda v: 0, implementation="sdpa_flash")
    assert causes(clean, "sdpa_flash", SHAPE, "attention", "dram_read") == {"rest": 128e3}


def test_what_a_library_hands_from_launch_to_launch(bundle):
    """A second launch that reads the partial results of the first: 20 MB written, 20 MB read."""
    rows = bundle.launches
    first = rows[rows["implementation"].eq("sdpa_flash") & rows["nq"].eq(4096) & rows["mask"].eq("full")]
    second = first.assign(launch=first["launch"] + 5000, dram_read_bytes=20e6, sm_to_l2_bytes=float(Q),
                          l2_to_sm_bytes=20e6, tensor_flops=0.0)
    split = replace(bundle, launches=pd.concat(
        [rows.assign(sm_to_l2_bytes=rows["sm_to_l2_bytes"].mask(rows["launch"].isin(first["launch"]), 20e6)), second]))
    assert causes(split, "sdpa_flash", SHAPE, "attention", "dram_read") == {
        "handed from one launch of the library to the next": 20e6}
    claim = verdicts(split)["compulsory_floor"]
    assert claim.verdict == "holds" and "handed from one launch" in claim.sentence


def test_elements_that_the_mask_overwrites_need_not_be_read(bundle):
    """An eighth of S is left out; no more than its masked half may be."""
    causal = replace(SHAPE, mask="causal")
    for share, verdict in ((1 / 8, "holds"), (0.6, "fails")):
        less = changed(bundle, "dram_read_bytes", lambda v, s=share: v - s * MATRIX, implementation="naive",
                       stage="mask", mask="causal")
        assert verdicts(less, causal)["naive_passes"].verdict == verdict
