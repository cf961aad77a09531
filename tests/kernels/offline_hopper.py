"""Compile the Hopper forward that calls would launch, for a GPU that need not be there.

`python -m tests.kernels.offline_hopper FOLDER` reads a JSON list of [dtype, head size, Nq, Nk, causal, left of the
window, query heads a key head, and any switches to turn off] from standard input and writes one machine code file
each, INDEX.cubin in FOLDER.
"""

import json
import sys
from pathlib import Path

import torch
from triton.runtime import driver

from kernels import hopper, hopper_plan
from kernels.options import Options
from tests.kernels.offline_compile import Target


def compiled(dtype: str, head_dim: int, nq: int, nk: int, causal: bool, left: int, group: int, *off: str) -> bytes:
    """Machine code of the forward of a call with two key heads."""
    driver.set_active(Target(90))
    q, k, v, out = (torch.zeros(1, heads, tokens, head_dim, dtype=getattr(torch, dtype))
                    for heads, tokens in ((2 * group, nq), (2, nk), (2, nk), (2 * group, nq)))
    on = Options(left=left, right=0 if causal else -1)
    assert hopper_plan.supports(q, k, v, on, 0.1, (9, 0)) is None
    config = hopper_plan.choose(q, k, on, dict.fromkeys(off, False))
    grid, arguments, options = hopper.launch(q, k, v, out, torch.zeros(1, 2 * group, nq), config, scale=0.1,
                                             left=on.left, right=on.right)
    return hopper._forward.warmup(*arguments, grid=grid, **options).asm["cubin"]


def main(folder: Path) -> None:
    for index, call in enumerate(json.load(sys.stdin)):
        (folder / f"{index}.cubin").write_bytes(compiled(*call))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
