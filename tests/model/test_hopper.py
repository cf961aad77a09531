"""The Hopper kernels' bytes and operations: played block by block as the kernel walks them, against hand counts and the
lists that the host makes."""

import pytest

from profiler.model import hopper, predict
from profiler.spec import AttentionShape, RunConfig

TWO = {"block_m": 128, "block_n": 128, "consumers": 2, "ahead": True, "fixed": True}
THREE = {"block_m": 192, "block_n": 128, "consumers": 3, "fixed": True}


def forward(shape, parameters):
    (stage,) = predict(RunConfig("hopper", shape, parameters=parameters)).stages
    return stage


def test_a_full_square_by_hand():
    """One head of 512 × 512, D 128: 4 tiles of 2 × 64 rows, 4 blocks of 128 keys each.

    K and V rows: 4 · 512. Scores: 8 consumers · 64 · 512 = 262,144, as many in P V. Each of 4 programs multiplies a
    first block that nobody needs at its end: 2 · 64 · 128 more. FLOPs: 2 · 128 · (2 · 262,144 + 4 · 16,384).
    """
    stage = forward(AttentionShape(1, 1, 512, 512, 128), TWO)
    q = 512 * 128 * 2
    assert stage.l2_to_sm == {"Q": q, "K": 4 * q, "V": 4 * q} and stage.sm_to_l2 == {"O": q, "LSE": 2048}
    assert stage.flops_computed == 2 * 128 * (2 * 262_144 + 4 * 16_384) == 150_994_944
    assert stage.flops_visible == 4 * 128 * 512 * 512
    assert (stage.exponentials, stage.rescales, stage.overhead_ops) == (262_144, 0, 512 * 4)
    # With a maximum a block: 8 alphas a row for each of the 3 blocks after the first.
    assert forward(AttentionShape(1, 1, 512, 512, 128), TWO | {"fixed": False}).rescales == 512 * 3 * 8


def test_a_causal_pair_sees_half_of_its_last_block_by_hand():
    """256 × 256, D 64, two consumers that share their blocks: tiles of 1 and 2 blocks.

    Scores, in units of 64 · 128: first consumers ½ and 1½, second ones 1 and 2; P V: 1, 2, 1, 2. Two programs: at the
    end ½ and 1 each. K rows: 128 + 256.
    """
    stage = forward(AttentionShape(1, 1, 256, 256, 64, mask="causal"), TWO)
    assert stage.exponentials == 5 * 64 * 128
    assert stage.flops_computed == 2 * 64 * 64 * 128 * (5 + 6 + 2 * 1.5)
    assert stage.l2_to_sm["K"] == stage.l2_to_sm["V"] == 384 * 64 * 2


def test_float16_looks_at_two_blocks_where_the_first_has_few_keys_by_hand():
    """256 × 300, D 64: the last of three blocks has 44 keys, fewer than half; 4 consumers multiply the second again."""
    wide, narrow = (forward(AttentionShape(1, 1, 256, 300, 64, dtype=dtype), TWO) for dtype in ("bf16", "fp16"))
    assert narrow.flops_computed - wide.flops_computed == 4 * 2 * 64 * 64 * 128
    assert narrow.exponentials == wide.exponentials
    late = forward(AttentionShape(1, 1, 256, 300, 64, dtype="fp16"), TWO | {"late": True})
    causal = forward(AttentionShape(1, 1, 256, 300, 64, dtype="fp16", mask="causal"), TWO)
    assert late.flops_computed == wide.flops_computed
    assert causal.flops_computed == forward(AttentionShape(1, 1, 256, 300, 64, mask="causal"), TWO).flops_computed


def test_three_consumers_leave_out_the_blocks_that_they_do_not_see_by_hand():
    """384 × 384 causal, D 64: rows 0, 64, 128 of a tile of 192 end in blocks 1, 1, 2; rows 192, 256, 320 in 2, 3, 3.

    The tiles visit 2 and 3 blocks.
    """
    stage = forward(AttentionShape(1, 1, 384, 384, 64, mask="causal"), THREE)
    assert stage.exponentials == (1 + 1 + 2 + 2 + 3 + 3) * 64 * 128
    assert stage.flops_computed == 2 * 64 * 2 * stage.exponentials
    assert stage.l2_to_sm["K"] == (256 + 384) * 64 * 2
    # 100 rows more than a tile: of the second tile's consumers one has no row, and takes one of the three blocks
    short = forward(AttentionShape(1, 1, 320, 384, 64), THREE)
    assert short.exponentials == (3 * 3 + 3 + 3 + 1) * 64 * 128


def test_a_small_head_is_padded_to_64_columns():
    stage = forward(AttentionShape(1, 1, 128, 128, 40), TWO | {"ahead": False})
    assert stage.flops_computed == 2 * 64 * 2 * 128 * 128 and stage.l2_to_sm["K"] == 128 * 40 * 2


