"""Compile what flash1, varlen and block-sparse attention and their trace launch, for a GPU that need not be there.

`python -m tests.kernels.offline_ladder FOLDER` reads a JSON list of [compute capability, dtype, head size, causal,
implementation: flash1, varlen, block_sparse or trace] from standard input and writes one machine code file a kernel,
INDEX.IMPLEMENTATION.KERNEL.cubin in FOLDER.
"""

import sys
from pathlib import Path
from unittest import mock

import torch
from triton.runtime import driver

from kernels import block_sparse, flash1, launch, trace, varlen
from kernels.autograd import Options
from tests.kernels.offline_compile import Compiled, Target, main

TOKENS, HEADS, KV_HEADS = 1000, 4, 2


def kernels_of(capability: int, dtype: str, head_dim: int, causal: bool, implementation: str) -> dict[str, bytes]:
    """Machine code by "IMPLEMENTATION.KERNEL", the blocks being those of the tables."""
    driver.set_active(Target(capability))
    cc, found = (capability // 10, capability % 10), {}
    q, k = (torch.zeros(1, h, TOKENS, head_dim, dtype=getattr(torch, dtype)) for h in (HEADS, KV_HEADS))
    lse = torch.zeros(1, HEADS, TOKENS)
    backward = launch.backward_tuning(q, k, cc, scored=False)

    def keep(implementation, module, run):
        into = {}
        with mock.patch.object(module, "_forward", Compiled(module._forward, into)), \
                mock.patch.object(module, "capability", lambda tensor: cc, create=True), \
                mock.patch("kernels.api.capability", lambda tensor: cc):
            run()
        found.update({f"{implementation}.{name}": code for name, code in into.items()})

    def keep_backward(implementation, steps):
        into = {}
        for name, kernel, programs, arguments, options in steps:
            if name != "prepare":
                Compiled(kernel, into)[(programs,)](*arguments, **options)
        found.update({f"{implementation}.{name}": code for name, code in into.items()})

    if implementation == "flash1":
        keep("flash1", flash1, lambda: flash1.flash1_attention(q, k, k, causal=causal, return_lse=True))
    elif implementation == "block_sparse":
        _block_sparse(q, k, lse, backward, causal, keep, keep_backward)
    elif implementation == "varlen":
        _varlen(q, k, lse, backward, cc, causal, keep, keep_backward)
    for name in trace.TRACED if implementation == "trace" else ():
        into = {}
        with mock.patch.object(trace, "_record", Compiled(trace._record, into)):
            trace.record(name, q, k, k, causal=causal, scale=0.1)
        found[f"trace.{name}"] = into["_record"]
    return found


def _block_sparse(q, k, lse, backward, causal, keep, keep_backward):
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    keep("block_sparse", block_sparse, lambda: block_sparse.block_sparse_attention(q, k, k, block_mask=mask,
                                                                                   causal=causal))
    keep_backward("block_sparse", block_sparse.launches(
        q, q, k, k, q, lse, None, block_sparse.block_lists(mask, 128), (q, k, k),
        tuning=block_sparse.fit(backward, 128), causal=causal, scale=0.1))


def _varlen(q, k, lse, backward, cc, causal, keep, keep_backward):
    packed, keys, cu = q[0].transpose(0, 1).contiguous(), k[0].transpose(0, 1).contiguous(), torch.zeros(3).int()
    options = Options(right=0 if causal else -1)
    keep("varlen", varlen, lambda: varlen.forward(
        packed, keys, keys, cu, cu, TOKENS, launch.pointer_tuning(varlen.TABLE, packed, cc, None), scale=0.1,
        options=options))
    keep_backward("varlen", varlen.launches(
        packed, packed, keys, keys, packed, lse[0], None, cu, cu, TOKENS, TOKENS, (packed, keys, keys), tuning=backward,
        scale=0.1, options=options))


if __name__ == "__main__":
    main(Path(sys.argv[1]), kernels_of)
