"""Compile the float8 forward for Hopper, for a GPU that need not be there.

`python -m tests.kernels.offline_hopper_fp8 FOLDER` reads a JSON list of [head size, causal, query tokens, key tokens,
whether k has a scale a block, fields of Config] from standard input and writes INDEX.KERNEL.cubin a kernel to FOLDER.
"""

import sys
from pathlib import Path

import torch
from triton.runtime import driver

from kernels import hopper_fp8_plan as plan
from tests.kernels.offline_compile import Compiled, Target, main


def kernels_of(head_dim: int, causal: bool, nq: int, nk: int, block_scales: bool, fields: dict) -> dict[str, bytes]:
    """Machine code by kernel name of one forward with 4 query heads and 2 of keys."""
    driver.set_active(Target(90))
    q, k, v = (torch.zeros(1, heads, n, head_dim).to(torch.float8_e4m3fn)
               for heads, n in ((4, nq), (2, nk), (2, nk)))
    found: dict[str, bytes] = {}
    k_scale = torch.ones(1, 2, -(-nk // plan.SCALE_ROWS)) if block_scales else None
    for kernel, grid, arguments, options in plan.launches(
            q, k, v, torch.empty(q.shape, dtype=torch.bfloat16), torch.empty(q.shape[:3]), k_scale=k_scale,
            causal=causal, scale=0.1, tuning=fields, multiprocessors=132):
        Compiled(kernel, found)[grid](*arguments, **options)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), kernels_of)
