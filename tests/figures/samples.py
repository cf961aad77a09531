"""One call of every figure on the synthetic bundle: what the render script draws and the browser test checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import labels
from profiler.figures.bars import bars
from profiler.figures.bounds import time_bounds
from profiler.figures.ledger import ledger
from profiler.figures.parity import parity
from profiler.figures.points import attention_points, attention_roofs
from profiler.figures.pyramid import pyramid
from profiler.figures.quadrant import quadrant
from profiler.figures.roofline import roofline
from profiler.figures.scaling import scaling
from profiler.figures.theorem import over_n, theorem
from profiler.figures.traffic import traffic
from profiler.figures.tuning import heatmap
from profiler.figures.what_if import VARY, curves
from profiler.spec import AttentionShape, RunConfig
from tests import synthetic


def sweep(sizes: tuple[int, ...] = (64, 128)) -> Bundle:
    """A bundle of flash2 at SHAPE with several block rows; bytes by the formula H·⌈N/BM⌉·2·N·D·2 + Q."""
    rows = []
    for block_m in sizes:
        config = RunConfig("flash2", SHAPE, parameters={"block_m": block_m, "block_n": 64, "num_warps": 4})
        row = synthetic.launch_rows(config, len(rows))[0]
        rows.append({**row, "l2_to_sm_bytes": 16 * (4096 // block_m) * 2 * 4096 * 64 * 2 + 16 * 4096 * 64 * 2})
    return Bundle("sweep", synthetic.bundle().profile, table.make("launches", rows))


def tuning() -> Bundle:
    """flash2 at SHAPE over four block pairs × warps × stages, made up: 128 × 64 with 4 warps and 3 stages is fastest.

    64 rows read twice the L2 → SM bytes, 128 × 128 spills, 256 rows hold half the warps and are refused at 4 warps.
    """
    launches, timings = [], []
    for m, n in ((64, 64), (128, 64), (128, 128), (256, 64)):
        for warps in (4, 8):
            for stages in (2, 3):
                config = RunConfig("flash2", SHAPE, parameters={
                    "block_m": m, "block_n": n, "num_warps": warps, "num_stages": stages})
                row = synthetic.launch_rows(config, len(launches))[0]
                ns = 100_000.0 + 40_000 * (m == 64) + 30_000 * (n == 128) + 20_000 * (m == 256) + 5_000 * warps \
                    - 1_000 * stages
                timed = synthetic.timing_row(config, [row]) | {"median_ns": ns}
                if m == 256 and warps == 4:
                    timings.append(config.key() | {"parameters": timed["parameters"],
                                                   "status": "refused: out of resource: shared memory"})
                    continue
                timings.append(timed)
                launches.append(row | {
                    "l2_to_sm_bytes": 16 * (4096 // m) * 2 * 4096 * 64 * 2 + 16 * 4096 * 64 * 2,
                    "spill_requests": 5_000 * (n == 128), "registers_per_thread": 255 if m == 256 else 168,
                    "theoretical_occupancy_pct": 6.25 if m == 256 else 12.5,
                    "shared_bytes_per_block": 2 * 64 * (m + stages * 2 * n)})
    return Bundle("tuning", synthetic.bundle().profile, table.make("launches", launches), timings=table.make(
        "timings", timings))


SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
CAUSAL = AttentionShape(1, 16, 4096, 4096, 128, mask="causal")
BUNDLE = synthetic.bundle()
SWEEP = sweep()
TUNING = tuning()
ALL = ("naive", "naive_folded", "flash2", "sdpa_flash")


def _roofline(shape: AttentionShape, names: tuple[str, ...], level: str = "dram", **look: Any) -> Any:
    return roofline(attention_points(BUNDLE, shape, names, level=level), attention_roofs(BUNDLE, shape, names),
                    BUNDLE.profile, about=labels.shape(shape), level=level, **look)


FIGURES: dict[str, Callable[..., Any]] = {
    "ledger": partial(ledger, BUNDLE, SHAPE),
    "ledger-causal": partial(ledger, BUNDLE, CAUSAL, ALL),
    "roofline": partial(_roofline, SHAPE, ALL),
    "roofline-causal": partial(_roofline, CAUSAL, ALL),
    "roofline-l2": partial(_roofline, SHAPE, ALL, "l2"),
    "scaling-bytes": partial(scaling, BUNDLE, SHAPE),
    "scaling-l2-to-sm": partial(scaling, BUNDLE, SHAPE, "l2_to_sm"),
    "scaling-memory": partial(scaling, BUNDLE, CAUSAL, "peak_memory", ALL),
    "scaling-time": partial(scaling, BUNDLE, SHAPE, "time", ALL),
    "scaling-tflops": partial(scaling, BUNDLE, SHAPE, "tflops"),
    "theorem": partial(theorem, SWEEP, SHAPE),
    "theorem-n": partial(over_n, BUNDLE, SHAPE),
    **{f"what-if-{vary}": partial(curves, BUNDLE, SHAPE, ALL, vary) for vary in VARY},
    "parity": partial(parity, BUNDLE),
    "parity-read": partial(parity, BUNDLE, "dram_read"),
    "bars": partial(bars, BUNDLE, SHAPE, ALL),
    "quadrant": partial(quadrant, BUNDLE, SHAPE),
    "traffic": partial(traffic, BUNDLE, SHAPE),
    "bounds": partial(time_bounds, BUNDLE, SHAPE),
    "pyramid": partial(pyramid, BUNDLE, SHAPE, ALL),
    "tuning": partial(heatmap, TUNING, SHAPE),
    "tuning-spills": partial(heatmap, TUNING, SHAPE, "spills"),
    "tuning-l2-to-sm": partial(heatmap, TUNING, SHAPE, "l2_to_sm"),
}
