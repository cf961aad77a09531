"""Compile what the Hopper backward would launch, for a GPU that need not be there.

`python -m tests.kernels.offline_hopper_backward FOLDER` reads a JSON list of [dtype, head size, Nq, Nk, query heads a
key head, left, right, tuning] from standard input, where left and right are the window and tuning has the names of
hopper_backward_plan.Tuning that replace those of the table (with "dq_sum": "none", of the deterministic one), and
writes one machine code file a kernel, INDEX.STAGE.cubin in FOLDER.
"""

import sys
from pathlib import Path

import torch
from triton.runtime import driver

from kernels import hopper_backward_plan as plan
from tests.kernels.offline_compile import Target, main


def kernels_of(dtype: str, head_dim: int, nq: int, nk: int, group: int, left: int, right: int, tuning: dict
               ) -> dict[str, bytes]:
    """Machine code by stage of one backward with 2 key heads."""
    driver.set_active(Target(90))
    q, k = (torch.zeros(1, heads, tokens, head_dim, dtype=getattr(torch, dtype))
            for heads, tokens in ((2 * group, nq), (2, nk)))
    chosen = plan.choose(q, deterministic=tuning.get("dq_sum") == "none", tuning=tuning)
    steps = plan.launches(q, q, k, k, q, torch.zeros(q.shape[:3]), left=left, right=right, scale=0.1, dlse=None,
                          tuning=chosen, grads=(q, k, k))
    return {stage: kernel.warmup(*arguments, grid=(programs,), **options).asm["cubin"]
            for stage, kernel, programs, arguments, options in steps}


if __name__ == "__main__":
    main(Path(sys.argv[1]), kernels_of)
