"""The float8 forward for Hopper as compiled, its order of keys, and the calls that it refuses; none needs a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import hopper_fp8_plan as plan

# head size, causal, query tokens, key tokens, whether k has a scale a block, fields of Config
CONFIGURATIONS = [[64, False, 1024, 1024, False, {}], [64, True, 4096, 4096, False, {}],
                  [128, False, 1024, 1024, False, {}], [128, True, 1000, 1234, True, {}],
                  [128, True, 4001, 4096, True, {}], [256, True, 1024, 1024, False, {}]]


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(torch.float8_e4m3fn)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Machine code as text by (index of the configuration, kernel), from a process without the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "tests.kernels.offline_hopper_fp8", str(folder)], text=True,
                          input=json.dumps(CONFIGURATIONS), capture_output=True, cwd=Path(__file__).parents[2],
                          env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    return {(index, kernel): subprocess.run(
        [cuobjdump, "-sass", folder / f"{index}.{kernel}.cubin"], capture_output=True, text=True, check=True).stdout
        for index in range(len(CONFIGURATIONS)) for kernel in ("transpose", "forward")}


def main_loops(sass: str) -> list[list[str]]:
    """Instructions of each loop over key blocks: the innermost that multiply matrices and take exponentials."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    loops = {(int(jump[1], 16), at) for at, text in code
             if (jump := re.search(r"@!?U?P\d BRA\b.*?0x([0-9a-f]+)", text)) and int(jump[1], 16) < at}
    bodies = {(low, high): [text for at, text in code if low <= at <= high] for low, high in loops}
    busy = {loop for loop, body in bodies.items()
            if sum("QGMMA" in text for text in body) >= 4 and sum("MUFU.EX2" in text for text in body) >= 32}
    return [bodies[low, high] for low, high in sorted(busy)
            if not any((a, b) != (low, high) and low <= a and b <= high for a, b in busy)]


def chosen(d: int, causal: bool, nq: int, nk: int, block_scales: bool, fields: dict) -> plan.Config:
    return plan.choose(fp8(1, 1, nq, d), fp8(1, 1, nk, d), causal=causal, block_scales=block_scales, tuning=fields)


@pytest.mark.parametrize("index", range(len(CONFIGURATIONS)), ids=lambda index: str(CONFIGURATIONS[index]))
def test_the_loop_over_keys_is_what_was_designed(index, compiled):
    sass = compiled[index, "forward"]
    config = chosen(*CONFIGURATIONS[index])
    loops = main_loops(sass)
    assert len(loops) == config.consumers
    for body in loops:
        text = "\n".join(body)
        assert not re.search(r"\bSTL\b", text), "a spill"
        # where a diagonal may cross two blocks, the branch that masks, and only it, may read spilled column numbers
        for part in re.split(r"\bBRA\b", text):
            assert "LDL" not in part or (config.edge and "FSEL" in part), "a spill"
        assert not re.search(r"\b(?:STS|LDS|LDSM|STSM)\b", text), "P goes through shared memory"
        assert len(re.findall(r"\bPRMT\b", text)) <= 4, "P's bytes are taken apart"
        assert len(re.findall(r"\bWARPGROUP\b", text)) <= 4, "ptxas serialised the products"
        assert len(re.findall(r"\bF2FP\.\w+\.E4M3", text)) == config.block_n // 4
    registers = {int(count, 16) for count in re.findall(r"USETMAXREG\.TRY_ALLOC\S* UP\d, 0x([0-9a-f]+)", sass)}
    assert {2: 240, 3: 160}[config.consumers] in registers


def test_turned_v_is_not_read_before_it_is_written(compiled):
    """The wait for the kernel before, where the configuration has one, stands ahead of every read by TMA."""
    for index, configuration in enumerate(CONFIGURATIONS):
        config = chosen(*configuration)
        order = re.findall(r"ACQBULK|UTMALDG\.[34]D", compiled[index, "forward"])
        assert order.count("ACQBULK") == config.overlap and order.index("UTMALDG.4D") == config.overlap


def test_v_is_turned_in_registers(compiled):
    for index in range(len(CONFIGURATIONS)):
        sass = compiled[index, "transpose"]
        assert len(re.findall(r"\bLDG\.E\.128\b", sass)) == len(re.findall(r"\bSTG\.E\.128\b", sass)) == 16
        assert not re.search(r"\b(?:STS|LDS|SHFL|STL|LDL)\b", sass)


def test_the_order_of_keys_is_where_the_second_product_reads_what_the_first_wrote():
    """By PTX's tables of wgmma fragments: columns of a thread in the accumulator, and in a row of the 8-bit operand."""
    place = torch.arange(32).reshape(2, 2, 4, 2).permute(0, 2, 1, 3).flatten()  # as `transpose` stores keys
    for thread in range(4):
        holds = {8 * block + 2 * thread + e for block in range(4) for e in range(2)}
        reads = [4 * thread + i % 4 + 16 * (i // 4) for i in range(8)]
        assert {int(place[column]) for column in reads} == holds


def test_what_it_takes():
    q, k = fp8(2, 4, 100, 128), fp8(2, 2, 300, 128)
    scales = {"q_scale": torch.ones(2, 4), "k_scale": torch.ones(2, 2, 3), "v_scale": torch.ones(1)}
    assert plan.supports(q, k, k, scale=0.1, **scales) is None
    assert plan.supports(q.transpose(1, 2).contiguous().transpose(1, 2), k, k, scale=0.1) is None


@pytest.mark.parametrize(("change", "says"), [
    ({"q": fp8(2, 4, 100, 128).to(torch.bfloat16)}, "q is torch.bfloat16"),
    ({"v": fp8(2, 2, 300, 136)[..., :128]}, "strides of v"),
    ({"q": fp8(2, 4, 100, 96), "k": fp8(2, 2, 300, 96), "v": fp8(2, 2, 300, 96)}, "not 96"),
    ({"scale": -0.1}, "positive scale"),
    ({"q_scale": torch.ones(2, 4).double()}, "q_scale is float32"),
    ({"k_scale": torch.ones(2, 4)}, r"k_scale is contiguous, of one element, \(2, 2\) or \(2, 2, 3\), not \(2, 4\)"),
], ids=["dtype", "strides", "head size", "scale", "scale's dtype", "scale's shape"])
def test_what_it_refuses(change, says):
    call = {"q": fp8(2, 4, 100, 128), "k": fp8(2, 2, 300, 128), "v": fp8(2, 2, 300, 128), "scale": 0.1, **change}
    assert re.search(says, plan.supports(**call))


def test_scales_reach_the_kernel_by_head_and_block():
    x = fp8(2, 3, 300, 64)
    per_block = torch.ones(2, 3, 3)
    assert plan._steps(per_block, x) == (per_block, 3, 1)
    assert plan._steps(per_block[..., 0].contiguous(), x)[1:] == (1, 0)
    assert plan._steps(None, x)[1:] == (0, 0)


def test_few_keys_under_a_causal_mask_take_two_consumers():
    for causal, nk, consumers in ((True, 2048, 2), (True, 2049, 3), (False, 2048, 3)):
        assert chosen(128, causal, 1024, nk, False, {}).consumers == consumers


def test_edge_is_where_a_diagonal_may_cross_two_blocks():
    q = fp8(1, 1, 256, 64)
    for nk, expected in ((256, False), (320, False), (300, True)):
        assert plan.choose(q, fp8(1, 1, nk, 64), causal=True, block_scales=False).edge is expected
    assert not plan.choose(q, fp8(1, 1, 300, 64), causal=False, block_scales=False).edge
