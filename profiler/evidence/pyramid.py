"""The memory pyramid of a GPU: registers, shared memory, L2, HBM, each with capacity, bandwidth and what crossed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiler.evidence.facts import Facts
from profiler.model import COUNTERS, MEASURED
from profiler.spec import AttentionShape

REGISTER_BYTES_PER_SM = 64 * 1024 * 4  # 65,536 registers of 4 B, every compute capability from 5.0 on
# L1 and shared memory of an SM that a kernel may use as shared, bytes (CUDA programming guide, compute capabilities)
SHARED_BYTES_PER_SM = {
    "7.0": 96 << 10, "7.2": 96 << 10, "7.5": 64 << 10, "8.0": 164 << 10, "8.6": 100 << 10, "8.7": 164 << 10,
    "8.9": 100 << 10, "9.0": 228 << 10, "10.0": 228 << 10, "10.3": 228 << 10, "12.0": 100 << 10, "12.1": 100 << 10}
SHARED_BYTES_PER_CYCLE = 128  # a cycle and SM: 32 banks of 4 B


@dataclass(frozen=True, slots=True)
class Level:
    """One level, fastest first.

    capacity_bytes over the whole GPU; bytes_per_s its bandwidth; None where it is not known, and ``missing`` says why.
    source: where the bandwidth comes from. traffic: implementation → bytes counted across the level on the shape.
    """

    name: str
    capacity_bytes: float | None
    bytes_per_s: float | None
    source: str
    traffic: Mapping[str, float]
    missing: str = ""


def pyramid(facts: Facts, shape: AttentionShape | None = None, direction: str = "forward") -> list[Level]:
    """Registers, shared memory, L2 (towards the SMs), HBM; with a shape the traffic of every implementation on it."""
    empty: Mapping[str, Any] = {}
    clocked = [r for r in facts.launches if r["sm_clock_hz"] and r["sm_count"]]
    row = next(iter(clocked or facts.launches), empty)
    sms = row.get("sm_count") or facts.gpu.get("sm_count")
    clock = row.get("sm_clock_hz")
    cc = row.get("cc") or facts.gpu.get("cc")
    shared = SHARED_BYTES_PER_SM.get(str(cc))
    cycles = sms * clock if sms and clock else None
    runs = [r for r in facts.runs if r.shape == shape and r.config.direction == direction and r.rows]
    ceilings = {c["quantity"]: c for c in facts.bundle.profile.get("ceilings", ())}
    ceiling = ceilings.get("dram_copy_bytes_per_s")
    peak = next((r["dram_peak_bytes_per_s"] for r in facts.launches if r["dram_peak_bytes_per_s"]), None)
    l2_peak = next((r["l2_peak_bytes_per_s"] for r in facts.launches if r["l2_peak_bytes_per_s"]), None)

    def crossed(*columns: str) -> dict[str, float]:
        found = {r.config.implementation: [v for c in columns if (v := r.total(c)) is not None] for r in runs}
        return {name: sum(values) for name, values in found.items() if len(values) == len(columns)}

    return [
        Level("registers", sms and sms * REGISTER_BYTES_PER_SM, None, "", {},
              "no counter gives the bytes of the register file, and its bandwidth is not published"),
        Level("shared memory", sms and shared and sms * shared, cycles and SHARED_BYTES_PER_CYCLE * cycles,
              "128 B a cycle and SM × SMs × clock" if cycles else "", {},
              "" if shared else f"the shared memory of compute capability {cc} is not in the table"),
        Level("L2", facts.l2_size_bytes, l2_peak, COUNTERS if l2_peak else "",
              crossed("l2_to_sm_bytes", "sm_to_l2_bytes"), "" if l2_peak else "the L2 peak was not collected"),
        Level("HBM", facts.gpu.get("memory_bytes"), ceiling["value"] if ceiling else peak,
              MEASURED if ceiling else COUNTERS if peak else "", crossed("dram_read_bytes", "dram_write_bytes"),
              "" if ceiling or peak else "the DRAM peak was not collected and no copy was measured"),
    ]
