"""The Hopper backward without a GPU: machine code, the helper kernels in the interpreter, what it takes and runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import hopper_backward_plan as plan
from kernels.errors import UnsupportedCall

# dtype, head size, Nq, Nk, query heads a key head, left, right, names of Tuning that replace those of the table
TWO = {"dq_sum": "none"}
CONFIGURATIONS = [
    ("bfloat16", 128, 1024, 1024, 1, -1, -1, {}), ("bfloat16", 128, 1024, 1024, 1, -1, 0, {}),
    ("bfloat16", 64, 1024, 1024, 1, -1, -1, {}), ("bfloat16", 64, 1024, 1024, 1, -1, 0, {}),
    ("float16", 96, 1000, 777, 2, -1, 0, {}), ("bfloat16", 40, 1000, 777, 1, 100, 50, {}),
    ("bfloat16", 128, 1024, 1024, 1, -1, 0, TWO), ("float16", 64, 1000, 777, 2, -1, 0, TWO),
    ("bfloat16", 128, 1024, 1024, 1, -1, -1, TWO), ("bfloat16", 64, 1000, 777, 2, -1, -1, TWO)]
SPILLS = {1: 2, 2: 3, 3: 4, 4: 2, 5: 9}  # instructions on local memory in a step, at most
WARPGROUP = 11  # arrivals and waits in a sound loop; where ptxas runs the products one after another there are over 20


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(configuration, stage) -> machine code as text, made by a process without the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "tests.kernels.offline_hopper_backward", str(folder)], text=True,
                          input=json.dumps(CONFIGURATIONS), capture_output=True, cwd=Path(__file__).parents[2],
                          env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    return {tuple(file.name.split(".")[:2]): subprocess.run([cuobjdump, "-sass", file], capture_output=True, text=True,
                                                            check=True).stdout for file in folder.iterdir()}


def loops(sass):
    """Instructions of each innermost loop that multiplies.

    A jump back from where a wait is tried again, which lies behind the code, makes no loop."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    target = [int(m[1], 16) if (m := re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)) else None for _, text in code]
    back = [(to, at) for i, ((at, _), to) in enumerate(zip(code, target))
            if to is not None and to < at and not (i > 1 and target[i - 1] == code[i - 2][0])]
    back = [(low, high) for low, high in back if any(low <= at <= high and "HGMMA" in text for at, text in code)]
    inner = [(low, high) for low, high in back
             if not any((a, b) != (low, high) and low <= a and b <= high for a, b in back)]
    return [[text for at, text in code if low <= at <= high] for low, high in inner]


def test_loops_are_found():
    sass = """
        /*0010*/ STL [R1], R2 ;
        /*0020*/ HGMMA.64x64x16.F32.BF16 R152, gdesc[UR32], R152 ;
        /*0030*/ @!P0 BRA 0x60 ;
        /*0040*/ @P0 BRA 0x20 ;
        /*0050*/ EXIT ;
        /*0060*/ SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6+0x28550], R2 ;
        /*0070*/ @!P0 BRA 0x60 ;
        /*0080*/ BRA 0x40 ;
    """
    (body,) = loops(sass)
    assert len(body) == 3 and "HGMMA" in body[0]


