"""Timing one call with a cold and with a warm L2 cache, on the GPU by CUDA events, on the CPU by the host's clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

FLUSH_BYTES = 512 * 2**20  # more than twice any L2
# The GPU waits this many cycles, about a millisecond, before a pair, so that every launch is queued when its turn
# comes: otherwise the time of a short kernel is that of the Python which launches it (flash2, N 4096: 294 µs, not 192).
WAIT_CYCLES = 2_000_000
LONGEST_WAIT = 20_000_000
CYCLES_PER_S = 2e9  # at least the SM clock, so that a wait is never shorter than meant


def wait_cycles(enqueue_s: Iterable[float]) -> int:
    """How long the GPU waits before a pair, from the seconds that Python took to launch the pairs before: half as much
    again as the slowest. A backward of three kernels took 0.6 ms a call, so that a fixed millisecond was too short."""
    slowest = max(enqueue_s, default=0.0)
    return min(LONGEST_WAIT, max(WAIT_CYCLES, int(1.5 * slowest * CYCLES_PER_S)))


class GpuClock:
    """CUDA events. L2 is flushed before the first call by writing a large buffer, outside the timed region."""

    how = "CUDA events, launches queued beforehand"

    def __init__(self) -> None:
        l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 0
        self._buffer = torch.empty(max(FLUSH_BYTES, 2 * l2), dtype=torch.int8, device="cuda")
        self.bytes_held = self._buffer.numel()
        self._enqueue_s: deque[float] = deque(maxlen=32)
        self.late = False  # whether the last pair's launches came after the wait for them was over

    def pair(self, call: Callable[[], Any]) -> tuple[Any, Any, Any]:
        """Run ``call`` twice after a flush, the first time cold, the second warm; marks for ``read``."""
        start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        cycles = wait_cycles(self._enqueue_s)
        torch.cuda._sleep(cycles)
        began = time.perf_counter()
        self._buffer.zero_()
        start.record()
        call()
        middle.record()
        call()
        end.record()
        self._enqueue_s.append(time.perf_counter() - began)
        self.late = self._enqueue_s[-1] > cycles / CYCLES_PER_S
        return start, middle, end

    def read(self, marks: tuple[Any, Any, Any]) -> tuple[float, float]:
        """Cold and warm time in ns; waits for the GPU."""
        marks[2].synchronize()
        return marks[0].elapsed_time(marks[1]) * 1e6, marks[1].elapsed_time(marks[2]) * 1e6

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def peak_memory(self, call: Callable[[], Any]) -> float | None:
        """Bytes that one call allocates at its peak above what was there, output included."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        del output
        return float(peak)

    def free(self) -> None:
        torch.cuda.empty_cache()


class HostClock:
    """The host's clock, for a run on the CPU. No cache is flushed, so cold and warm are the same thing."""

    how = "host clock on the CPU, no cache flush"
    late = False

    def pair(self, call: Callable[[], Any]) -> tuple[float, float, float]:
        start = time.perf_counter()
        call()
        middle = time.perf_counter()
        call()
        return start, middle, time.perf_counter()

    def read(self, marks: tuple[float, float, float]) -> tuple[float, float]:
        return (marks[1] - marks[0]) * 1e9, (marks[2] - marks[1]) * 1e9

    def synchronize(self) -> None:
        pass

    def peak_memory(self, call: Callable[[], Any]) -> float | None:
        return None

    def free(self) -> None:
        pass


def clock_for(device: str) -> GpuClock | HostClock:
    return GpuClock() if device == "cuda" else HostClock()
