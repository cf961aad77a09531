"""The tiles of packed sequences on Hopper, listed by the device function in Triton's interpreter, and what is taken."""

import random
from bisect import bisect_right
from itertools import accumulate

import pytest
import torch

from kernels import flash_attention_varlen, hopper_plan, hopper_varlen, registry, varlen, varlen_operator
from kernels.options import Options


def listed(lengths, key_lengths, heads, group, span, programs, config, right):
    """Each program's tiles as (sequence, head, block), up to the first -1."""
    cu_q, cu_k = (torch.tensor([0, *torch.tensor(some).cumsum(0).tolist()], dtype=torch.int32)
                  for some in (lengths, key_lengths))
    table = hopper_varlen.tile_table(cu_q, cu_k, sum(lengths), max(lengths), heads, group, span, programs, config,
                                     right)
    found = []
    for row in table.tolist():
        assert -1 in row
        words = row[:row.index(-1)]
        assert set(row[len(words):]) == {-1}
        found.append([(word >> 44, word >> 20 & 0xFFFFFF, word & 0xFFFFF) for word in words])
    return found


def configured(causal, **changes):
    return hopper_plan.Config(**{"head_dim": 128, "consumers": 2, "block_n": 128, "stages": 2, "causal": causal,
                                 "packed": True, **changes})


