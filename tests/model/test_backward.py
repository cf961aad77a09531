"""The backward passes played block by block, against the closed forms; exact equality."""

from collections import Counter

import pytest

from profiler.model import predict
from profiler.spec import AttentionShape, RunConfig
from tests.model.test_forward import random_shapes, seen


def play(s: AttentionShape, bm: int, bn: int, matmuls: int) -> tuple[dict, dict]:
    """(keys, queries): counts of the pass over key blocks and of the pass over query blocks."""
    row, tile, group = s.head_dim * s.element_bytes, max(16, 1 << (s.head_dim - 1).bit_length()), s.heads // s.kv_heads
    keys, queries = Counter(), Counter()

    def pairs(top: int, left: int) -> int:
        return sum(seen(s, i, j) for i in range(top, min(top + bm, s.nq)) for j in range(left, min(left + bn, s.nk)))

    for _ in range(s.batch * s.kv_heads):
        for left in range(0, s.nk, bn):
            keys["K"] += min(bn, s.nk - left) * row
            for _ in range(group):
                for top in range(0, s.nq, bm):
                    if not (visible := pairs(top, left)):
                        continue
                    keys["Q"] += min(bm, s.nq - top) * row
                    keys["Δ"] += bm * 4
                    keys["flops_computed"] += matmuls * 2 * bm * bn * tile
                    keys["flops_visible"] += matmuls * 2 * visible * s.head_dim
                    keys["exponentials"] += bm * bn
                    keys["dQ sum"] += bm * tile * 4
    for _ in range(s.batch * s.heads):
        for top in range(0, s.nq, bm):
            queries["Q"] += min(bm, s.nq - top) * row
            queries["Δ"] += bm * 4
            for left in range(0, s.nk, bn):
                if not (visible := pairs(top, left)):
                    continue
                queries["K"] += min(bn, s.nk - left) * row
                queries["flops_computed"] += 3 * 2 * bm * bn * tile
                queries["flops_visible"] += 3 * 2 * visible * s.head_dim
                queries["exponentials"] += bm * bn
    return keys, queries


def compare(stage, played: dict, shape) -> None:
    twin = {"Q": "Q", "dO": "Q", "K": "K", "V": "K", "LSE'": "Δ", "Δ": "Δ"}
    assert stage.l2_to_sm == {tensor: played[of] for tensor, of in twin.items()}, shape
    for name in ("flops_computed", "flops_visible", "exponentials"):
        assert getattr(stage, name) == played[name], (shape, name)


@pytest.mark.parametrize("seed", range(3))
def test_two_passes(seed):
    for shape, bm, bn in random_shapes(seed + 50, 40):
        keys, queries = play(shape, bm, bn, 4)
        parameters = {"key_block_m": bm, "key_block_n": bn, "query_block_m": bm, "query_block_n": bn}
        prediction = predict(RunConfig("flash2", shape, "backward", parameters))
        assert [stage.stage for stage in prediction.stages] == ["prepare", "keys", "queries"]
        compare(prediction.stage("keys"), keys, shape)
        compare(prediction.stage("queries"), queries, shape)


def test_one_pass_adds_every_block_of_dq_at_the_l2():
    for shape, bm, bn in random_shapes(60, 40):
        keys, _ = play(shape, bm, bn, 5)
        prediction = predict(RunConfig("flash2", shape, "backward",
                                       {"one_pass": True, "key_block_m": bm, "key_block_n": bn}))
        assert [stage.stage for stage in prediction.stages] == ["prepare", "keys", "finish"]
        compare(prediction.stage("keys"), keys, shape)
        assert prediction.stage("keys").sm_to_l2["dQ sum"] == keys["dQ sum"]


def test_the_full_mask_by_hand():
    """B1 H16 N4096 D64 bf16, blocks of 64 × 64 and 128 × 64: Q is 8,388,608 B, one statistic 262,144 B."""
    shape = AttentionShape(1, 16, 4096, 4096, 64)
    parameters = {"key_block_m": 64, "key_block_n": 64, "query_block_m": 128, "query_block_n": 64}
    prediction = predict(RunConfig("flash2", shape, "backward", parameters))
    q, stat = 8_388_608, 262_144
    assert prediction.compulsory_bytes == 8 * q + stat
    assert prediction.stage("keys").level_bytes("l2_to_sm") == 2 * q + 64 * 2 * (q + stat)
    assert prediction.stage("queries").level_bytes("l2_to_sm") == 2 * q + 2 * stat + 32 * 2 * q
    assert prediction.flops_computed == 7 * 2 * 16 * 4096 * 4096 * 64
    assert prediction.peak_memory_bytes == 3 * q + 2 * stat
    step = predict(RunConfig("flash2", shape, "backward", {**parameters, "training": True}))  # O and LSE beside them
    assert step.peak_memory_bytes == 4 * q + 3 * stat
    assert predict(RunConfig("flash2", shape, "backward", {"one_pass": True})).largest_buffer == ("dQ sum", 2 * q)


def test_naive_passes_twelve_times_over_a_matrix():
    """PyTorch's softmax backward is two launches: P, dP in, dP ∘ P out; P, dP ∘ P in, dS out."""
    prediction = predict(RunConfig("naive", AttentionShape(1, 16, 4096, 4096, 64), "backward"))
    assert sum(prediction.tensor_passes(t) for t in ("P", "dP", "dP∘P", "dS")) == 12
    assert prediction.dram_bytes == 12 * 536_870_912 + 8 * 8_388_608  # dO twice, V, K, Q in; dV, dQ, dK out
    assert prediction.flops_computed == 4 * 2 * 16 * 4096 * 4096 * 64
    causal = predict(RunConfig("naive", AttentionShape(1, 16, 4096, 4096, 64, mask="causal"), "backward"))
    assert sum(causal.tensor_passes(t) for t in ("P", "dP", "dP∘P", "dS")) == 14


def test_unknown_tiles_are_not_guessed():
    prediction = predict(RunConfig("flash2", AttentionShape(1, 2, 64, 64, 16), "backward"))
    assert prediction.level_bytes("l2_to_sm") is None and prediction.flops_computed is None
