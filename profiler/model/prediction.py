"""What a prediction is: bytes by tensor at each level, operations, buffers, and the time that each roof asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from profiler.model.counts import Blocks
from profiler.model.roofs import SPECIAL_OPS_PER_CYCLE, XBAR_BYTES_PER_CYCLE
from profiler.spec import DeviceSpec, RunConfig

Bytes = Mapping[str, int]  # tensor name → bytes
LEVELS = ("dram", "l2_to_sm", "sm_to_l2")
# Copies of a line that the L2 may hold. Since the A100 it has two partitions, each of which caches what the SMs next to
# it read (NVIDIA A100 white paper, 2020), so what all SMs read takes room twice. On H200s every fused forward with
# Q + K + V up to 25.2 MB (0.4 × L2) read them once, within 2.3%; at 50.3 MB (0.8 × L2) some read them 1.2 to 1.3 ×.
L2_COPIES = 2


WARP = 32
OPS_A_DIVISION = 3  # of 32-bit integers by a value known at run time: to float, reciprocal, back: all on the same units


def integer_divisions(programs: int, num_warps: int | None, divisors: int) -> int:
    """Special-function operations of index arithmetic: every thread divides by ``divisors`` run-time values; 0 where
    ``num_warps`` is not known. Quotient and remainder of one divisor share its reciprocal."""
    return programs * WARP * int(num_warps or 0) * OPS_A_DIVISION * divisors


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One stage (usually one launch).

    reads, writes: compulsory DRAM bytes by tensor: each tensor that the stage takes or gives crosses once.
    l2_to_sm, sm_to_l2: bytes by tensor across the crossbar; None where the tiles are not known.
    refetch: DRAM reads beyond ``reads`` at most, by tensor, where the reads exceed what L2 keeps for all SMs.
    rewrite: DRAM writes beyond ``writes`` at most, by tensor: results carried through memory between passes over keys.
    skipped: reads that the kernel may leave out, by tensor: elements of which the result does not depend.
    at_least: names of the quantities that are lower bounds ("l2_to_sm", "exponentials", "dram", ...).
    flops_visible: matmul FLOPs of the pairs that the mask leaves; flops_computed: of whole tiles, None where unknown.
    exponentials: of the softmax, masked pairs that are computed included; rescales: exponentials that correct the
    running maximum (α), lanes included; both None where the tiles are not known.
    overhead_ops: special-function operations outside the loop over blocks: index arithmetic and the division by the row
    sum (`integer_divisions`); 0 where the number of threads is not known.
    """

    stage: str
    reads: Bytes
    writes: Bytes
    l2_to_sm: Bytes | None = None
    sm_to_l2: Bytes | None = None
    refetch: Bytes = field(default_factory=dict)
    rewrite: Bytes = field(default_factory=dict)
    skipped: Bytes = field(default_factory=dict)
    at_least: tuple[str, ...] = ()
    flops_visible: int = 0
    flops_computed: int | None = 0
    exponentials: int | None = 0
    rescales: int | None = 0
    overhead_ops: int = 0
    blocks: Blocks | None = None
    heads: int = 1
    note: str = ""

    @property
    def dram_read_bytes(self) -> int:
        return sum(self.reads.values())

    @property
    def dram_written_bytes(self) -> int:
        """Bytes that the stage gives; how many of them the DRAM counter sees is ``dram_write_interval``."""
        return sum(self.writes.values())

    @property
    def special_ops(self) -> int | None:
        """Special-function operations: exponentials, rescales and what is outside the loop."""
        if self.exponentials is None:
            return None
        return self.exponentials + (self.rescales or 0) + self.overhead_ops

    def level_bytes(self, level: str) -> int | None:
        """Total bytes at "dram" (read and written), "l2_to_sm" or "sm_to_l2"; None where not predicted."""
        if level == "dram":
            return self.dram_read_bytes + self.dram_written_bytes
        split = {"l2_to_sm": self.l2_to_sm, "sm_to_l2": self.sm_to_l2}[level]
        return None if split is None else sum(split.values())

    def dram_write_interval(self, l2_size_bytes: int | None, flushed: bool = True) -> tuple[int, int] | None:
        """What the DRAM write counter of this stage may show, [low, high] in bytes; None if the L2 size is not known.

        A write-back L2 may still hold up to its size of this stage's lines when the kernel ends: low is
        max(0, written − L2). Flushed before, nothing else is written: high is what was written. Not flushed, lines that
        earlier kernels left are evicted too: high grows by L2.
        """
        if l2_size_bytes is None:
            return None
        written = self.dram_written_bytes
        return max(0, written - l2_size_bytes), written + (0 if flushed else l2_size_bytes)

    def dram_read_interval(self, l2_size_bytes: int | None, flushed: bool = True) -> tuple[int, int] | None:
        """What the DRAM read counter may show, [low, high] in bytes; None if the L2 size is not known.

        Not flushed before, up to the L2's size was there already; ``skipped`` need not be read at all. Where ``reads``
        stay in L2 each byte comes once; else high adds ``refetch``.
        """
        if l2_size_bytes is None:
            return None
        low = self.dram_read_bytes - sum(self.skipped.values()) - (0 if flushed else l2_size_bytes)
        again = 0 if self.stays_in_l2(l2_size_bytes) else sum(self.refetch.values())
        return max(0, low), self.dram_read_bytes + again

    def stays_in_l2(self, l2_size_bytes: int) -> bool:
        """Whether all that the stage reads fits in L2 in as many copies as L2 may hold: nothing is then read twice."""
        return L2_COPIES * self.dram_read_bytes <= l2_size_bytes

    @property
    def work(self) -> dict[str, int | None]:
        """What each roof has to serve: bytes, FLOPs or operations; None where not predicted."""
        read = self.level_bytes("l2_to_sm")
        return {"dram": self.level_bytes("dram"), "l2": read, "l2_to_sm": read,
                "tensor": self.flops_computed or self.flops_visible, "special": self.special_ops}

    def bounds(self, device: DeviceSpec) -> dict[str, float]:
        """Nanoseconds that each roof of ``device`` asks for at least; roofs that are not known are absent."""
        return self.times(rates(device))

    def times(self, a_second: Mapping[str, float]) -> dict[str, float]:
        """The same from roof → work it does a second."""
        work = self.work
        return {name: done / rate * 1e9 for name, rate in a_second.items() if (done := work[name]) is not None}


