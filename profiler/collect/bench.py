"""Timings without a profiler, as plain rows with TFLOP/s and the ratio to a reference peer; no bundle."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from profiler.collect import gpu, join, lock, worker
from profiler.collect.passes import QUIET_S, Reporter, time_all
from profiler.spec import AttentionShape, Mask, RunConfig
from profiler.table import records

REFERENCE = "sdpa_flash"
OURS = "flash2"
SHAPE = ("direction", "dtype", "batch", "heads", "kv_heads", "nq", "nk", "head_dim", "mask")
CONVENTION = (
    "TFLOP/s count 4·B·H·Nq·Nk·D a forward and 10·B·H·Nq·Nk·D a backward, half of it when causal with Nq = Nk; "
    "the time is the median with a cold L2 cache, ± the span from the 20th to the 80th percentile in per cent of it."
)


def flops(shape: AttentionShape, direction: str = "forward") -> int:
    """FLOPs of one call by the convention of the FlashAttention papers: a causal square counts half."""
    products = 4 if direction == "forward" else 10
    whole = products * shape.batch * shape.heads * shape.nq * shape.nk * shape.head_dim
    if shape.nq != shape.nk:
        return whole
    return whole // 2 if Mask.parse(shape.mask) == Mask(-1, 0) else whole


def bench(
    configs: Sequence[RunConfig],
    *,
    quiet_s: float = QUIET_S,
    device: str = "cuda",
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> dict[str, Any]:
    """{"rows": timings rows with tflops_per_s and speedup, "ceilings", "environment", "convention"}."""
    configs = list({config.config_id: config for config in configs}.values())
    worker.check_callables(configs, device)
    alone = lock.measuring(gpu.identity()) if device == "cuda" else nullcontext()
    with tempfile.TemporaryDirectory(prefix="flashscope-") as name, alone:
        reporter = Reporter(progress, len(configs), counters=False)
        times = time_all(configs, Path(name), device=device, seed=seed, quiet_s=quiet_s, reporter=reporter)
    rows = records(join.timing_table(configs, times))
    reference = {_shape_key(row): row["median_ns"] for row in rows if row["implementation"] == REFERENCE}
    for row, config in zip(rows, configs):
        median, base = row["median_ns"], reference.get(_shape_key(row))
        row["tflops_per_s"] = flops(config.shape, config.direction) / median / 1e3 if median else None
        row["speedup_over_" + REFERENCE] = base / median if base and median else None
    environment = worker.of(times, "environment")
    return {
        "rows": rows,
        "ratios": ratios(rows),
        "ceilings": [record["entry"] for record in worker.of(times, "ceiling")],
        "environment": {k: v for k, v in (environment[-1] if environment else {}).items() if k != "record"},
        "convention": CONVENTION,
    }


def _shape_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in SHAPE)


def spread(row: Mapping[str, Any]) -> float | None:
    """From the 20th to the 80th percentile, in per cent of the median."""
    low, high, median = row["p20_ns"], row["p80_ns"], row["median_ns"]
    return None if not median or low is None or high is None else 100 * (high - low) / median


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How much faster OURS is than each other implementation, over the shapes that both were timed on: the geometric
    mean of their times over ours, the least and the most."""
    ours = {_shape_key(row): row["median_ns"] for row in rows if row["implementation"] == OURS and row["median_ns"]}
    found = []
    for name in dict.fromkeys(row["implementation"] for row in rows if row["implementation"] != OURS):
        some = [row["median_ns"] / ours[_shape_key(row)] for row in rows
                if row["implementation"] == name and row["median_ns"] and _shape_key(row) in ours]
        if some:
            found.append({"implementation": name, "over": OURS, "shapes": len(some),
                          "geometric_mean": statistics.geometric_mean(some), "least": min(some), "most": max(some)})
    return found


def text(result: dict[str, Any]) -> str:
    """The rows as a table for a terminal, what could not be timed with its reason, then ratios and ceilings."""

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    lines = [
        f"{'shape':<32} {'implementation':<14} {'µs':>10} {'± %':>6} {'warm':>10} {'TFLOP/s':>8} "
        f"{'× ' + REFERENCE:>12} {'peak MB':>9} {'error':>9} {'eager':>9} {'MHz':>5} {'W':>4} {'°C':>3}  throttled"
    ]
    for row in result["rows"]:
        n = f"N{row['nq']}" if row["nq"] == row["nk"] else f"Nq{row['nq']} Nk{row['nk']}"
        shape = f"B{row['batch']} H{row['heads']} {n} D{row['head_dim']} {row['dtype']} {row['mask']}"
        head = f"{shape:<32} {row['implementation']:<14} "
        if row["status"] != "ok":
            lines.append(head + row["status"])
            continue
        micro = [number(ns and ns / 1e3, ".1f") for ns in (row["median_ns"], row["warm_median_ns"])]
        peak, hertz = row["peak_memory_bytes"], row["sm_clock_hz"]
        lines.append(
            head + f"{micro[0]:>10} {number(spread(row), '.1f'):>6} {micro[1]:>10} "
            f"{number(row['tflops_per_s'], '.1f'):>8} {number(row['speedup_over_' + REFERENCE], '.2f'):>12} "
            f"{number(None if peak is None else peak / 1e6, '.1f'):>9} "
            f"{number(row['error_relative'], '.1e'):>9} {number(row['error_eager_relative'], '.1e'):>9} "
            f"{number(hertz and hertz / 1e6, '.0f'):>5} {number(row['power_w'], '.0f'):>4} "
            f"{number(row['temperature_c'], '.0f'):>3}  {row['throttle'] or '–'}"
        )
    lines += [
        f"{OURS} is {e['geometric_mean']:.2f}× as fast as {e['implementation']} "
        f"({e['least']:.2f} to {e['most']:.2f} over {e['shapes']} shapes)"
        for e in result["ratios"]
    ]
    lines += [f"{e['quantity']}: {e['value']:.4g} {e['unit']} ({e['how']})" for e in result["ceilings"]]
    return "\n".join([*lines, result["convention"]])
