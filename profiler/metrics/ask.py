"""What to ask ncu for: the metric list of a purpose, and the command that would collect what a file lacks."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from profiler.metrics import rules, tensor
from profiler.metrics.reader import applies, cc_number

TENSOR_COLUMNS = ("tensor_flops", "tensor_ops", "tensor_dtype", "tensor_peak_flops_per_s")
ROOFLINE = ("duration_ns", "dram_read_bytes", "dram_write_bytes", "dram_bytes_per_second", "dram_peak_bytes_per_s",
            "l2_to_xbar_bytes", "l2_peak_bytes_per_s", "tensor_flops", "tensor_peak_flops_per_s", "fp32_flops",
            "fp16_flops", "fp64_flops", "special_ops", "tensor_pipe_pct", "sm_clock_hz")
OCCUPANCY = ("duration_ns", "achieved_occupancy_pct", "theoretical_occupancy_pct", "occupancy_limiter",
             "registers_per_thread", "shared_bytes_per_block", "waves_per_sm", "spill_requests", "sm_clock_hz")
FULL = (*dict.fromkeys((*rules.COLUMNS, *rules.CORE_FLOPS, *TENSOR_COLUMNS, "occupancy_limiter")),)
# fp16 and fp64 on the CUDA cores are left out: attention has none, and each costs a replay of patched code.
EVIDENCE = tuple(name for name in FULL if name not in ("fp16_flops", "fp64_flops"))
PURPOSES = {"full": FULL, "evidence": EVIDENCE, "roofline": ROOFLINE, "occupancy": OCCUPANCY}


@functools.lru_cache(maxsize=1024)
def names_for(column: str, cc: str | None) -> tuple[str, ...]:
    """Metric names to ask ncu for so that ``column`` has a value on ``cc``; empty when the device cannot give it,
    or when every report holds it without asking (device attributes)."""
    number = cc_number(cc)
    if unavailable(column, cc):
        return ()
    old = number is not None and number < rules.PASCAL + 1  # its ncu knows none of the later names
    if column in rules.CORE_FLOPS and old:
        return ()
    if column in rules.CORE_FLOPS:
        letter, _ = rules.CORE_FLOPS[column]
        return tuple(rules.SASS_OPS.format(letter + op) + ".sum" for op in ("add", "mul", "fma"))
    if column == "occupancy_limiter":
        return tuple(names[0] for resource, names in rules.LIMITERS.items()
                     if resource != "barriers" or (number or 0) >= rules.BARRIERS_SINCE)
    if column in TENSOR_COLUMNS:
        return _tensor_names(column, number)
    asking = [rule for rule in rules.COLUMNS.get(column, ()) if rule.ask and applies(rule, number)]
    if old:
        asking = [rule for rule in asking if rule.since == rules.PASCAL or rule.names[0].startswith("launch__")]
    if number is None:  # the name that most architectures have
        asking.sort(key=lambda rule: rule.since)
    return asking[0].names if asking else ()


def _tensor_names(column: str, cc: float | None) -> tuple[str, ...]:
    """Counters of the operand types; for the roof their dense peaks. On an unknown device nothing: a wrong name stops
    ncu."""
    if cc is None:
        return ()
    chosen = [rule for rule in tensor.TENSOR if rule.ask and applies(rule, cc)]
    if column == "tensor_peak_flops_per_s":
        peaks = dict.fromkeys(name for rule in chosen for name, _ in rule.peaks)
        return (*(f"{tensor.TENSOR_PREFIX}{name}.sum.peak_sustained" for name in peaks),
                "sm__cycles_elapsed.avg.per_second")
    wanted = {"tensor_flops": (False,), "tensor_ops": (True,)}.get(column, (False, True))
    return tuple(f"{tensor.TENSOR_PREFIX}{part}.sum" for rule in chosen if rule.integer in wanted
                 for part in rule.parts)


def unavailable(column: str, cc: str | None) -> str:
    """Why a device of this compute capability cannot give ``column``; empty when it can."""
    number = cc_number(cc)
    if column in rules.DRAM_COLUMNS and cc in rules.NO_DRAM:
        chip = rules.NO_DRAM[cc]
        return f"{chip} (compute capability {cc}) has no device-memory counters: its memory is the system's."
    if number is not None and number < rules.NO_TENSOR_UNTIL and column in (*TENSOR_COLUMNS, "tensor_pipe_pct"):
        return f"Compute capability {cc} has no tensor cores."
    return ""


def collect_list(purpose: str = "evidence", cc: str | None = None) -> tuple[str, ...]:
    """Metric names for ``ncu --metrics``. purpose: "full" (all that ``launches`` holds), "evidence" (all of it
    that attention needs), "roofline" or "occupancy"; cc: compute capability such as "9.0". Without one, the names that
    most architectures have, and no tensor counters, which differ on each."""
    names = dict.fromkeys(name for column in PURPOSES[purpose] for name in names_for(column, cc))
    return tuple(names)


def stall_names(cc: str | None) -> tuple[str, ...]:
    """Names of the warp stall reasons on ``cc``, for ``ncu --metrics``; none where the device is not known."""
    number = cc_number(cc)
    if number is None or number < rules.NO_TENSOR_UNTIL:
        return ()
    return tuple(rules.STALL.format(reason) for reason in rules.STALL_REASONS
                 if reason != "gmma" or number >= rules.GMMA_SINCE)


def missing_flag(columns: Iterable[str], cc: str | None) -> str:
    """The ncu option that collects these columns; empty when there is nothing to ask for."""
    names = dict.fromkeys(name for column in columns for name in names_for(column, cc))
    return f"--metrics {','.join(names)}" if names else ""


def advice(bundle: Any, columns: Iterable[str]) -> str:
    """The ncu command that would collect what ``columns`` of ``bundle`` lack; empty when nothing is missing or it
    cannot be had."""
    launches = bundle.launches
    lacking = [c for c in columns if c in launches.columns and (len(launches) == 0 or launches[c].isna().any())]
    ccs = [cc for cc in launches["cc"].dropna().unique()] if len(launches) else []
    flag = missing_flag(lacking, ccs[0] if len(ccs) == 1 else None)
    return f"ncu {flag} --cache-control all --clock-control none -o report YOUR_PROGRAM" if flag else ""