def rates(device: DeviceSpec) -> dict[str, float]:
    """Roof → bytes, FLOPs or operations a second, those that ``device`` knows."""
    cycles = device.sm_count * device.sm_clock_hz if device.sm_count and device.sm_clock_hz else None
    known = {"dram": device.dram_bytes_per_s, "l2": device.l2_bytes_per_s,
             "l2_to_sm": cycles and XBAR_BYTES_PER_CYCLE * cycles, "tensor": device.tensor_flops_per_s,
             "special": cycles and SPECIAL_OPS_PER_CYCLE * cycles}
    return {name: rate for name, rate in known.items() if rate}


@dataclass(frozen=True, slots=True)
class Prediction:
    """The model's word on one configuration. ``compulsory_bytes`` is what any exact implementation must move."""

    config: RunConfig
    stages: tuple[StagePrediction, ...]
    compulsory: Bytes
    largest_buffer: tuple[str, int]
    peak_memory_bytes: int | None
    device: DeviceSpec | None = None
    l2_size_bytes: int | None = None
    notes: tuple[str, ...] = field(default=())

    def stage(self, name: str) -> StagePrediction | None:
        return next((s for s in self.stages if s.stage == name), None)

    @property
    def compulsory_bytes(self) -> int:
        return sum(self.compulsory.values())

    @property
    def dram_bytes(self) -> int:
        """All stages, read and written, at DRAM."""
        return sum(s.dram_read_bytes + s.dram_written_bytes for s in self.stages)

    @property
    def flops_visible(self) -> int:
        return sum(s.flops_visible for s in self.stages)

    @property
    def flops_computed(self) -> int | None:
        return _sum(s.flops_computed for s in self.stages)

    @property
    def special_ops(self) -> int | None:
        return _sum(s.special_ops for s in self.stages)

    def level_bytes(self, level: str) -> int | None:
        """Bytes of all stages at "dram", "l2_to_sm" or "sm_to_l2"; None where one stage is not predicted."""
        return _sum(s.level_bytes(level) for s in self.stages)

    def tensor_passes(self, tensor: str) -> int:
        """How often a whole N×N tensor crosses HBM: reads and writes of it over all stages."""
        moved = sum(s.reads.get(tensor, 0) + s.writes.get(tensor, 0) for s in self.stages)
        return round(moved / self.config.shape.matrix_bytes) if moved else 0

    def intensity(self, level: str = "dram", *, computed: bool = False) -> float | None:
        """FLOP per byte at a level: visible FLOPs, or computed ones when asked; None where not predicted."""
        moved = self.level_bytes(level)
        flops = self.flops_computed if computed else self.flops_visible
        return flops / moved if moved and flops is not None else None

    @property
    def bounds(self) -> dict[str, float]:
        """Roof → ns over all stages; empty without a device. A roof that misses one stage's bytes is absent."""
        if self.device is None or not self.stages:
            return {}
        each = [s.bounds(self.device) for s in self.stages]
        return {roof: sum(b[roof] for b in each) for roof in each[0] if all(roof in b for b in each)}

    @property
    def bound_ns(self) -> float | None:
        """The least time on this device: stages run one after another, each at its own binding roof."""
        each = [s.bounds(self.device) for s in self.stages] if self.device else []
        return sum(max(b.values()) for b in each) if each and all(each) else None

    @property
    def binding(self) -> str | None:
        """The roof that asks for most time."""
        bounds = self.bounds
        return max(bounds, key=lambda roof: bounds[roof]) if bounds else None

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, totals included; None where not predicted."""
        stages = []
        for s in self.stages:
            row = {k: v for k, v in asdict(s).items() if k != "blocks"}
            row["blocks_per_head"] = asdict(s.blocks) if s.blocks else None
            row["dram_write_interval_flushed"] = s.dram_write_interval(self.l2_size_bytes)
            row["dram_write_interval_not_flushed"] = s.dram_write_interval(self.l2_size_bytes, flushed=False)
            row["bounds_ns"] = s.bounds(self.device) if self.device else {}
            stages.append(row)
        return {
            "kind": "predicted", "config": self.config.to_json(), "config_id": self.config.config_id,
            "device": asdict(self.device) if self.device else None, "l2_size_bytes": self.l2_size_bytes,
            "compulsory_bytes": dict(self.compulsory), "compulsory_total_bytes": self.compulsory_bytes,
            "dram_bytes": self.dram_bytes, "l2_to_sm_bytes": self.level_bytes("l2_to_sm"),
            "sm_to_l2_bytes": self.level_bytes("sm_to_l2"), "flops_visible": self.flops_visible,
            "flops_computed": self.flops_computed, "special_ops": self.special_ops,
            "largest_buffer": {"name": self.largest_buffer[0], "bytes": self.largest_buffer[1]},
            "peak_memory_bytes": self.peak_memory_bytes,
            "intensity_flop_per_byte": {level: self.intensity(level) for level in LEVELS},
            "bounds_ns": self.bounds, "bound_ns": self.bound_ns, "binding": self.binding,
            "stages": stages, "notes": list(self.notes),
        }


def _sum(values: Any) -> int | None:
    values = list(values)
    return None if any(v is None for v in values) else sum(values)
