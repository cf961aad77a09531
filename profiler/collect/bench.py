"""Timings without a profiler, as plain rows with TFLOP/s and the ratio to a reference peer and to the best one."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from profiler.bundle import Bundle
from profiler.collect import gpu, join, lock, pace, worker
from profiler.collect.passes import QUIET_S, Reporter, time_all
from profiler.spec import AttentionShape, Mask, RunConfig
from profiler.table import records

REFERENCE = "sdpa_flash"
OURS = ("flash2", "hopper", "flash_varlen")
# Called on packed sequences -> what is called on a batch of one length: the first that was timed.
PACKED = {"flash_varlen": ("hopper", "flash2"), "fa3_varlen": ("fa3",), "fa4_varlen": ("fa4",)}
SHAPE = ("direction", "dtype", "batch", "heads", "kv_heads", "nq", "nk", "head_dim", "mask")
CONVENTION = (
    "TFLOP/s count 4·B·H·Nq·Nk·D a forward and 10·B·H·Nq·Nk·D a backward, half of it when causal with Nq = Nk; "
    "windows and packed sequences count the pairs of a query and a key that it sees; "
    "the time is the median with a cold L2 cache, ± the span from the 20th to the 80th percentile in per cent of it."
)


def flops(config: RunConfig) -> int:
    """FLOPs of one call by the convention of the FlashAttention papers: a causal square counts half. Windows and packed
    sequences of several lengths have none, and count the pairs that are seen."""
    s, mask = config.shape, Mask.parse(config.shape.mask)
    if mask not in (Mask(), Mask(-1, 0)) or config.lengths != ((s.nq, s.nk),) * s.batch:
        return visible_flops(config)
    whole = _a_pair(config) * s.batch * s.nq * s.nk
    return whole // 2 if mask == Mask(-1, 0) and s.nq == s.nk else whole


def visible_flops(config: RunConfig) -> int:
    """FLOPs of the pairs of a query and a key that it sees, whatever the mask."""
    return _a_pair(config) * sum(_pairs(Mask.parse(config.shape.mask), *each) for each in config.lengths)


def _a_pair(config: RunConfig) -> int:
    """FLOPs of one pair, over all heads."""
    return (4 if config.direction == "forward" else 10) * config.shape.heads * config.shape.head_dim


@lru_cache
def _pairs(mask: Mask, nq: int, nk: int) -> int:
    return mask.pairs(nq, nk)


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
        row["tflops_per_s"] = flops(_config(row)) / median / 1e3 if median else None
        row["speedup_over_" + REFERENCE] = base / median if base and median else None
    return {"rows": rows, "against_best": against_best(rows), "against_plain": against_plain(rows),
            "ratios": ratios(rows), "ceilings": ceilings, "environment": environment, "convention": CONVENTION}


def _config(row: Mapping[str, Any]) -> RunConfig:
    shape = AttentionShape(**{name: row[name] for name in SHAPE if name != "direction"})
    return RunConfig(row["implementation"], shape, row["direction"], json.loads(row.get("parameters") or "{}"))


def _shape_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is compared on: packed sequences with packed ones of the same lengths."""
    given = json.loads(row.get("parameters") or "{}")
    lengths = [str(given.get(name)) for name in ("q_lengths", "k_lengths")]
    return (*(row[name] for name in SHAPE), row["implementation"] in PACKED, *lengths)


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


def against_plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each window, call with grouped heads and packed call against plain ones (`_plain`): the ratio of FLOP/s, FLOPs
    being those of the pairs seen, and where it lies if each takes any time between its 20th and 80th percentile."""
    timed = [(row, _config(row)) for row in rows if row["median_ns"] and row["p20_ns"] and row["p80_ns"]]
    found = []
    for row, config in timed:
        for other, partner in _plain(config, timed):
            work = visible_flops(config) / visible_flops(partner)
            found.append({
                **{name: row[name] for name in SHAPE}, "implementation": row["implementation"],
                "parameters": row.get("parameters"), "plain": partner.implementation, "plain_n": partner.shape.nq,
                "ratio": work * other["median_ns"] / row["median_ns"],
                "least": work * other["p20_ns"] / row["p80_ns"], "most": work * other["p80_ns"] / row["p20_ns"],
            })
    return found


def _plain(config: RunConfig, timed: Sequence[tuple[Mapping[str, Any], RunConfig]]
           ) -> list[tuple[Mapping[str, Any], RunConfig]]:
    """The plain calls that the cost of ``config`` is told by, none of one that is plain itself: of the same
    implementation, tokens, heads and head size, causal if it is; of its own length, or of every one where none is."""
    if config.shape.nq != config.shape.nk or (config.plain and config.implementation not in PACKED):
        return []
    fastest: dict[int, tuple[Mapping[str, Any], RunConfig]] = {}
    for row, other in timed:
        mine = other.implementation in PACKED.get(config.implementation, (config.implementation,))
        if mine and other.plain and other.family == config.family and _causal(other) == _causal(config):
            n = other.shape.nq
            fastest[n] = min(fastest.get(n, (row, other)), (row, other), key=lambda one: one[0]["median_ns"])
    own = {nq for nq, _ in config.lengths}
    return [fastest[n] for n in (own if len(own) == 1 and own <= fastest.keys() else sorted(fastest))]


def _causal(config: RunConfig) -> bool:
    return Mask.parse(config.shape.mask).right == 0


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
    lengths = [nq for nq, _ in _config(row).lengths]
    if row["implementation"] in PACKED and len(set(lengths)) > 1:
        n = f"N{min(lengths)} to {max(lengths)}"
    h = f"H{row['heads']}" if row["heads"] == row["kv_heads"] else f"H{row['heads']}/{row['kv_heads']}"
    backward = " backward" if row["direction"] == "backward" else ""
    return f"B{row['batch']} {h} {n} D{row['head_dim']} {row['dtype']} {row['mask']}{backward}"


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
        f"{_shape_words(e):<{wide}} {_name(e):<18} {e['ratio']:.3f}× the FLOP/s of plain {e['plain']} at "
        f"N {e['plain_n']} ({e['least']:.3f} to {e['most']:.3f} from percentile 20 to 80)"
        for e in result["against_plain"]
    ]
    lines += [
        f"{e['over']} is {e['geometric_mean']:.2f}× as fast as {e['implementation']} "
        f"({e['least']:.2f} to {e['most']:.2f} over {e['shapes']} shapes)"
        for e in result["ratios"]
    ]
    lines += [f"{e['quantity']}: {e['value']:.4g} {e['unit']} ({e['how']})" for e in result["ceilings"]]
    return "\n".join([*lines, result["convention"]])
