"""What this GPU reaches at best, measured in the process of the timings: device memory, L2, matmul, exponentials."""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from profiler.workload.clock import WAIT_CYCLES
from profiler.workload.device import Sensors

DRAM_BYTES = 2**31
L2_BYTES = 2**22  # read again and again: it fits the L2 of every GPU from Volta on, and is far above an SM's own L1
MATMUL_N = 8192
PROGRAMS = 8  # of the Triton kernels, an SM
BLOCK = 2048  # elements a program works on at a time
ROUNDS, UNROLL = 256, 16  # exponentials an element: their product
WARM_UP, CALLS = 3, 15
# Products one after another reach the power limit, and the next one then runs at a lower clock: each begins rested.
REST_S = 0.3
MATMULS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
SLOW_MATMULS = {"fp32": torch.float32, "fp64": torch.float64}  # only where a configuration has that type


@dataclass(frozen=True)
class Burst:
    """Median seconds of one call, and the clock in the middle of all calls: None where no sensor says it.

    No power: a burst is over before NVML's value changes (an H200's was that of the rest, 127 W, under 793 TFLOP/s)."""

    seconds: float
    sm_clock_hz: float | None = None


@functools.cache
def sensors() -> Sensors:
    return Sensors("cuda")


def burst(call: Callable[[], Any], rest_s: float = 0.0) -> Burst:
    """CALLS of one kind, timed one by one by CUDA events.

    All calls are queued while the GPU waits: where each is launched only after the one before it has ended, the time of
    the launch counts too. rest_s: how long the GPU rests first, so that no earlier work holds its clock down.
    """
    torch.cuda.synchronize()
    time.sleep(rest_s)
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    torch.cuda._sleep(WAIT_CYCLES)
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    marks[CALLS // 2].synchronize()
    clock = sensors().clock_hz()
    marks[-1].synchronize()
    return Burst(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3, clock)


def measure(dtypes: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Entries of profile.json's ``ceilings``; one that this GPU, its memory or this PyTorch does not allow is left out.

    dtypes: those of the configurations; fp32 and fp64 products are measured only for them, since they take long.
    """
    types = {**MATMULS, **{name: dtype for name, dtype in SLOW_MATMULS.items() if name in dtypes}}
    products = [lambda name=name, dtype=dtype: matmul(name, dtype) for name, dtype in types.items()]
    for measured in (device_memory, l2_read, exponentials, *products, matmul_fp8):
        with contextlib.suppress(torch.OutOfMemoryError, RuntimeError, ImportError, AttributeError, ValueError):
            yield from measured()
        torch.cuda.empty_cache()


def entry(quantity: str, amount: float, unit: str, how: str, took: Burst) -> dict[str, Any]:
    """``amount`` of one call over the time it took, and the clock at which that was."""
    how = f"{how}, median of {CALLS}" + (f", at {took.sm_clock_hz / 1e6:.0f} MHz" if took.sm_clock_hz else "")
    found = {"quantity": quantity, "value": amount / took.seconds, "unit": unit, "kind": "measured", "how": how,
             "sm_clock_hz": took.sm_clock_hz}
    return {name: value for name, value in found.items() if value is not None}


def device_memory() -> Iterator[dict[str, Any]]:
    source = torch.ones(DRAM_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    size = f"{DRAM_BYTES / 2**30:g} GiB"
    for quantity, moved, call, how in (
        ("dram_copy_bytes_per_s", 2 * DRAM_BYTES, lambda: target.copy_(source),
         f"device copy of {size}, bytes read and written"),
        ("dram_read_bytes_per_s", DRAM_BYTES, source.sum, f"torch.sum over {size} of fp32, bytes read"),
        ("dram_write_bytes_per_s", DRAM_BYTES, lambda: target.fill_(1.0), f"fill of {size}, bytes written"),
    ):
        yield entry(quantity, moved, "B/s", how, burst(call))


def l2_read() -> Iterator[dict[str, Any]]:
    """Bytes a second that the SMs take from L2; the buffer is there after the first pass over it."""
    from profiler.workload.ceiling_kernels import read_kernel

    programs = PROGRAMS * torch.cuda.get_device_properties(0).multi_processor_count
    source, sums = torch.ones(L2_BYTES // 4, device="cuda"), torch.empty(programs, device="cuda")
    count = source.numel()
    took = burst(lambda: read_kernel[(programs,)](source, sums, count, BLOCK=BLOCK, num_stages=1))
    if not bool((sums == count).all()):
        raise RuntimeError("the sum of what was read is wrong")
    how = f"{programs} programs that each read the same {L2_BYTES / 2**20:g} MiB past L1, bytes that reach the SMs"
    yield entry("l2_read_bytes_per_s", programs * L2_BYTES, "B/s", how, took)


def exponentials() -> Iterator[dict[str, Any]]:
    from profiler.workload.ceiling_kernels import exponential_kernel

    programs = PROGRAMS * torch.cuda.get_device_properties(0).multi_processor_count
    values = torch.rand(programs * BLOCK, device="cuda")
    took = burst(lambda: exponential_kernel[(programs,)](values, ROUNDS, BLOCK=BLOCK, UNROLL=UNROLL))
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise RuntimeError("an exponential left the interval that it maps to itself")
    done = values.numel() * ROUNDS * UNROLL
    yield entry("exponentials_per_s", done, "op/s", f"{done:.3g} fp32 exponentials (ex2.approx) in registers", took)


def matmul(name: str, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    try:
        a, b = (torch.randn(MATMUL_N, MATMUL_N, device="cuda", dtype=dtype) for _ in range(2))
        yield _product(name, lambda: a @ b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def matmul_fp8() -> Iterator[dict[str, Any]]:
    """e4m3 operands, bf16 result; from compute capability 8.9."""
    a, b = (torch.randn(MATMUL_N, MATMUL_N, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    yield _product("fp8", lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))


def _product(name: str, call: Callable[[], Any]) -> dict[str, Any]:
    how = f"torch {MATMUL_N}×{MATMUL_N}×{MATMUL_N} {name} product of random matrices after a rest of {REST_S:g} s"
    return entry(f"matmul_{name}_flops_per_s", 2 * MATMUL_N**3, "FLOP/s", how, burst(call, REST_S))
