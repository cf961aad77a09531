"""Sequences of different lengths, options, new tokens in a cache: played element by element, or worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.errors import BadInput
from profiler.model import predict
from profiler.spec import AttentionShape, RunConfig
from tests.model.test_forward import play_flash2, seen

TILES = {"block_m": 4, "block_n": 8}
MASKS = st.sampled_from(("full", "causal", "window:3,1"))
LENGTHS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5)


def packed(lengths, mask, heads=4, kv_heads=2, **parameters):
    most = [max(1, *(pair[side] for pair in lengths)) for side in (0, 1)]
    shape = AttentionShape(len(lengths), heads, *most, 16, kv_heads, "fp16", mask)
    given_lengths = {"q_lengths": [q for q, _ in lengths], "k_lengths": [k for _, k in lengths]}
    return RunConfig("flash2", shape, parameters={**TILES, **given_lengths, **parameters})


@settings(deadline=None, max_examples=40)
@given(LENGTHS, MASKS)
def test_packed_sequences_are_the_sum_of_each(lengths, mask):
    stage = predict(packed(lengths, mask)).stages[0]
    for name in ("K", "flops_visible", "flops_computed", "exponentials", "rescales"):
        played = sum(play_flash2(AttentionShape(1, 4, q, k, 16, 2, "fp16", mask), 4, 8)["counts"][name]
                     for q, k in lengths)
        assert played == (stage.l2_to_sm["K"] if name == "K" else getattr(stage, name)), name
    assert stage.writes == {"O": 4 * sum(q for q, _ in lengths) * 16 * 2}


def test_a_cache_with_a_length_per_sequence_by_hand():
    """Lengths 0, 100 and 4096 of a capacity of 4096, 2 heads of one key head, D 64 fp16, 4 parts of 64-key blocks."""
    shape = AttentionShape(3, 2, 1, 4096, 64, 1, "fp16", "causal")
    config = RunConfig("decode", shape, parameters={"k_lengths": [0, 100, 4096], "num_splits": 4, "block_m": 16,
                                                    "block_n": 64})
    attention, merge = predict(config).stages
    assert attention.l2_to_sm["K"] == 4196 * 64 * 2
    assert attention.exponentials == (2 + 64) * 16 * 64  # 100 keys: one block in each of two parts
    assert merge.reads["partial O"] == 4 * 3 * 2 * 64 * 4  # partial outputs of every sequence, whatever its length
    assert predict(config).compulsory["Q"] == 2 * 2 * 64 * 2  # the empty sequence's query sees nothing


def test_new_tokens_are_written_in_place_before_they_are_read():
    shape = AttentionShape(2, 8, 1, 1000, 128, 4, "bf16", "causal")
    config = RunConfig("decode", shape, parameters={"n_new": 3, "num_splits": 2})
    prediction = predict(config)
    assert [stage.stage for stage in prediction.stages] == ["append", "attention", "merge"]
    new = 2 * 4 * 3 * 128 * 2
    assert prediction.stage("append").reads == {"new K": new, "new V": new}
    assert prediction.stage("append").writes == {"K": new, "V": new}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 20), MASKS, st.sampled_from((1, 4)))
def test_a_bias_is_read_for_the_pairs_of_visited_tiles(nq, nk, mask, matrices):
    shape = AttentionShape(2, 4, nq, nk, 16, 2, "fp16", mask)
    plain = predict(RunConfig("flash2", shape, parameters=TILES)).stages[0]
    biased = predict(RunConfig("flash2", shape, parameters={
        **TILES, "attn_bias": matrices, "bias_bytes": 4, "key_padding_mask": True, "softcap": 30.0})).stages[0]
    pairs = keys = 0
    for top in range(0, nq, 4):
        for left in range(0, nk, 8):
            cells = [(i, j) for i in range(top, min(top + 4, nq)) for j in range(left, min(left + 8, nk))]
            if any(seen(shape, i, j) for i, j in cells):
                pairs, keys = pairs + len(cells), keys + min(8, nk - left)
    assert biased.reads["bias"] == matrices * pairs * 4
    assert biased.l2_to_sm["bias"] == 2 * 4 * pairs * 4
    assert biased.refetch.get("bias", 0) == (8 - matrices) * pairs * 4
    assert (biased.reads["padding"], biased.l2_to_sm["padding"]) == (2 * nk, max(2 * nk, 8 * keys))
    assert biased.special_ops - plain.special_ops == 2 * plain.exponentials  # tanh: an exponential and a reciprocal
    assert {n: biased.reads[n] for n in "QKV"} == dict(plain.reads)


def test_options_in_the_backward():
    """A bias is read in both passes; dropout reads its seed and no more; sinks live in the LSE."""
    shape = AttentionShape(1, 2, 64, 64, 16)
    tiles = {f"{side}_block_{m}": 16 for side in ("key", "query") for m in "mn"}
    found = predict(RunConfig("flash2", shape, "backward",
                              {**tiles, "attn_bias": True, "dropout_p": 0.1, "sinks": True}))
    for name in ("keys", "queries"):
        assert found.stage(name).l2_to_sm["bias"] == 2 * 64 * 64 * 2
        assert found.stage(name).reads["seed"] == 8 and "sinks" not in found.stage(name).reads
    assert "bias" not in found.stage("prepare").reads


def test_operations_of_sinks_and_dropout_are_those_that_are_compiled():
    """Machine code for sm_90, 64 × 64 tiles, 4 warps: a thread has 2 rows, so sinks add 4 exponentials and dropout one
    reciprocal to it; softcap adds an exponential and a reciprocal to each of its 32 elements of a tile."""
    shape, tiles = AttentionShape(2, 4, 512, 512, 64), {"block_m": 64, "block_n": 64, "num_warps": 4}
    threads = 2 * 4 * 8 * 128

    def special(**options):
        return predict(RunConfig("flash2", shape, parameters={**tiles, **options})).special_ops

    assert special(sinks=True) - special() == 4 * threads
    assert special(dropout_p=0.1) - special() == threads
    assert special(softcap=30.0) - special() == 2 * 32 * 8 * threads


def test_a_block_mask_skips_bytes_and_work():
    """Half of the blocks of 16 × 16 kept: half the keys cross, half the products; by hand for the first query block."""
    shape = AttentionShape(1, 1, 32, 32, 16)
    sparse = predict(RunConfig("flash2", shape, parameters={"block_m": 16, "block_n": 16, "block_size": 16,
                                                            "block_mask": [[1, 0], [0, 1]]}))
    assert sparse.stages[0].l2_to_sm["K"] == 2 * 16 * 16 * 2
    assert sparse.flops_computed == sparse.flops_visible == 4 * 2 * 16 * 16 * 16
    assert (sparse.stages[0].blocks.full, sparse.stages[0].blocks.skipped) == (2, 2)


@pytest.mark.parametrize(("name", "parameters", "said"), [
    ("naive", {"softcap": 1.0}, "softcap: naive has no such option"),
    ("decode", {"attn_bias": 1}, "attn_bias: decode has no such option; it has softcap"),
    ("flash2", {"attn_bias": 9}, "attn_bias: expected 1 to batch · heads = 2 matrices, got 9"),
    ("naive", {"block_mask": [[1]]}, "block_mask: naive skips no blocks"),
    ("naive", {"k_lengths": [1]}, "k_lengths: naive takes sequences of one length"),
    ("flash2", {"k_lengths": [1, 2]}, "k_lengths: expected 1 whole numbers from 0 to 16"),
    ("flash2", {"k_lengths": [17]}, "from 0 to 16, got \\[17\\]")])
def test_what_an_implementation_does_not_carry_out_is_refused(name, parameters, said):
    with pytest.raises(BadInput, match=said):
        predict(RunConfig(name, AttentionShape(1, 2, 16, 16, 16), parameters=parameters))
