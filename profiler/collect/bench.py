"""Timings without a profiler, as plain rows with TFLOP/s and the ratio to a reference peer and to the best one."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from profiler.bundle import Bundle
from profiler.collect import gpu, join, lock, pace, worker
from profiler.collect.passes import QUIET_S, Reporter, time_all
from profiler.spec import AttentionShape, Mask, RunConfig
from profiler.table import records

REFERENCE = "sdpa_flash"
OURS = ("flash2", "hopper")
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
        known = pace.recall(gpu.identity(), "evidence") if device == "cuda" else {}
        reporter = Reporter(progress, len(configs), counters=False, known=known or pace.TYPICAL_TIMING,
                            source="an earlier run on this GPU" if known else pace.TYPICAL_SOURCE)
        reporter.begin()
        times = time_all(configs, Path(name), device=device, seed=seed, quiet_s=quiet_s, reporter=reporter)
    environment = worker.of(times, "environment")
    return _result(
        join.timing_table(configs, times),
        [record["entry"] for record in worker.of(times, "ceiling")],
        {k: v for k, v in (environment[-1] if environment else {}).items() if k != "record"},
    )


def of_bundle(made: Bundle) -> dict[str, Any]:
    """The same of a bundle's timings; "environment" is its profile."""
    environment = {name: value for name, value in made.profile.items() if name not in ("ceilings", "notes")}
    return _result(made.timings, made.profile.get("ceilings", []), environment)


def _result(timings: pd.DataFrame, ceilings: list[Any], environment: dict[str, Any]) -> dict[str, Any]:
    rows = records(timings)
    reference = {_shape_key(row): row["median_ns"] for row in rows if row["implementation"] == REFERENCE}
    for row in rows:
        median, base = row["median_ns"], reference.get(_shape_key(row))
        shape = AttentionShape(*(row[name] for name in ("batch", "heads", "nq", "nk", "head_dim", "kv_heads", "dtype",
                                                        "mask")))
        row["tflops_per_s"] = flops(shape, row["direction"]) / median / 1e3 if median else None
        row["speedup_over_" + REFERENCE] = base / median if base and median else None
    return {"rows": rows, "against_best": against_best(rows), "ratios": ratios(rows), "ceilings": ceilings,
            "environment": environment, "convention": CONVENTION}


def _shape_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in SHAPE)


def spread(row: Mapping[str, Any]) -> float | None:
    """From the 20th to the 80th percentile, in per cent of the median."""
    low, high, median = row["p20_ns"], row["p80_ns"], row["median_ns"]
    return None if not median or low is None or high is None else 100 * (high - low) / median


def against_best(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each of OURS on each shape against the fastest of the others there: the ratio of medians, above 1 where ours is
    faster, and where it lies if each takes any time between its 20th and 80th percentile ("least", "most")."""
    timed = [row for row in rows if row["median_ns"] and row["p20_ns"] and row["p80_ns"]]
    best: dict[Any, Mapping[str, Any]] = {}
    for row in timed:
        key = _shape_key(row)
        if row["implementation"] not in OURS and (key not in best or row["median_ns"] < best[key]["median_ns"]):
            best[key] = row
    found = []
    for row in timed:
        peer = best.get(_shape_key(row))
        if row["implementation"] in OURS and peer:
            found.append({
                **{name: row[name] for name in SHAPE}, "implementation": row["implementation"],
                "parameters": row.get("parameters"), "peer": peer["implementation"],
                "ratio": peer["median_ns"] / row["median_ns"],
                "least": peer["p20_ns"] / row["p80_ns"], "most": peer["p80_ns"] / row["p20_ns"],
            })
    return found


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How much faster each of OURS is than each other implementation, over the shapes that both were timed on: the
    geometric mean of their times over ours, the least and the most."""
    found = []
    for ours in OURS:
        mine = {_shape_key(row): row["median_ns"] for row in rows if _name(row) == ours and row["median_ns"]}
        for name in dict.fromkeys(row["implementation"] for row in rows if row["implementation"] not in OURS):
            some = [row["median_ns"] / mine[_shape_key(row)] for row in rows
                    if row["implementation"] == name and row["median_ns"] and _shape_key(row) in mine]
            if some:
                found.append({"implementation": name, "over": ours, "shapes": len(some),
                              "geometric_mean": statistics.geometric_mean(some), "least": min(some), "most": max(some)})
    return found


def _shape_words(row: Mapping[str, Any]) -> str:
    n = f"N{row['nq']}" if row["nq"] == row["nk"] else f"Nq{row['nq']} Nk{row['nk']}"
    backward = " backward" if row["direction"] == "backward" else ""
    return f"B{row['batch']} H{row['heads']} {n} D{row['head_dim']} {row['dtype']} {row['mask']}{backward}"


def _name(row: Mapping[str, Any]) -> str:
    """The implementation, with what the suite asks of it where it runs twice on a shape."""
    fixed = json.loads(row.get("parameters") or "{}").get("deterministic")
    return row["implementation"] + (" fixed order" if fixed else "")


def text(result: dict[str, Any]) -> str:
    """The rows as a table for a terminal, what could not be timed with its reason, then ratios and ceilings."""

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    wide = max((len(_shape_words(row)) for row in result["rows"]), default=0)
    lines = [
        f"{'shape':<{wide}} {'implementation':<18} {'µs':>10} {'± %':>6} {'warm':>10} {'TFLOP/s':>8} "
        f"{'× ' + REFERENCE:>12} {'peak MB':>9} {'error':>9} {'eager':>9} {'MHz':>5} {'W':>4} {'°C':>3}  throttled"
    ]
    missing: dict[str, None] = {}
    for row in result["rows"]:
        head = f"{_shape_words(row):<{wide}} {_name(row):<18} "
        if row["status"].startswith("missing: "):
            missing[row["status"]] = None
            continue
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
    lines += list(missing)
    lines += [
        f"{_shape_words(e):<{wide}} {_name(e):<18} {e['ratio']:.3f}× as fast as the best peer, {e['peer']} "
        f"({e['least']:.3f} to {e['most']:.3f} from percentile 20 to 80)"
        for e in result["against_best"]
    ]
    lines += [
        f"{e['over']} is {e['geometric_mean']:.2f}× as fast as {e['implementation']} "
        f"({e['least']:.2f} to {e['most']:.2f} over {e['shapes']} shapes)"
        for e in result["ratios"]
    ]
    lines += [f"{e['quantity']}: {e['value']:.4g} {e['unit']} ({e['how']})" for e in result["ceilings"]]
    return "\n".join([*lines, result["convention"]])
