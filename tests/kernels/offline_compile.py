"""Compile what flash_attention and its backward would launch, for a GPU that need not be there.

`python -m tests.kernels.offline_compile FOLDER` reads a JSON list of [compute capability, dtype, head size, causal,
tokens, query heads a key head, and, if any, a case of option_cases] from standard input and writes one machine code
file a kernel, INDEX.KERNEL.cubin in FOLDER. A stand-in for Triton's driver names the target; the arguments, blocks and
options are those of the real calls.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels import api, backward_plan, flash2, flash2_backward, plan
from kernels.options import check, extras
from tests.kernels import option_cases


class Target:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # Triton keeps one cache of kernels a device

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Takes a kernel's place: a launch compiles and keeps the machine code."""

    def __init__(self, kernel, into: dict):
        self.kernel, self.into, self.__name__ = kernel, into, kernel.fn.__name__

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.into[self.__name__] = self.kernel.warmup(*arguments, grid=grid, **options).asm["cubin"]
        return launch


def options_of(case: str, tokens: int) -> dict:
    """Keyword arguments of a call with 4 heads: none, or those of a case of option_cases."""
    return option_cases.build(case, 1, 4, tokens, tokens, "cpu") if case else {}


def kernels_of(capability: int, dtype: str, head_dim: int, causal: bool, tokens: int, group: int, case: str = ""
               ) -> dict[str, bytes]:
    """Machine code by kernel name of one forward with LSE and one backward with 4 query heads."""
    driver.set_active(Target(capability))
    cc, found = (capability // 10, capability % 10), {}
    q, k, v = (torch.zeros(1, heads, tokens, head_dim, dtype=getattr(torch, dtype)) for heads in
               (4, 4 // group, 4 // group))
    given = options_of(case, tokens)
    causal = given.pop("causal", causal)
    on = check(q, k, {**(api.flash_attention.__kwdefaults__ or {}), **given}, causal=causal)
    forward = flash2._forward
    flash2._forward = Compiled(forward, found)
    try:
        chosen = plan.choose(q, k, v, causal=causal, cc=cc, tuning=None, options=on)
        out, lse = flash2.forward(q, k, v, chosen, causal=causal, scale=0.1, return_lse=True, options=on)
    finally:
        flash2._forward = forward
    tuning = backward_plan.choose((q, k, v, q), masked=on.left >= 0 or on.right >= 0, cc=cc, scored=on.scored,
                                  left=on.left >= 0)
    for kernel, programs, arguments, options in flash2_backward.launches(
            q, q, k, v, out, lse, left=on.left, right=on.right, scale=0.1, dlse=None, tuning=tuning,
            grads=(q, k, v), extra=extras(on)):
        Compiled(kernel, found)[(programs,)](*arguments, **options)
    return found


def main(folder: Path, kernels_of: Callable[..., dict[str, bytes]]) -> None:
    """Write INDEX.KERNEL.cubin for every configuration of the JSON list on standard input."""
    for index, configuration in enumerate(json.load(sys.stdin)):
        for name, code in kernels_of(*configuration).items():
            (folder / f"{index}.{name}.cubin").write_bytes(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), kernels_of)
