"""The Hopper forward where no GPU is needed: its tiles, what it takes, and its machine code."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import UnsupportedCall, hopper_plan
from kernels.options import Options

# dtype, head size, Nq, Nk, causal, left of the window, query heads a key head, what is turned off
CALLS = [("bfloat16", 64, 4096, 4096, False, -1, 1), ("bfloat16", 64, 4096, 4096, True, -1, 1),
         ("float16", 64, 4096, 4096, True, -1, 1), ("float16", 64, 1000, 1000, True, 300, 1),
         ("bfloat16", 64, 1000, 1000, True, 300, 1, "fixed"), ("bfloat16", 128, 4096, 4096, True, -1, 4),
         ("float16", 128, 4096, 4096, False, -1, 1), ("bfloat16", 128, 1000, 1111, True, 300, 1),
         ("bfloat16", 128, 1000, 1000, True, 300, 1), ("bfloat16", 192, 1000, 1000, True, -1, 1)]
# Triton 3.9, which computes the addresses of matrices anew, keeps so many values of a loop in memory; and of the loop
# over the blocks, one or two a tile, that the left side of a window crosses
SPILLED, SPILLED_LEFT = 4, 16


@pytest.fixture(scope="module")
def sass(tmp_path_factory):
    """Call -> machine code as text, made by a process without the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "tests.kernels.offline_hopper", str(folder)], text=True,
                          input=json.dumps(CALLS), capture_output=True, cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    return {call: subprocess.run([cuobjdump, "-sass", folder / f"{index}.cubin"], capture_output=True, text=True,
                                 check=True).stdout for index, call in enumerate(CALLS)}


