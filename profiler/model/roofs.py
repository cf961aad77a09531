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
# Multiply-adds an SM's CUDA cores finish a cycle: (fp32, fp64) by compute capability (CUDA programming guide).
CORE_FMAS_PER_CYCLE: Mapping[str, tuple[int, int]] = {
    "6.0": (64, 32), "6.1": (128, 4), "7.0": (64, 32), "7.2": (64, 32), "7.5": (64, 2), "8.0": (64, 32),
    "8.6": (128, 2), "8.7": (128, 2), "8.9": (128, 2), "9.0": (128, 64), "10.0": (128, 64), "10.3": (128, 2),
    "12.0": (128, 2), "12.1": (128, 2),
}

COUNTERS, MEASURED, DATA_SHEET = "report counters", "measured ceiling", "data sheet"
ARCHITECTURE, ENTERED = "architecture at the report's clock", "entered by you"
FLAT = ("FLOP/s", "op/s")  # units of roofs that do not depend on the intensity


@dataclass(frozen=True, slots=True)
class Roof:
    """name: one of ROOF_NAMES; value in ``unit``; source and how in words.

    detail: what tells two roofs of one name and source apart: the operand type of a tensor roof, or which measurement.
    """

    name: str
    value: float
    unit: str
    source: str
    how: str
    detail: str = ""

    @property
    def label(self) -> str:
        return f"{ROOF_NAMES[self.name]} ({self.source})"

    @property
    def flat(self) -> bool:
        """Whether it limits work a second, whatever the intensity."""
        return self.unit in FLAT


ROOF_NAMES = {"dram": "HBM", "l2": "L2", "l1": "L1", "l2_to_sm": "L2 → SM", "tensor": "Tensor Cores, dense",
              "integer": "integer Tensor Cores, dense", "fp32": "fp32 CUDA cores", "fp64": "fp64 CUDA cores",
              "special": "special functions", "special_rate": "special-function rate"}


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


def core_roofs(cc: str | None, sm_count: float | None, sm_clock_hz: float | None, source: str = ARCHITECTURE,
               ) -> list[Roof]:
    """fp32 and fp64 roofs of the CUDA cores, 2·(multiply-adds a cycle and SM)·SMs·clock, and the rate of the
    special-function units in operations a second; none where the architecture, the SMs or the clock are not known.
    """
    rates = CORE_FMAS_PER_CYCLE.get(str(cc))
    if rates is None or not sm_count or not sm_clock_hz:
        return []
    special = SPECIAL_OPS_PER_CYCLE * sm_count * sm_clock_hz
    return [Roof("special_rate", special, "op/s", source, f"{SPECIAL_OPS_PER_CYCLE} a cycle and SM"),
            *_cores(rates, sm_count, sm_clock_hz, source)]


def _cores(rates: tuple[int, int], sm_count: float, sm_clock_hz: float, source: str) -> list[Roof]:
    return [Roof(name, 2 * rate * sm_count * sm_clock_hz, "FLOP/s", source,
                 f"2 × {rate} multiply-adds a cycle and SM × {sm_count:.0f} SMs × {sm_clock_hz / 1e9:.3g} GHz")
            for name, rate in zip(("fp32", "fp64"), rates)]


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

    def add(name: str, value: float | None, unit: str, source: str, how: str, detail: str = "") -> None:
        if value:
            out.append(Roof(name, float(value), unit, source, how, detail))

    at = "peak a cycle × the clock during the launch"
    add("dram", row.get("dram_peak_bytes_per_s"), "B/s", COUNTERS, at)
    add("l2", row.get("l2_peak_bytes_per_s"), "B/s", COUNTERS, at)
    if dtype is None or row.get("tensor_dtype") == dtype:
        add("tensor", row.get("tensor_peak_flops_per_s"), "FLOP/s", COUNTERS,
            f"dense peak a cycle × clock, {row.get('tensor_dtype')}", str(row.get("tensor_dtype") or ""))
    names = {"dram_copy_bytes_per_s": ("dram", "B/s", "copy"), "dram_read_bytes_per_s": ("dram", "B/s", "read"),
             "dram_write_bytes_per_s": ("dram", "B/s", "write"), "l2_read_bytes_per_s": ("l2_to_sm", "B/s", "read"),
             "exponentials_per_s": ("special_rate", "op/s", "exp2"),
             f"matmul_{dtype}_flops_per_s": ("tensor", "FLOP/s", f"{dtype} matmul")}
    for c in ceilings:
        if c.get("quantity") in names:
            name, unit, detail = names[c["quantity"]]
            add(name, c.get("value"), unit, MEASURED, str(c.get("how", "")), detail)
    if device:
        source = device.source or DATA_SHEET
        add("dram", device.dram_bytes_per_s, "B/s", source, device.name)
        add("l2", device.l2_bytes_per_s, "B/s", source, device.name)
        add("tensor", device.tensor_flops_per_s, "FLOP/s", source, f"{device.name}, dense", dtype or "")
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


def pick(all_roofs: Sequence[Roof], name: str, source: str | None = None, detail: str | None = None) -> Roof | None:
    """The first roof of a name; of a source and a detail when given."""
    return next((r for r in all_roofs
                 if r.name == name and source in (None, r.source) and detail in (None, r.detail)), None)
