"""Split-key decode played part by part, against the closed forms; exact equality."""

import random
from collections import Counter

from profiler.model import predict
from profiler.spec import AttentionShape, Mask, RunConfig


def test_parts_and_blocks():
    draw = random.Random(5)
    for _ in range(300):
        kv_heads, group = draw.choice((1, 2, 3)), draw.choice((1, 2, 4, 8))
        mask = draw.choice(("causal", "full", "window:6,0", "window:20,-1"))
        nq = draw.randrange(1, 6)
        s = AttentionShape(2, kv_heads * group, nq, draw.randrange(nq, 70), draw.choice((8, 40)), kv_heads, "fp16",
                           mask)
        splits, bm, bn = draw.randrange(1, 9), draw.choice((2, 4, 16)), draw.choice((2, 8, 16))
        row, tile, got = s.head_dim * 2, max(16, 1 << (s.head_dim - 1).bit_length()), Counter()
        left = Mask.parse(mask).left
        low = 0 if left < 0 else max(0, s.nk - s.nq - left)  # oldest key of the first query
        part = 0
        while part * splits < s.nk - low:  # the smallest whole number of blocks that covers the keys
            part += bn
        for _ in range(s.batch * kv_heads):
            for split in range(splits):
                begin = low + split * part
                end = min(begin + part, s.nk)
                for top in range(0, group * nq, bm):
                    got["Q"] += min(bm, group * nq - top) * row
                    for start in range(begin, end, bn):
                        got["K"] += (min(start + bn, end) - start) * row
                        got["pairs"] += bm * bn
        config = RunConfig("decode", s, parameters={"num_splits": splits, "block_m": bm, "block_n": bn})
        stage = predict(config).stages[0]
        assert stage.l2_to_sm == {"Q": got["Q"], "K": got["K"], "V": got["K"]}, config
        assert stage.flops_computed == 4 * got["pairs"] * tile, config
        assert stage.exponentials == got["pairs"], config


def test_by_hand():
    """One query of 32 heads in 8 groups against 8192 keys, D 128 bf16, in 4 parts: the cache is read once."""
    s = AttentionShape(2, 32, 1, 8192, 128, 8, "bf16", "causal")
    prediction = predict(RunConfig("decode", s, parameters={"num_splits": 4, "block_m": 16, "block_n": 64}))
    cache, q = 2 * 8 * 8192 * 128 * 2, 2 * 32 * 128 * 2
    attention, merge = prediction.stages
    assert attention.reads == {"Q": q, "K": cache, "V": cache}
    assert attention.writes == {"partial O": 4 * 2 * 32 * 128 * 4, "partial LSE": 4 * 2 * 32 * 4}
    assert merge.reads == attention.writes and merge.writes == {"O": q, "LSE": 2 * 32 * 4}
    assert prediction.intensity() < 8  # FLOP per byte: four query heads share a key head, 2·4 FLOP for 2 B twice
    paged = predict(RunConfig("decode", s, parameters={"num_splits": 4, "page_size": 16}))
    assert paged.stages[0].reads["page table"] == 2 * 512 * 4
    single = predict(RunConfig("decode", s, parameters={"num_splits": 1, "block_m": 16, "block_n": 64}))
    assert [stage.stage for stage in single.stages] == ["attention"]


def test_programs_write_whole_sectors_of_statistics():
    """Each program touches the 32-byte sectors that its rows of float32 lie in, whoever else writes there too."""
    for runs in (1, 3, 8, 19):
        for rows in (1, 3, 4, 8, 20):
            for block in (2, 8, 16):
                touched = [{4 * (run * rows + i) // 32 for i in range(top, min(top + block, rows))}
                           for run in range(runs) for top in range(0, rows, block)]
                s = AttentionShape(1, rows, 1, 40, 16, 1)  # one run a split
                config = RunConfig("decode", s, parameters={"num_splits": runs, "block_m": block, "block_n": 16})
                name = "partial LSE" if runs > 1 else "LSE"
                assert predict(config).stages[0].sm_to_l2[name] == 32 * sum(map(len, touched)), (runs, rows, block)
