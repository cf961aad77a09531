"""From the least to the counter, cause by cause, with every number by hand."""

import json
from dataclasses import replace

import pytest

from profiler import evidence, table
from profiler.bundle import Bundle
from profiler.spec import AttentionShape, RunConfig
from tests import synthetic
from tests.evidence.test_claims import changed

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
CAUSAL = replace(SHAPE, mask="causal")
Q, MATRIX = 8_388_608, 536_870_912


@pytest.fixture(scope="module")
def bundle():
    return synthetic.bundle(head_dims=(64,), lengths=(4096,))


def of(bundle, implementation, shape, stage, quantity):
    return next(r for r in evidence.residuals(bundle, implementation, shape)
                if (r.stage, r.quantity) == (stage, quantity))


def test_every_row_adds_up(bundle):
    for name in ("naive", "flash2", "sdpa_flash"):
        for shape in (SHAPE, CAUSAL):
            for r in evidence.residuals(bundle, name, shape):
                assert r.least + sum(amount for _, amount in r.causes) == pytest.approx(r.measured), (name, r)


def test_causal_work_is_visible_pairs_and_masked_ones(bundle):
    """Visible 4096·4097/2 pairs a head; blocks of 128 × 64 visit 128·128·528, none of them past an edge."""
    visible, visited = 16 * 4096 * 4097 // 2, 16 * 128 * 128 * 528
    flops = of(bundle, "flash2", CAUSAL, "attention", "tensor_flops")
    assert flops.least == 256 * visible
    assert dict(flops.causes) == {"masked pairs of blocks on the diagonal": 256 * (visited - visible)}
    special = of(bundle, "flash2", CAUSAL, "attention", "special_ops")
    causes = dict(special.causes)
    assert special.least == visible
    assert causes["rescaling when the maximum moves"] == 4 * visited // 64
    assert causes["masked pairs of blocks on the diagonal"] == visited - visible


def test_l2_to_sm_is_each_tensor_once_and_the_reads_again(bundle):
    row = of(bundle, "flash2", SHAPE, "attention", "l2_to_sm")
    assert (row.least, row.predicted, row.rest) == (3 * Q, Q + 32 * 2 * Q, 0)
    assert dict(row.causes) == {"K and V read again by every query block": 31 * 2 * Q}


def test_padding_is_told_from_masking():
    """One head, 5 queries, 5 keys, D 48 (64 in a tile), causal in blocks of 4 × 4: 15 visible pairs, 3 blocks."""
    config = RunConfig("flash2", AttentionShape(1, 1, 5, 5, 48, mask="causal"),
                       parameters={"block_m": 4, "block_n": 4})
    computed = 4 * 3 * 16 * 64
    row = {"source": "x", "launch": 0, "tensor_flops": computed, **config.key("attention"),
           "parameters": json.dumps(config.parameters)}
    found = of(Bundle("x", {}, table.make("launches", [row])), "flash2", config.shape, "attention", "tensor_flops")
    # visited blocks hold 4·4 + 1·5 = 21 real pairs, 15 of them visible
    assert found.least == 4 * 48 * 15
    assert dict(found.causes) == {"masked pairs of blocks on the diagonal": 4 * 48 * 6,
                                  "tile padding": computed - 4 * 48 * 21}


def test_eight_warps_on_64_rows_are_named():
    """64 × 64 pairs of one head, D 64: both warpgroups compute the scores, each half of the output's columns."""
    config = RunConfig("flash2", AttentionShape(1, 1, 64, 64, 64),
                       parameters={"block_m": 64, "block_n": 64, "num_warps": 8})
    once = 256 * 3 * 3 + 2 * 4 * 64  # three divisions of 256 threads; 64 row sums, by four lanes of either warpgroup
    row = {"source": "x", "launch": 0, "tensor_flops": 6 * 64**3, "special_ops": 2 * (64 * 64 + 4 * 64) + once,
           **config.key("attention"), "parameters": json.dumps(config.parameters)}
    bundle = Bundle("x", {}, table.make("launches", [row]))
    flops = of(bundle, "flash2", config.shape, "attention", "tensor_flops")
    assert dict(flops.causes) == {"scores that several warps compute": 2 * 64**3} and flops.least == 4 * 64**3
    special = of(bundle, "flash2", config.shape, "attention", "special_ops")
    assert dict(special.causes) == {"scores that several warps compute": 64 * 64,
                                    "rescaling when the maximum moves": 2 * 4 * 64,
                                    "index arithmetic and the division by the row sum": once}


def test_what_a_library_adds_is_named_and_what_nothing_explains_is_the_rest(bundle):
    row = of(bundle, "naive", SHAPE, "softmax", "l2_to_sm")  # counted 1.1 × the least
    assert dict(row.causes) == {"tiles of the library, not known": pytest.approx(0.1 * MATRIX)}
    doctored = changed(bundle, "l2_to_sm_bytes", lambda v: v + 1000, implementation="flash2")
    assert of(doctored, "flash2", SHAPE, "attention", "l2_to_sm").rest == 1000


def test_nothing_for_a_run_that_is_not_there(bundle):
    assert evidence.residuals(bundle, "flash2", replace(SHAPE, nq=1, nk=1)) == []
