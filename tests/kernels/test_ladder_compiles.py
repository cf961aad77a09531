"""flash1, varlen and block-sparse attention compiled for four architectures, without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.test_compiles import TENSOR_CORES, spills_in_loops

# compute capability, dtype, head size, causal, implementation; 1000 tokens, so that the last block is not whole, and
# heads 4/2
CONFIGURATIONS = [(80, "bfloat16", 64, True, "varlen"), (89, "float16", 128, False, "block_sparse"),
                  (89, "bfloat16", 64, True, "flash1"), (90, "bfloat16", 128, True, "varlen"),
                  (90, "bfloat16", 64, True, "block_sparse"), (100, "bfloat16", 64, True, "flash1"),
                  (100, "bfloat16", 128, True, "varlen")]


def kernels_of(implementation):
    return ["_forward"] if implementation == "flash1" else ["_forward", "_key_pass", "_query_pass"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(configuration, kernel) -> machine code as text, made by a process without the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "tests.kernels.offline_ladder", str(folder)], text=True,
                          input=json.dumps(CONFIGURATIONS), capture_output=True, cwd=Path(__file__).parents[2],
                          env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    return {(configuration, kernel): subprocess.run(
        [cuobjdump, "-sass", folder / f"{index}.{configuration[4]}.{kernel}.cubin"], capture_output=True, text=True,
        check=True).stdout for index, configuration in enumerate(CONFIGURATIONS)
        for kernel in kernels_of(configuration[4])}


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_nothing_spills_in_a_loop_and_tensor_cores_work(configuration, compiled):
    for kernel in kernels_of(configuration[4]):
        sass = compiled[configuration, kernel]
        spilled, loops = spills_in_loops(sass)
        assert loops and not spilled, f"{kernel}: {spilled} in {loops} loops"
        small = configuration[0] == 100 and kernel != "_forward"  # tiles of 16 rows, too small for its own instruction
        assert re.search(TENSOR_CORES[8 if small else configuration[0] // 10], sass), kernel