@pytest.mark.parametrize("mask, nq, nk, d, options", [
    ("full", 1000, 777, 64, {}), ("causal", 1024, 1024, 128, {}), ("causal", 4096, 4096, 64, {}),
    ("causal", 700, 1100, 128, {}), ("window:300,0", 900, 900, 64, {}), ("window:40,70", 640, 500, 128, {})])
def test_tiles_blocks_and_lists_are_those_of_the_kernel(mask, nq, nk, d, options):
    """What the host gives the kernel: the blocks of each tile, the heads of a group, the cost of the fullest list."""
    import torch

    from kernels import hopper_plan
    from kernels.options import Options
    from profiler.spec import Mask

    sides = Mask.parse(mask)
    q, k = (torch.empty(2, 4, n, d, dtype=torch.bfloat16, device="meta") for n in (nq, nk))
    chosen = hopper_plan.choose(q, k, Options(left=sides.left, right=sides.right))
    config = RunConfig("hopper", AttentionShape(2, 4, nq, nk, d, mask=mask), parameters=chosen.parameters)
    form = hopper.Form.of(config)
    lowest, highest = (None if side < 0 else nk - nq + sign * side for side, sign in ((sides.left, -1),
                                                                                     (sides.right, 1)))
    tiles = [hopper_plan.block_range(row, nq, nk, chosen.block_m, chosen.block_n, lowest, highest)
             for row in range(0, nq, chosen.block_m)]
    assert [form.tile(row, config.shape) for row in range(0, nq, chosen.block_m)] == tiles
    group = hopper_plan.group_of(q, k, chosen)
    assert hopper.tiles_together(config) == group
    _, busy = hopper_plan.tile_lists(2, 4, nq, nk, chosen.block_m, chosen.block_n, lowest, highest, group, 20)
    assert hopper.balance(config, 20) == pytest.approx(sum(busy) / len(busy) / max(busy))
    assert form.edge == chosen.edge == hopper.Form.of(RunConfig("hopper", config.shape, parameters={
        name: value for name, value in chosen.parameters.items() if name != "edge"})).edge or chosen.ahead


def test_the_backward_in_one_pass_and_in_two_by_hand():
    """256 × 256, D 128, one head, tiles of 128 keys that walk blocks of 64 queries: 2 · 4 visits.

    dQ: 64 · 128 floats a visit. Buffer and statistics: 256 rows, of 16 terms of 2 bytes. Q and dO: 256 rows a tile of
    keys.
    """
    shape = AttentionShape(1, 1, 256, 256, 128)
    blocks = {"key_block_m": 64, "key_block_n": 128}
    prepare, keys, finish = predict(RunConfig("hopper", shape, "backward", blocks)).stages
    assert [prepare.stage, keys.stage, finish.stage] == ["prepare", "keys", "finish"]
    assert prepare.sm_to_l2 == {"LSE'": 8192, "Δ": 8192, "dQ sum": 256 * 128 * 4}
    assert keys.sm_to_l2 == {"dK": 65_536, "dV": 65_536, "dQ sum": 8 * 64 * 128 * 4}
    assert keys.l2_to_sm == {"K": 65_536, "V": 65_536, "Q": 131_072, "dO": 131_072, "LSE'": 16_384, "Δ": 16_384}
    assert keys.flops_computed == 5 * 2 * 256 * 256 * 128 and keys.exponentials == 256 * 256
    said = predict(RunConfig("hopper", shape, "backward", blocks | {"statistic_bytes": 4})).stages
    assert said[0].sm_to_l2["Δ"] == 1024 and said[1].l2_to_sm["LSE'"] == 2048
    fixed = predict(RunConfig("hopper", shape, "backward", blocks | {
        "deterministic": True, "query_block_m": 128, "query_block_n": 128})).stages
    assert [stage.stage for stage in fixed] == ["prepare", "keys", "queries"]
    assert sum(stage.flops_computed for stage in fixed) == 7 * 2 * 256 * 256 * 128
    assert "dQ sum" not in fixed[1].sm_to_l2


def test_a_small_head_of_the_backward_is_padded_to_64():
    config = RunConfig("hopper", AttentionShape(1, 1, 128, 128, 40), "backward", {"key_block_m": 128,
                                                                                  "key_block_n": 128})
    _, keys, finish = predict(config).stages
    assert keys.flops_computed == 5 * 2 * 128 * 128 * 64 and finish.l2_to_sm == {"dQ sum": 128 * 64 * 4}
    assert predict(config).peak_memory_bytes == 3 * 128 * 40 * 2 + 2 * 128 * 32 + 128 * 64 * 4
