"""What this GPU reaches at best, measured in the same process as the timings: copy, read and dense matmul."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

COPY_BYTES = 2**31
MATMUL_N = 8192
WARM_UP, CALLS = 3, 15


def median_s(call: Callable[[], Any]) -> float:
    """Median seconds of one call by CUDA events."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def measure() -> Iterator[dict[str, Any]]:
    """Entries of profile.json's ``ceilings``; a ceiling that cannot be measured (memory) is left out."""
    for measured in (copy, matmul_bf16, matmul_fp16):
        with contextlib.suppress(torch.OutOfMemoryError):
            yield from measured()
        torch.cuda.empty_cache()


def entry(quantity: str, value: float, unit: str, how: str) -> dict[str, Any]:
    return {"quantity": quantity, "value": value, "unit": unit, "kind": "measured", "how": how}


def copy() -> Iterator[dict[str, Any]]:
    source = torch.ones(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    gib = COPY_BYTES // 2**30
    yield entry(
        "dram_copy_bytes_per_s",
        2 * COPY_BYTES / median_s(lambda: target.copy_(source)),
        "B/s",
        f"device copy of {gib} GiB, bytes read and written, median of {CALLS}",
    )
    yield entry(
        "dram_read_bytes_per_s",
        COPY_BYTES / median_s(source.sum),
        "B/s",
        f"torch.sum over {gib} GiB of fp32, bytes read, median of {CALLS}",
    )


def matmul(name: str, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    a, b = (torch.randn(MATMUL_N, MATMUL_N, device="cuda", dtype=dtype) for _ in range(2))
    yield entry(
        f"matmul_{name}_flops_per_s",
        2 * MATMUL_N**3 / median_s(lambda: a @ b),
        "FLOP/s",
        f"torch {MATMUL_N}×{MATMUL_N}×{MATMUL_N} {name} product of random matrices, median of {CALLS}",
    )


def matmul_bf16() -> Iterator[dict[str, Any]]:
    return matmul("bf16", torch.bfloat16)


def matmul_fp16() -> Iterator[dict[str, Any]]:
    return matmul("fp16", torch.float16)