def inner_loops(sass: str) -> list[list[str]]:
    """The instructions of each innermost loop that multiplies; a loop ends in a conditional jump back."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    loops = set()
    for at, text in code:
        jump = re.match(r"@!?U?P\d+ BRA\b.*?0x([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at and any(int(jump[1], 16) <= b <= at and "GMMA" in t for b, t in code):
            loops.add((int(jump[1], 16), at))
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    return [[text for at, text in code if low <= at <= high] for low, high in sorted(inner)]


def test_an_inner_loop_is_found_where_it_is():
    sass = """
        /*0010*/ STL [R1], R2 ;
        /*0020*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0030*/ LDL R2, [R1] ;
        /*0040*/ @P0 BRA 0x20 ;
        /*0050*/ LDL R2, [R1] ;
        /*0060*/ @!P1 BRA 0x10 ;
        /*0070*/ BRA 0x30 ;
    """
    assert inner_loops(sass) == [["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ", "LDL R2, [R1] ", "@P0 BRA 0x20 "]]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_loops_hold_what_they_should(call, sass):
    """Tensor cores; no more than 4 waits and arrivals, beyond which ptxas has serialised the products; no spills."""
    import triton

    loops = inner_loops(sass[call])
    consumers = hopper_plan.choose(*(torch.empty(1, h, n, call[1], dtype=getattr(torch, call[0]), device="meta")
                                     for h, n in ((2 * call[6], call[2]), (2, call[3]))),
                                   Options(left=call[5], right=0 if call[4] else -1)).consumers
    assert len(loops) >= consumers
    for loop in loops:
        assert sum("HGMMA" in text for text in loop) >= 12
        assert sum(text.startswith("WARPGROUP") for text in loop) <= 4
        spilled = sum(bool(re.search(r"\b(?:STL|LDL)\b", text)) for text in loop)
        crossed = call[5] >= 0 and sum("FSEL" in text for text in loop) >= 64  # 64 scores a thread are masked
        allowed = SPILLED_LEFT if crossed else SPILLED
        assert spilled <= (0 if triton.__version__.startswith("3.6") else allowed)
    given = {int(n, 16) for n in re.findall(r"USETMAXREG\.TRY_ALLOC\.CTAPOOL \w+, 0x([0-9a-f]+)", sass[call])}
    assert {2: 240, 3: 160}[consumers] in given  # the consumers have the registers that the loading warp gives up


def visible_blocks(row, rows, nq, nk, block_n, left, right):
    """Key blocks with a pair that the mask lets through, by looking at every pair."""
    i = torch.arange(row, min(row + rows, nq))[:, None] + nk - nq
    j = torch.arange(nk)[None, :]
    seen = torch.ones(i.shape[0], nk, dtype=torch.bool)
    seen &= (j <= i + right) if right >= 0 else True
    seen &= (j >= i - left) if left >= 0 else True
    return sorted(set((seen.any(0).nonzero().flatten() // block_n).tolist()))


@pytest.mark.parametrize("nq, nk", [(1, 1), (300, 1000), (1000, 300), (257, 255), (130, 2)], ids=str)
@pytest.mark.parametrize("left, right", [(-1, -1), (-1, 0), (100, 0), (40, 70), (0, -1)], ids=str)
@pytest.mark.parametrize("block_m, block_n", [(128, 128), (192, 128), (128, 64)], ids=str)
def test_a_tile_walks_the_blocks_that_it_sees(nq, nk, left, right, block_m, block_n):
    lowest, highest = nk - nq - left if left >= 0 else None, nk - nq + right if right >= 0 else None
    for row in range(0, nq, block_m):
        first, end = hopper_plan.block_range(row, nq, nk, block_m, block_n, lowest, highest)
        seen = visible_blocks(row, block_m, nq, nk, block_n, left, right)
        assert list(range(first, end)) == seen if seen else end == first + 1


CELLS = [(dtype, head_dim, n, 16_384 // n, 2048 // head_dim, causal) for dtype in (torch.bfloat16,)
         for head_dim in (64, 128) for n in (1024, 1500, 4096, 8192, 16_384) for causal in (False, True)]


@pytest.mark.parametrize("dtype, head_dim, n, batch, heads, causal", CELLS, ids=str)
def test_programs_are_done_together(dtype, head_dim, n, batch, heads, causal):
    """Each tile once; the busiest of 132 programs at most 1/0.97 of the mean, or of what whole tiles allow at best.

    A tile costs its key blocks and one more; where warpgroups have no rows, the blocks cost that share less, down to
    half."""
    q = torch.empty(batch, heads, n, head_dim, dtype=dtype, device="meta")
    config = hopper_plan.choose(q, q, Options(right=0 if causal else -1))
    group = hopper_plan.group_of(q, q, config)
    lists, _ = hopper_plan.tile_lists(batch, heads, n, n, config.block_m, config.block_n, None, 0 if causal else None,
                                      group, 132)
    words = [word for words in lists for word in words]
    count = -(-n // config.block_m)
    assert len(words) == len(set(words)) == batch * heads * count
    rows = [word & ((1 << hopper_plan.ROW_BITS) - 1) for word in words]
    assert sorted(rows) == sorted(list(range(count)) * batch * heads)
    ends = [min(config.block_m * (row + 1), n) for row in range(count)]
    groups = [-(-(end - config.block_m * row) // 64) for row, end in enumerate(ends)]
    cost = [-(-(end if causal else n) // config.block_n) * max(0.5, working / config.consumers) + 1
            for end, working in zip(ends, groups)]
    busy = [sum(cost[word & ((1 << hopper_plan.ROW_BITS) - 1)] for word in words) for words in lists]
    best = sum(busy) / 132 if len(set(cost)) > 1 else -(-len(words) // 132) * cost[0]
    assert round(best / max(busy), 2) >= 0.97


def test_a_word_holds_a_tile():
    word = hopper_plan.pack(5, 3_000_000, 1_000_000)
    assert 0 < hopper_plan.pack((1 << hopper_plan.BATCH_BITS) - 1, 0, 0) < 1 << 63
    assert (word >> 44, word >> 20 & 0xFFFFFF, word & 0xFFFFF) == (5, 3_000_000, 1_000_000)


def given(**changes):
    shape = {"dtype": torch.bfloat16, "nq": 256, "nk": 256, "head_dim": 64, **changes}
    q, k = (torch.zeros(1, heads, n, shape["head_dim"], dtype=shape["dtype"]) for heads, n in
            ((4, shape["nq"]), (2, shape["nk"])))
    return q, k, k.clone()


@pytest.mark.parametrize("change, options, scale, cc, reason", [
    ({}, Options(), 0.1, (9, 0), None), ({"head_dim": 40}, Options(left=5, right=0), 0.1, (9, 0), None),
    ({"nk": 0}, Options(), 0.1, (9, 0), None),
    ({}, Options(), 0.1, None, "interpreter"), ({}, Options(), 0.1, (10, 0), "9.0, and this is 10.0"),
    ({"dtype": torch.float32}, Options(), 0.1, (9, 0), "float32"),
    ({"head_dim": 20}, Options(), 0.1, (9, 0), "size 20"),
    ({}, Options(softcap=3.0), 0.1, (9, 0), "causal and window"),
    ({}, Options(), -0.1, (9, 0), "positive scale")], ids=str)
def test_what_it_takes(change, options, scale, cc, reason):
    tensors = given(**change)
    found = hopper_plan.supports(*tensors, options, scale, cc)
    assert found is None if reason is None else reason in found
    name, why = hopper_plan.select(*tensors, options, scale, cc, "auto", None)
    assert name == ("hopper" if reason is None else "flash2")
    assert reason is None or reason in why
    assert hopper_plan.select(*tensors, options, scale, cc, "flash2", None)[0] == "flash2"
    if reason is None:
        assert hopper_plan.select(*tensors, options, scale, cc, "hopper", None)[0] == "hopper"
    else:
        with pytest.raises(UnsupportedCall, match=f"implementation: .*{re.escape(reason)}"):
            hopper_plan.select(*tensors, options, scale, cc, "hopper", None)


def test_strides_that_descriptors_cannot_hold_are_named():
    q, k, v = given()
    assert "v has a stride" in hopper_plan.supports(q, k, v[:, :1].expand(-1, 2, -1, -1), Options(), 0.1, (9, 0))


@pytest.mark.parametrize("nq, nk, head_dim, options, edge", [
    (4096, 4096, 128, Options(right=0), False), (1000, 1000, 64, Options(right=0), False),
    (1000, 1100, 128, Options(right=0), True), (1024, 1152, 128, Options(right=0), False),
    (1024, 1088, 256, Options(right=0), False),
    (1024, 1088, 128, Options(right=0), False), (1024, 1088, 64, Options(right=0), True),
    (1088, 1024, 256, Options(right=0), True),
    (1024, 1024, 128, Options(right=5), True), (64, 64, 64, Options(left=0), False),
    (1024, 1024, 128, Options(left=255, right=0), False), (64, 100, 64, Options(), False)])
def test_where_one_masked_block_is_not_enough(nq, nk, head_dim, options, edge):
    q, k, _ = given(nq=nq, nk=nk, head_dim=head_dim)
    assert hopper_plan.choose(q, k, options).edge is edge


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("n", [2048, 4096])
@pytest.mark.parametrize("options", [Options(), Options(right=0), Options(left=300, right=0), Options(left=9)], ids=str)
def test_float16_finds_what_it_cannot_hold(head_dim, n, options):
    """P is looked at before it is rounded, but in short full calls at head size 64: there the least weight that rounds
    to infinity passes the sum from which rows are done again."""
    half, other = (hopper_plan.choose(*given(dtype=dtype, head_dim=head_dim, nq=n, nk=n)[:2], options)
                   for dtype in (torch.float16, torch.bfloat16))
    early = head_dim == 64 and n == 2048 and options == Options()
    assert half.narrow is early and half.late is (half.fixed and not early)
    assert replace(half, half=False, late=other.late) == other and not other.narrow
    assert half.largest == (65_504 if early else 2.0**72) and other.largest == 2.0**72
    held, lost = (torch.tensor(x, dtype=torch.float32) for x in (65_519.99, 65_520.0))
    assert held.half().isfinite() and lost.half().isinf()


def test_what_follows_from_the_fields_is_part_of_a_compiled_form(monkeypatch):
    """Triton keeps compiled kernels on disk: one of a version with another limit may not be taken for this one's."""
    config = hopper_plan.choose(*given(dtype=torch.float16)[:2], Options())
    before = config.cache_key
    assert before != replace(config, stages=3).cache_key
    monkeypatch.setattr(hopper_plan.Config, "largest", property(lambda self: 5.0))
    assert config.cache_key != before
