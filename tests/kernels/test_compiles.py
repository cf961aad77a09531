"""The default configurations of forward and backward compiled for four architectures, without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# compute capability, dtype, head size, causal, tokens (of 1000 the last block is not whole), query heads a key head,
# and a case of option_cases, where "all" has every option at once
CONFIGURATIONS = [
    (80, "bfloat16", 64, True, 1024, 2), (80, "bfloat16", 128, False, 1024, 1), (89, "float16", 40, True, 1000, 2),
    (89, "bfloat16", 128, True, 1024, 1), (90, "bfloat16", 64, False, 1024, 1), (90, "bfloat16", 64, True, 1024, 1),
    (90, "bfloat16", 64, True, 1024, 2), (90, "bfloat16", 128, False, 1024, 1), (90, "bfloat16", 128, True, 1024, 1),
    (90, "bfloat16", 128, True, 1024, 2), (90, "float32", 64, True, 1024, 2), (100, "bfloat16", 64, True, 1024, 1),
    (100, "bfloat16", 128, False, 1024, 1),
    (80, "bfloat16", 64, True, 1024, 2, "all"), (89, "bfloat16", 128, True, 1024, 1, "dropout"),
    (90, "bfloat16", 64, False, 1024, 1, "window"), (90, "bfloat16", 64, True, 1024, 1, "all"),
    (90, "bfloat16", 128, True, 1024, 1, "all"), (100, "bfloat16", 128, True, 1024, 1, "bias")]
# An H200 ran these fastest of all candidates although Triton 3.9 spills here: at most so many instructions in loops.
MEASURED = {((90, "bfloat16", 64, True, 1024, 1), "_key_pass"): 40,
            ((90, "bfloat16", 128, True, 1024, 1), "_key_pass"): 75,
            ((90, "bfloat16", 64, True, 1024, 2), "_key_pass"): 1}  # Triton 3.6 only
KERNELS = ("_forward", "_prepare", "_key_pass", "_query_pass")
TENSOR_CORES = {8: r"\bHMMA\b", 9: r"\bHGMMA\b", 10: r"\bUTC\w*MMA\b"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(configuration, kernel) -> machine code as text, made by a process without the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "tests.kernels.offline_compile", str(folder)], text=True,
                          input=json.dumps(CONFIGURATIONS), capture_output=True, cwd=Path(__file__).parents[2],
                          env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    return {(configuration, kernel): subprocess.run(
        [cuobjdump, "-sass", folder / f"{index}.{kernel}.cubin"], capture_output=True, text=True, check=True).stdout
        for index, configuration in enumerate(CONFIGURATIONS) for kernel in KERNELS}


def spills_in_loops(sass: str) -> tuple[int, int]:
    """Local loads and stores inside innermost loops that multiply, and the number of those loops."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", sass)]
    loops = set()
    for at, text in code:
        jump = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if jump and int(jump[1], 16) < at:
            loops.add((int(jump[1], 16), at))
    loops = {(low, high) for low, high in loops
             if any(low <= at <= high and re.search(r"MMA|FFMA", text) for at, text in code)}
    inner = [(low, high) for low, high in loops
             if not any((a, b) != (low, high) and low <= a and b <= high for a, b in loops)]
    spilled = [at for at, text in code if re.search(r"\b(?:STL|LDL)\b", text)]
    return sum(any(low <= at <= high for low, high in inner) for at in spilled), len(inner)


def test_a_spill_is_counted_where_it_is():
    sass = """
        /*0010*/ STL [R1], R2 ;
        /*0020*/ LDL R2, [R1] ;
        /*0030*/ HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0040*/ @P0 BRA 0x20 ;
        /*0050*/ LDL R2, [R1] ;
        /*0060*/ BRA 0x60 ;
    """
    assert spills_in_loops(sass) == (1, 1)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_nothing_spills_and_tensor_cores_work(configuration, compiled):
    for kernel in KERNELS:
        sass = compiled[configuration, kernel]
        spilled, loops = spills_in_loops(sass)
        assert spilled <= MEASURED.get((configuration, kernel), 0), f"{kernel}: {spilled} in {loops} loops"
        assert loops or kernel == "_prepare"
        if kernel != "_prepare" and configuration[1] != "float32":
            assert re.search(TENSOR_CORES[configuration[0] // 10], sass), kernel
