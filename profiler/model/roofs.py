"""Roofs of a GPU and points under them. Each roof says what it is and where it comes from; tensor roofs are dense.

Sources: "report counters" (peak per cycle × the clock that was measured), "measured ceiling" (a copy or a matmul on
this GPU), "data sheet" (peak at boost).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.spec import DeviceSpec

SPECIAL_OPS_PER_CYCLE = 16  # exponentials an SM evaluates a cycle, CC 7.0 … 9.0 (CUDA programming guide)
XBAR_BYTES_PER_CYCLE = 64  # bytes an SM takes from L2 a cycle, compute capability 7.0 … 9.0

COUNTERS, MEASURED, DATA_SHEET = "report counters", "measured ceiling", "data sheet"


@dataclass(frozen=True, slots=True)
class Roof:
    """name: "dram", "l2", "l2_to_sm", "tensor" or "special"; value in ``unit``; source and how in words."""

    name: str
    value: float
    unit: str
    source: str
    how: str

    @property
    def label(self) -> str:
        return f"{ROOF_NAMES[self.name]} ({self.source})"


ROOF_NAMES = {"dram": "HBM", "l2": "L2", "l2_to_sm": "L2 → SM", "tensor": "Tensor Cores, dense",
              "special": "special functions"}


@dataclass(frozen=True, slots=True)
class Point:
    """A point under the roofs: FLOP per byte, FLOP/s, and the sums they come from."""

    flops: float
    bytes: float
    ns: float

    @property
    def intensity(self) -> float | None:
        return self.flops / self.bytes if self.bytes else None

    @property
    def flops_per_s(self) -> float | None:
        return self.flops / self.ns * 1e9 if self.ns else None


Amounts = Iterable[float] | float


def roofline_point(flops: Amounts, moved: Amounts, ns: Amounts) -> Point:
    """One point of one or several kernels: ΣFLOP over Σbytes and over Σtime, never a mean of ratios."""
    def total(value: Amounts) -> float:
        return float(value) if isinstance(value, (int, float)) else float(sum(value))

    return Point(total(flops), total(moved), total(ns))


def special_function_roof(head_dim: int, sm_count: float, sm_clock_hz: float) -> float:
    """FLOP/s that the special-function units allow in attention: 4·D·(16·SMs·clock).

    Each visible pair costs one exponential and 4·D FLOPs of matmul (2·D for the score, 2·D for the value).
    """
    return 4 * head_dim * SPECIAL_OPS_PER_CYCLE * sm_count * sm_clock_hz


def ridge(flops_roof: Roof, bytes_roof: Roof) -> float:
    """FLOP per byte at which the two roofs meet."""
    return flops_roof.value / bytes_roof.value


def attainable(intensity: float, flops_roof: Roof, bytes_roof: Roof) -> float:
    """FLOP/s under both roofs at an intensity."""
    return min(flops_roof.value, intensity * bytes_roof.value)


def roofs(*, counters: Mapping[str, Any] | None = None, ceilings: Sequence[Mapping[str, Any]] = (),
          device: DeviceSpec | None = None, dtype: str | None = None, head_dim: int | None = None) -> list[Roof]:
    """All roofs that the given facts allow, best source first within a name.

    counters: one row of the launches table (dram_peak_bytes_per_s, l2_peak_bytes_per_s, tensor_peak_flops_per_s with
    tensor_dtype, sm_count, sm_clock_hz); ceilings: profile.json's list; device: a data sheet or other known figures.
    dtype: operand type of the tensor roof; head_dim: with it the special-function roof of attention is added.
    """
    row = {k: v for k, v in (counters or {}).items() if v is not None and v == v}
    out: list[Roof] = []

    def add(name: str, value: float | None, unit: str, source: str, how: str) -> None:
        if value:
            out.append(Roof(name, float(value), unit, source, how))

    at = "peak a cycle × the clock during the launch"
    add("dram", row.get("dram_peak_bytes_per_s"), "B/s", COUNTERS, at)
    add("l2", row.get("l2_peak_bytes_per_s"), "B/s", COUNTERS, at)
    if dtype is None or row.get("tensor_dtype") == dtype:
        add("tensor", row.get("tensor_peak_flops_per_s"), "FLOP/s", COUNTERS,
            f"dense peak a cycle × clock, {row.get('tensor_dtype')}")
    names = {"dram_copy_bytes_per_s": ("dram", "B/s"), "dram_read_bytes_per_s": ("dram", "B/s"),
             f"matmul_{dtype}_flops_per_s": ("tensor", "FLOP/s")}
    for c in ceilings:
        if c.get("quantity") in names:
            name, unit = names[c["quantity"]]
            add(name, c.get("value"), unit, MEASURED, str(c.get("how", "")))
    if device:
        source = device.source or DATA_SHEET
        add("dram", device.dram_bytes_per_s, "B/s", source, device.name)
        add("l2", device.l2_bytes_per_s, "B/s", source, device.name)
        add("tensor", device.tensor_flops_per_s, "FLOP/s", source, f"{device.name}, dense")
    clocks = [(row.get("sm_count"), row.get("sm_clock_hz"), COUNTERS)]
    if device:
        clocks.append((device.sm_count, device.sm_clock_hz, device.source or DATA_SHEET))
    for sms, clock, source in clocks:
        if sms and clock:
            add("l2_to_sm", XBAR_BYTES_PER_CYCLE * sms * clock, "B/s", source, "64 B a cycle and SM × SMs × clock")
            if head_dim:
                add("special", special_function_roof(head_dim, sms, clock), "FLOP/s", source,
                    f"4·D·16·SMs·clock: one exponential for every 4·{head_dim} FLOPs")
    return out


def pick(all_roofs: Sequence[Roof], name: str, source: str | None = None) -> Roof | None:
    """The first roof of a name, of a source when given."""
    return next((r for r in all_roofs if r.name == name and source in (None, r.source)), None)
