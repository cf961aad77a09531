"""The roofs of every GPU in a bundle: from its counters, its measured ceilings, its data sheet, or entered by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from profiler import devices
from profiler.bundle import Bundle
from profiler.figures import units
from profiler.metrics.beside import LINE, accumulators, l1_bytes
from profiler.model import Roof, roofs
from profiler.model.roofs import ARCHITECTURE, COUNTERS, DATA_SHEET, ENTERED, MEASURED, core_roofs

INTEGER = ("int8", "int4", "int1")
ENTRIES = {"dram": ("GB/s", 1e9, "B/s"), "tensor": ("TFLOP/s", 1e12, "FLOP/s")}  # what a visitor may enter, and in what
OWN = (ENTERED, COUNTERS, MEASURED, ARCHITECTURE)  # anything else is a data sheet
# Compute capabilities of chips whose device memory is no HBM.
OTHER_MEMORY = {"GDDR": ("6.1", "7.5", "8.6", "8.9", "12.0"), "LPDDR": ("7.2", "8.7", "10.1", "11.0", "12.1")}
STEADY = 0.9  # of the longest launch's clock: launches below it spent their time starting up, not working


def device_roofs(bundle: Bundle, entered: Mapping[str, float] | None = None) -> dict[str, list[Roof]]:
    """GPU name -> its roofs, best source first within a name; "" where the bundle has one GPU.

    Counters and clocks are those of the longest launch that has them: in a launch of a few µs the counted cycles cover
    only a part of its time, and peaks from them lie far too low. Tensor roofs are of the operand types that the
    launches used. entered: roofs that someone typed, in base units by name; they stand first.
    """
    return {name: typed(entered or {}) + own for name, own in bundle.once(_own_roofs).items()}


def _own_roofs(bundle: Bundle) -> dict[str, list[Roof]]:
    """What the bundle itself says of its GPUs' roofs: the same on every figure, so found once."""
    extra = bundle.launches.assign(l1=l1_bytes(bundle), accumulator=accumulators(bundle))
    found = {}
    for device, rows in extra.groupby("device", dropna=False, sort=False):
        name = "" if pd.isna(device) else str(device)
        found[name] = _of_one(name, rows, bundle.profile)
    return {"": next(iter(found.values()))} if len(found) == 1 else found


def typed(entered: Mapping[str, float]) -> list[Roof]:
    """Roofs that someone typed, by name in base units."""
    return [Roof(name, value, ENTRIES[name][2], ENTERED, "a figure that was typed on this page")
            for name, value in entered.items() if value]


def best(group: list[Roof]) -> list[Roof]:
    """One roof a name and operand type, the best sourced."""
    def kind(roof: Roof) -> tuple[str, str]:
        return roof.name, roof.detail.removesuffix(" matmul") if roof.flat else ""

    return list({kind(roof): roof for roof in reversed(group)}.values())[::-1]


def _of_one(name: str, rows: pd.DataFrame, profile: Mapping[str, Any]) -> list[Roof]:
    row = longest(rows)
    sheet = devices.find(name, row["cc"], row["sm_count"])
    note = clock_note(rows)
    out: list[Roof] = []
    for dtype, accumulator, mine in _types(rows):
        peaks = longest(mine)
        spec = sheet.spec(dtype or "fp16") if sheet else None
        if spec and sheet:
            spec = replace(spec, tensor_flops_per_s=sheet.peak(dtype, accumulator) if dtype else None)
        out += roofs(counters={**row, "tensor_dtype": dtype,
                               "tensor_peak_flops_per_s": peaks["tensor_peak_flops_per_s"] if dtype else None},
                     ceilings=profile.get("ceilings", ()), dtype=dtype or None, device=spec)
        out += _at_clock(sheet, row["sm_clock_hz"], "tensor", dtype, accumulator)
    for dtype in [t for t in INTEGER if t in set(rows["tensor_dtype"].dropna())]:
        out += _at_clock(sheet, row["sm_clock_hz"], "integer", dtype, "int32")
        if sheet and sheet.peak(dtype, "int32"):
            out.append(Roof("integer", float(sheet.peak(dtype, "int32") or 0), "op/s", DATA_SHEET,
                            f"{sheet.name}, dense", dtype))
    sms, clock = row["sm_count"], row["sm_clock_hz"]
    if rows["l1"].notna().any() and sms and clock:
        out.append(Roof("l1", LINE * sms * clock, "B/s", ARCHITECTURE, f"{LINE} B a cycle and SM × {sms:.0f} SMs × "
                                                                       f"{units.clock(clock)}"))
    out += core_roofs(row["cc"], sms, clock)
    kind = next((word for word, ccs in OTHER_MEMORY.items() if str(row["cc"]) in ccs), "")
    out = [replace(r, detail=kind) if r.name == "dram" and not r.detail else r for r in out]
    unique = {(r.name, r.source, r.detail, r.value): r for r in out}
    order = sorted(unique.values(), key=lambda r: r.source not in OWN)
    return [replace(r, how=f"{r.how}; {note}") if note and r.source in (COUNTERS, ARCHITECTURE) else r for r in order]


def longest(rows: pd.DataFrame) -> dict[str, Any]:
    """For each column the value of the longest launch that has one; None where none has."""
    ranked = rows.sort_values("duration_ns", ascending=False, na_position="last")
    return {name: next(iter(ranked[name].dropna()), None) for name in ranked.columns}


def clock_note(rows: pd.DataFrame) -> str:
    """What to know of the clocks behind the roofs, where launches disagree; "" where they do not."""
    known = rows.dropna(subset=["duration_ns", "dram_peak_bytes_per_s"]).sort_values("duration_ns", kind="stable")
    if len(known) < 2:
        return ""
    long = known.iloc[-1]
    short = known.loc[known["dram_peak_bytes_per_s"].astype(float).idxmin()]
    share = short["dram_peak_bytes_per_s"] / long["dram_peak_bytes_per_s"]
    if share > STEADY:
        return ""
    return (f"from the longest launch ({units.duration(long['duration_ns'])}): in one of "
            f"{units.duration(short['duration_ns'])} the memory clock counted only {units.percent(100 * share)} as "
            f"many cycles a second, which would put the HBM roof at {units.bandwidth(short['dram_peak_bytes_per_s'])}")


def _types(rows: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """(operand type, accumulator, its launches) for every type of tensor FLOPs; one nameless where there is none."""
    floating = rows[rows["tensor_dtype"].notna() & ~rows["tensor_dtype"].isin(INTEGER)]
    return [(str(dtype), str(accumulator), mine) for (dtype, accumulator), mine in
            floating.groupby(["tensor_dtype", "accumulator"], sort=False)] or [("", "fp32", rows)]


def _at_clock(sheet: devices.Device | None, clock: float | None, name: str, dtype: str, accumulator: str) -> list[Roof]:
    """The sheet's dense peak at the clock of the report, where it is a rate a cycle."""
    peak = sheet.peak_at(clock, dtype, accumulator) if sheet and clock and dtype else None
    if not peak or not sheet:
        return []
    unit = "op/s" if name == "integer" else "FLOP/s"
    return [Roof(name, peak, unit, ARCHITECTURE, f"{sheet.name}'s dense rate a cycle × {units.clock(clock)}", dtype)]
