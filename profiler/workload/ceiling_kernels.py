"""Two Triton kernels that do one thing as fast as the GPU can: read from L2, and evaluate exponentials."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_kernel(source, sums, count, BLOCK: tl.constexpr):
    """Each program reads all ``count`` fp32 of source, past L1, and writes their sum to sums[program].

    count is a multiple of BLOCK. Every program begins elsewhere, so that few read the same line at the same time.
    """
    program = tl.program_id(0)
    blocks = count // BLOCK
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    first = program * 97 % blocks
    for number in range(blocks):
        block = (first + number) % blocks
        total += tl.load(source + block * BLOCK + lanes, cache_modifier=".cg")
    tl.store(sums + program, tl.sum(total))


@triton.jit
def exponential_kernel(values, rounds, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """values[i] = 2^(-values[i]), UNROLL · rounds times over; in [0, 1] it stays there. One exponential each."""
    places = values + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(places)
    for _ in range(rounds):
        for _ in tl.static_range(UNROLL):
            x = tl.exp2(-x)
    tl.store(places, x)
