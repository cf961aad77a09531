"""Each forward schedule played block by block and element by element, against the closed forms; exact equality."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from profiler.model import predict
from profiler.spec import AttentionShape, Mask, RunConfig


def random_shapes(seed: int, count: int):
    draw = random.Random(seed)
    for _ in range(count):
        kv_heads = draw.choice((1, 2, 3))
        mask = draw.choice(("full", "causal", "window:5,0", "window:0,0", "window:3,4", "window:-1,2", "window:7,-1"))
        yield AttentionShape(draw.choice((1, 2)), kv_heads * draw.choice((1, 2, 4)), draw.randrange(1, 30),
                             draw.randrange(1, 30), draw.choice((5, 8, 16, 40)), kv_heads,
                             draw.choice(("bf16", "fp32", "fp8")), mask), draw.choice((2, 4, 8)), draw.choice((2, 4, 8))


def seen(shape: AttentionShape, i: int, j: int) -> bool:
    mask, middle = Mask.parse(shape.mask), i + shape.nk - shape.nq
    return (mask.left < 0 or j >= middle - mask.left) and (mask.right < 0 or j <= middle + mask.right)


def play_flash2(s: AttentionShape, bm: int, bn: int) -> dict:
    """Outer loop over query blocks; a key block is visited when one of its pairs is visible."""
    row, got = s.head_dim * s.element_bytes, Counter()
    touched: dict[str, set] = {"Q": set(), "K": set(), "V": set()}
    tile = max(16, 1 << (s.head_dim - 1).bit_length())
    for b in range(s.batch):
        for h in range(s.heads):
            group = h // (s.heads // s.kv_heads)
            for top in range(0, s.nq, bm):
                rows = range(top, min(top + bm, s.nq))
                got["Q"] += len(rows) * row
                for left in range(0, s.nk, bn):
                    columns = range(left, min(left + bn, s.nk))
                    pairs = [(i, j) for i in rows for j in columns if seen(s, i, j)]
                    if not pairs:
                        continue
                    got["K"] += len(columns) * row
                    got["V"] += len(columns) * row
                    got["exponentials"] += bm * bn
                    got["rescales"] += 4 * bm
                    got["flops_computed"] += 4 * bm * bn * tile
                    got["flops_visible"] += 4 * len(pairs) * s.head_dim
                    touched["Q"] |= {(b, h, i) for i, _ in pairs}
                    touched["K"] |= {(b, group, j) for _, j in pairs}
    touched["V"] = touched["K"]
    return {"counts": got, "reads": {name: len(rows) * row for name, rows in touched.items()}}


@pytest.mark.parametrize("seed", range(3))
def test_flash2(seed):
    for shape, bm, bn in random_shapes(seed, 60):
        played = play_flash2(shape, bm, bn)
        config = RunConfig("flash2", shape, parameters={"block_m": bm, "block_n": bn, "return_lse": True})
        stage = predict(config).stages[0]
        got = played["counts"]
        assert stage.reads == played["reads"], shape
        assert stage.l2_to_sm == {name: got[name] for name in ("Q", "K", "V")}, shape
        assert (stage.exponentials, stage.rescales) == (got["exponentials"], got["rescales"]), shape
        assert (stage.flops_visible, stage.flops_computed) == (got["flops_visible"], got["flops_computed"]), shape
        rows = shape.batch * shape.heads * shape.nq
        assert stage.writes == {"O": rows * shape.head_dim * shape.element_bytes, "LSE": 4 * rows}


@pytest.mark.parametrize("seed", range(3))
def test_flash1_carries_o_m_and_l_from_key_block_to_key_block(seed):
    for s, bm, bn in random_shapes(seed + 10, 60):
        row, got, back = s.head_dim * s.element_bytes, Counter(), Counter()
        for _ in range(s.batch * s.heads):
            met = set()
            for left in range(0, s.nk, bn):
                columns = range(left, min(left + bn, s.nk))
                used = False
                for top in range(0, s.nq, bm):
                    rows = range(top, min(top + bm, s.nq))
                    if not any(seen(s, i, j) for i in rows for j in columns):
                        continue
                    used = True
                    got["Q"] += len(rows) * row
                    for tensor, bytes_ in (("O", 4 * s.head_dim), ("m", 4), ("l", 4)):  # float32 all
                        got[tensor] += len(rows) * bytes_ * (top in met)
                        back[tensor] += len(rows) * bytes_ * (tensor != "O" or top in met)  # O of the visit before
                    back["O"] += len(rows) * row * (top not in met)  # the last one, in its type
                    met.add(top)
                if used:
                    got["K"] += len(columns) * row
                    got["V"] += len(columns) * row
        stage = predict(RunConfig("flash1", s, parameters={"block_m": bm, "block_n": bn})).stages[0]
        assert {k: v for k, v in stage.l2_to_sm.items() if v} == {k: v for k, v in got.items() if v}, s
        assert {k: v for k, v in stage.sm_to_l2.items() if v} == {k: v for k, v in back.items() if v}, s


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["naive", "naive_folded"])
def test_naive_element_by_element(seed, name):
    for s, _, _ in random_shapes(seed + 20, 40):
        s = replace(s, mask="causal" if s.mask != "full" else "full")
        rows = [i for i in range(s.nq) if any(seen(s, i, j) for j in range(s.nk))]
        e, heads = s.element_bytes, s.batch * s.heads
        matrix = sum(e for _ in range(heads) for _ in rows for _ in range(s.nk))
        q = heads * len(rows) * s.head_dim * e
        k = s.batch * s.kv_heads * s.nk * s.head_dim * e
        steps = [("scores", q + k, matrix), ("scale", matrix, matrix),
                 ("mask", matrix + len(rows) * s.nk, matrix), ("softmax", matrix, matrix), ("values", matrix + k, q)]
        wanted = [step for step in steps if name == "naive" or step[0] not in ("scale", "mask")]
        wanted = [step for step in wanted if step[0] != "mask" or s.mask == "causal"]
        prediction = predict(RunConfig(name, s))
        assert [(x.stage, x.dram_read_bytes, x.dram_written_bytes) for x in prediction.stages] == wanted, s
        pairs = heads * sum(seen(s, i, j) for i in rows for j in range(s.nk))
        assert prediction.flops_visible == 4 * pairs * s.head_dim
        assert prediction.flops_computed == 4 * heads * len(rows) * s.nk * s.head_dim
        assert prediction.peak_memory_bytes == max(2 * matrix, matrix + s.q_bytes)


def test_passes_over_an_n_by_n_matrix():
    shape = AttentionShape(1, 2, 8, 8, 4)
    passes = {
        (name, mask): sum(predict(RunConfig(name, replace(shape, mask=mask))).tensor_passes(t) for t in "SP")
        for name in ("naive", "naive_folded", "flash2") for mask in ("full", "causal")}
    assert passes == {("naive", "full"): 6, ("naive", "causal"): 8, ("naive_folded", "full"): 4,
                      ("naive_folded", "causal"): 4, ("flash2", "full"): 0, ("flash2", "causal"): 0}