def blocks_of(nq, nk, block, config, right):
    end = min(nk, (block + 1) * config.block_m + nk - nq + right) if config.causal else nk
    return max(1, -(-end // config.block_n))


def dealt(lengths, key_lengths, heads, group, span, programs, config, right):
    """The lists by hand: span after span, longest first, round after round of all programs from the one behind the
    last, the last round forth and each before it the other way; then each list by span and group of heads."""
    spans = {}
    for s, n in enumerate(lengths):
        spans.setdefault(sum(lengths[:s]) // (span or sum(lengths)), []).extend(
            (-blocks_of(n, key_lengths[s], b, config, right), h // group, s, b, h)
            for b in range(-(-n // config.block_m)) for h in range(heads))
    lists, start = [[] for _ in range(programs)], 0
    for number, tiles in sorted(spans.items()):
        rounds = [sorted(tiles)[i:i + programs] for i in range(0, len(tiles), programs)]
        for i, some in enumerate(rounds):
            forth = (len(tiles) // programs - i) % 2 == 0
            for j, (_, part, s, b, h) in enumerate(some):
                program = (start + (j if forth else programs - 1 - j)) % programs
                lists[program].append((number, part, (s, h, b)))
        start += len(tiles)
    if span:
        lists = [sorted(some, key=lambda tile: tile[:2]) for some in lists]
    return [[tile for *_, tile in some] for some in lists]


# lengths of queries and keys, heads, heads and tokens worked on together, right of the window
CASES = [([300, 1, 0, 513, 128], [300, 1, 0, 513, 128], 3, 1, 0, 0),
         ([300, 1, 0, 513, 128], [10, 700, 5, 0, 400], 4, 2, 942, 0),
         ([300, 1, 0, 513, 128], [300, 1, 0, 513, 128], 4, 2, 300, 0),
         ([5000, 100], [5000, 100], 4, 2, 5000, 3), ([64] * 30, [64] * 30, 2, 1, 700, 0)]


@pytest.mark.parametrize("lengths, key_lengths, heads, group, span, right", CASES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("consumers", [2, 3])
def test_each_tile_once_and_as_dealt_by_hand(lengths, key_lengths, heads, group, span, right, causal, consumers):
    config = configured(causal, consumers=consumers)
    lists = listed(lengths, key_lengths, heads, group, span, 7, config, right)
    every = [(s, h, b) for s, n in enumerate(lengths) for h in range(heads) for b in range(-(-n // config.block_m))]
    assert sorted(tile for tiles in lists for tile in tiles) == sorted(every)
    assert lists == dealt(lengths, key_lengths, heads, group, span, 7, config, right)


def drawn(seed):
    """Sequences of 1,024 to 8,192 tokens, 16,384 in all."""
    draw, lengths = random.Random(seed), []
    while sum(lengths) < 16_384:
        lengths.append(min(draw.randint(1024, 8192), 16_384 - sum(lengths)))
    return lengths


PACKED = [8192, 5003, 2048, 1024, 117]


@pytest.mark.parametrize("lengths", [drawn(0), PACKED, PACKED[::-1]], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_programs_are_done_together(lengths, causal):
    """16 heads of 128: the mean of 132 programs is at least 0.94 of the busiest, where a tile costs its key blocks and
    one more; causal 0.97, and the heads that the programs are at have K and V of 40 MB in the mean over time: the L2 of
    an H200 holds 50."""
    config, k = configured(causal), torch.empty(sum(lengths), 16, 128, dtype=torch.bfloat16, device="meta")
    group, span = hopper_varlen.together(k, len(k), 16, 132, config)
    lists = listed(lengths, lengths, 16, group, span, 132, config, 0)
    ends = [list(accumulate(1 + blocks_of(lengths[s], lengths[s], b, config, 0) for s, _, b in row)) for row in lists]
    busy = [row[-1] for row in ends]
    assert sum(busy) / 132 / max(busy) >= (0.97 if causal else 0.94)
    at = [{row[bisect_right(end, time)][:2] for row, end in zip(lists, ends, strict=True)}
          for time in range(0, min(busy), 4)]
    assert sum(2 * lengths[s] * 128 * 2 for heads in at for s, _ in heads) <= 40e6 * len(at)


@pytest.mark.parametrize("tokens, config, expected", [
    (16_384, configured(True), (4, 4 * 132 * 128 // 16)), (16_384, configured(True, consumers=3), (4, 6336)),
    (2048, configured(True), (16, 0)),  # 16 MB of K and V
    (2049, configured(True, edge=True), (4, 2049)), (16_384, configured(False), (1, 0))], ids=str)
def test_what_is_worked_on_together(tokens, config, expected):
    """16 heads of 128: heads and tokens; 0 tokens where lists need not be ordered by heads."""
    k = torch.empty(tokens, 16, 128, dtype=torch.bfloat16, device="meta")
    assert hopper_varlen.together(k, tokens, 16, 132, config) == expected


def test_sequences_of_one_length_are_dealt_like_a_batch(monkeypatch):
    """3 sequences of 300 tokens: the lists of a plain causal call with batch 3; with one token fewer, the device's."""
    from kernels import hopper

    monkeypatch.setattr(hopper_varlen, "tile_table", lambda *_: "listed on the device")
    q, cu = torch.zeros(900, 4, 128, dtype=torch.bfloat16), torch.tensor([0, 300, 600, 900], dtype=torch.int32)
    config, options = configured(True), Options(right=0)
    table = hopper_varlen._tiles(q, q, cu, cu, 300, 300, 7, config, options)
    batch = torch.zeros(3, 4, 300, 128, dtype=torch.bfloat16)
    *_, arguments, _ = hopper.launch(batch, batch, batch, batch, torch.zeros(3, 4, 300), config, scale=1.0, right=0,
                                     processors=7)
    assert table is arguments[5]
    assert hopper_varlen._tiles(q[1:], q[1:], cu, cu, 300, 300, 7, config, options) == "listed on the device"


def test_sequences_of_as_many_queries_as_keys_need_no_second_mask():
    q, k = torch.zeros(10, 4, 128, dtype=torch.bfloat16), torch.zeros(10, 2, 128, dtype=torch.bfloat16)
    causal, full = Options(right=0), Options()
    alike, apart = (hopper_varlen.choose(q, k, 4096, causal, alike=alike) for alike in (True, False))
    assert (alike.packed, alike.edge, alike.ahead, alike.group) == (True, False, True, 2)
    assert (apart.packed, apart.edge, apart.ahead) == (True, True, False)
    assert hopper_varlen.choose(q, k, 4096, full, alike=False).edge  # a sequence without keys


@pytest.mark.parametrize("change, reason", [
    ({}, None), ({"cc": (8, 0)}, "9.0"), ({"head_dim": 96}, "64, 128 and 256, not 96"),
    ({"dtype": torch.float32}, "float32"), ({"options": Options(softcap=1.0)}, "causal and window"),
    ({"sequences": (1 << 19) - 1}, None), ({"sequences": 1 << 19}, "fewer sequences")], ids=str)
def test_what_it_takes(change, reason):
    dtype, head_dim = change.get("dtype", torch.bfloat16), change.get("head_dim", 64)
    q = torch.zeros(10, 2, head_dim, dtype=dtype)
    cu_q = torch.zeros(change.get("sequences", 2) + 1, dtype=torch.int32)
    found = hopper_varlen.supports(q, q.clone(), q.clone(), cu_q, change.get("options", Options()), 0.1,
                                   change.get("cc", (9, 0)))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("cc, options, expected", [
    ((9, 0), {}, "hopper"), ((9, 0), {"causal": True, "window": (64, 0)}, "hopper"), ((8, 0), {}, "flash2"),
    (None, {}, "flash2"), ((9, 0), {"softcap": 1.0}, "flash2"), ((9, 0), {"tuning": {"block_m": 32}}, "flash2"),
    ((9, 0), {"scale": -1.0}, "flash2")], ids=str)
def test_a_call_goes_to_the_kernel_that_takes_it(cc, options, expected, monkeypatch):
    sent = []
    for module, name in ((hopper_varlen, "hopper"), (varlen, "flash2")):
        monkeypatch.setattr(module, "forward", lambda q, *others, name=name, **how: sent.append(name) or (
            torch.empty_like(q), q.new_empty((q.shape[1], len(q)), dtype=torch.float32)))
    monkeypatch.setattr(varlen_operator, "capability", lambda q: cc)
    q, cu = torch.zeros(10, 2, 64, dtype=torch.float16), torch.tensor([0, 4, 10], dtype=torch.int32)
    flash_attention_varlen(q, q, q, cu, cu, 6, 6, **options)
    assert sent == [expected]


def test_what_is_told_of_a_call_is_what_runs(monkeypatch):
    q = torch.zeros(2, 2, 300, 128, dtype=torch.float16)
    monkeypatch.setattr(varlen_operator, "capability", lambda q: (8, 0))
    assert set(registry.parameters("flash_varlen", q, q, q)) == {"block_m", "block_n", "num_warps", "num_stages"}
    monkeypatch.setattr(varlen_operator, "capability", lambda q: (9, 0))
    alike = registry.parameters("flash_varlen", q, q, q, causal=True, q_lengths=[300, 7], k_lengths=[300, 7])
    apart = registry.parameters("flash_varlen", q, q, q, causal=True, q_lengths=[300, 7], k_lengths=[300, 8])
    assert varlen_operator.explain(q, q, q, tuning={"block_m": 32})["block_m"] == 32
    assert [(told["packed"], told["ahead"], told["edge"]) for told in (alike, apart)] == [
        (True, True, False), (True, False, True)]