@pytest.mark.parametrize("index", range(len(CONFIGURATIONS)), ids=lambda i: "-".join(map(str, CONFIGURATIONS[i])))
def test_machine_code(index, compiled):
    dtype, head_dim, *_, tuning = CONFIGURATIONS[index]
    q = torch.zeros(1, 2, 4, head_dim, dtype=getattr(torch, dtype))
    chosen = plan.choose(q, deterministic=bool(tuning), tuning=tuning)
    width = 64 if head_dim <= 64 else 128
    # a step of HGMMA multiplies 16 of the summed dimension; one for each statistic
    products = {"keys": 2 * width // 16 + 2 + 2 * chosen.block_m // 16 + (0 if chosen.dq_sum == "none" else 128 // 16),
                "queries": 2 * width // 16 + chosen.block_n // 16}
    for stage in ("keys", "queries") if chosen.dq_sum == "none" else ("keys",):
        sass = compiled[str(index), stage]
        consumers = chosen.consumers if stage == "keys" else chosen.query_consumers
        found = loops(sass)
        assert [sum("HGMMA" in text for text in body) for body in found] == [products[stage]] * consumers
        for body in found:
            assert sum("WARPGROUP" in text for text in body) <= WARPGROUP
            assert sum(bool(re.search(r"\b(STL|LDL)\b", text)) for text in body) <= SPILLS.get(index, 0)
        asked = {2: "0xf0", 3: "0xa0"}[consumers]
        assert len(re.findall(rf"USETMAXREG\.TRY_ALLOC\.CTAPOOL UP0, {asked} ", sass)) == consumers
        assert bool(re.search(r"\bUTMAREDG\b", sass)) == (chosen.dq_sum == "reduce")
        for body in found if stage == "keys" else ():  # shared memory is what limits: nothing is read by the threads
            assert not any("LDS" in text for text in body)
            wide = [text for text in body if re.search(r"\bSTS\b", text.replace(".", " "))]
            assert len(wide) == (8 if chosen.dq_sum == "reduce" else 0) and all("STS.128" in text for text in wide)
    other = "finish" if chosen.dq_sum == "none" else "queries"
    assert other not in {stage for i, stage in compiled if i == str(index)}


@pytest.mark.parametrize("head_dim", [128, 64, 40])
def test_finish_knows_the_order_of_registers(head_dim, device):
    """Of a wgmma's result, thread t of a warpgroup holds as its value i that of row 16 (t // 32) + t % 32 // 4 +
    8 (i // 2 % 2) and column 8 (i // 4) + 2 (t % 4) + i % 2 (PTX ISA, register fragments of wgmma.m64nNk16). Values 4 g
    to 4 g + 3 are written to bytes 2048 g + 16 t of shared memory, which a copy with 128-byte swizzle takes as rows of
    128 bytes, 16-byte piece p of row r at piece p xor r % 8 (CUDA programming guide, tensor map swizzle modes)."""
    from kernels import hopper_backward_sums

    nq, padded, width = 200, 256, 64 if head_dim <= 64 else 128
    dq = torch.randn(padded, width)
    products = width // 64  # of 64 by 64, in a row
    sums = torch.empty(padded // 64, products, 128, 8, 4)  # rows of 128 bytes, pieces, values
    for c in range(products):
        for t in range(128):
            for i in range(32):
                row = t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8
                column = i // 4 * 8 + t % 4 * 2 + i % 2 + c * 64
                place = (i // 4 * 2048 + t * 16) // 16  # in pieces of 16 bytes
                sums[:, c, place // 8, place % 8 ^ place // 8 % 8, i % 4] = dq[row::64, column]
    out = torch.full((1, 1, nq, head_dim), float("nan"), device=device)
    hopper_backward_sums.finish[(padded // 64,)](sums.to(device), out, nq, padded, 0.5, HEAD=head_dim, D=width)
    torch.testing.assert_close(out[0, 0].cpu(), dq[:nq, :head_dim] * 0.5)


def test_statistics(device):
    """-LSE / scale and dLSE - sum(dO O), -inf and 0 for a row without keys and the padding."""
    from kernels import hopper_backward_sums

    torch.manual_seed(0)
    out, dout = (torch.randn(2, 100, 3, 40, device=device).transpose(1, 2) for _ in range(2))
    lse, dlse = (torch.randn(2, 3, 100, device=device) for _ in range(2))
    lse[1, 2, 7] = float("-inf")
    lse[0, 1, :3] = torch.tensor([1e-30, 8191.937, -3.0e7])
    terms = torch.full((2, 6 * 128, 16), float("nan"), dtype=torch.bfloat16, device=device)
    sums = torch.full((6 * 128, 64), float("nan"), device=device)
    hopper_backward_sums.prepare[(6 * 2,)](out, dout, lse, dlse, terms, sums, *out.stride()[:3],
                                      *dout.stride()[:3], 3, 100, 128, -1 / 0.25, HEAD=40, D=64, ROWS=64,
                                      HAS_DLSE=True, ZERO=True)
    delta = dlse - (out * dout).sum(-1)
    delta[1, 2, 7] = 0
    assert (terms[..., 3:] == 0).all()
    stats = terms[..., :3].float().sum(-1).view(2, 6, 128)  # three of 8 bits hold the 24 of a float32
    assert (stats[0].view(2, 3, 128)[..., :100] == (-4 * lse).masked_fill(lse.isinf(), -torch.inf)).all()
    torch.testing.assert_close(stats[1].view(2, 3, 128)[..., :100], delta)
    assert (stats[0][:, 100:] == -torch.inf).all() and (stats[1][:, 100:] == 0).all() and (sums == 0).all()


def test_what_it_does_not_take():
    q, k = torch.zeros(1, 4, 8, 64, dtype=torch.bfloat16), torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)
    assert plan.obstacle(q, k, k) is None
    assert "q is on cpu" in plan.supports(q, k, k)
    assert "float32" in plan.obstacle(q.float(), k.float(), k.float())
    assert "head size 160" in plan.obstacle(*(torch.zeros(1, 2, 8, 160, dtype=q.dtype) for _ in range(3)))
    assert "head size 60" in plan.obstacle(*(x[..., :60] for x in (q, k, k)))
    assert "scale -1.0" in plan.obstacle(q, k, k, scale=-1.0)
    assert "last stride of v" in plan.obstacle(q, k, torch.zeros(1, 2, 64, 8, dtype=q.dtype).mT)
    assert "not a multiple of 16" in plan.obstacle(q, k[..., 1:, :][..., 1:], k)
    with pytest.raises(UnsupportedCall, match="deterministic=True"):
        plan.choose(q, deterministic=True, tuning={"dq_sum": "reduce", "block_m": 128})
    with pytest.raises(UnsupportedCall, match='consumers 2, or 3 with dq_sum "none"'):
        plan.choose(q, deterministic=False, tuning={"consumers": 3})
    with pytest.raises(UnsupportedCall, match='"reduce" or "none"'):
        plan.choose(q, deterministic=False, tuning={"dq_sum": "atomic"})
    with pytest.raises(UnsupportedCall, match='block_m 128 with dq_sum "reduce"'):
        plan.choose(q, deterministic=False, tuning={"block_m": 64})


def test_stages():
    q = torch.zeros(1, 4, 8, 64, dtype=torch.bfloat16)

    def stages(deterministic):
        tuning = plan.choose(q, deterministic=deterministic)
        return [stage for stage, *_ in plan.launches(q, q, q, q, q, torch.zeros(1, 4, 8), left=-1, right=-1, scale=1.0,
                                                     dlse=None, tuning=tuning, grads=(q, q, q))]
    assert stages(False) == ["prepare", "keys", "finish"]
    assert stages(True) == ["prepare", "keys", "queries"]


def places(monkeypatch, heads, blocks, together):
    """(head, block) of every program, by the device function on plain numbers."""
    from types import SimpleNamespace

    from kernels import hopper_backward_sums

    found = []
    for program in range(heads * blocks):
        numbers = SimpleNamespace(program_id=lambda _, p=program: p, num_programs=lambda _: heads * blocks,
                                  maximum=max, where=lambda condition, a, b: a if condition else b)
        monkeypatch.setattr(hopper_backward_sums, "gl", numbers)
        found.append(hopper_backward_sums.block_of_program.fn(blocks, together))
    monkeypatch.undo()
    return found


def test_heads_take_turns(monkeypatch):
    """5 heads of 3 blocks, two at a time: head 0 is the rest and comes first, then 1 and 2, then 3 and 4."""
    assert places(monkeypatch, 5, 3, 2) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0), (4, 0), (3, 1), (4, 1), (3, 2),
        (4, 2)]
    for heads, blocks, together in ((7, 4, 7), (7, 4, 1), (8, 5, 4), (1, 3, 1), (10, 2, 7)):
        assert sorted(places(monkeypatch, heads, blocks, together)) == [
            (head, block) for head in range(heads) for block in range(blocks)]


@pytest.mark.parametrize(("n", "heads", "head_dim"), [(1024, 256, 128), (4096, 64, 128), (16384, 16, 128),
                                                      (1024, 512, 64), (4096, 128, 64), (16384, 32, 64)])
def test_causal_programs_end_together(monkeypatch, n, heads, head_dim):
    """Each program in turn to whoever is free first of 132 multiprocessors: the last ends within 3 % of the mean."""
    import heapq

    q = torch.zeros(1, heads, n, 1).expand(1, heads, n, head_dim)
    busy = [0.0] * 132
    work = 0
    for _, block in places(monkeypatch, heads, n // 128, plan.heads_together(q, q, heads, n // 128)):
        steps = (n - 128 * block) / (64 if head_dim == 128 else 128) + 3  # 3: what a program costs before and after
        work += steps
        heapq.heapreplace(busy, busy[0] + steps)
    assert work / 132 / max(busy) >= 0.97
