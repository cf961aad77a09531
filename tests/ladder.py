"""A made-up bundle of the suite ladder, for tests of figures and pages: counters as predicted, times by hand.

TIMES: microseconds of each step on every shape, in the suite's order. Never shown to users as data.
"""

from __future__ import annotations

import json

from profiler import table
from profiler.bundle import Bundle
from profiler.collect import suites
from profiler.metrics import stall_names
from profiler.model import predict
from profiler.spec import RunConfig, parameters_text
from tests import synthetic

# naive_folded, flash1, flash2, hopper with three switches off, two, one, none, sdpa_flash, sdpa_cudnn
TIMES = (9000.0, 2000.0, 1200.0, 1000.0, 900.0, 800.0, 750.0, 1600.0, 850.0)
TENSOR_PCT = (8.0, 30.0, 48.0, 58.0, 64.0, 72.0, 77.0, 36.0, 68.0)
# stall reason -> warps waiting for it, by step: sums of 4, 4, 4, 5, 4, 2.5, 2, 4 and 2.5
STALLS = {"long_scoreboard": (3.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 0.5), "barrier": (0.5, 2.0, 0.5, 1.5, 1.0, 0.5,
          0.5, 1.0, 0.5), "gmma": (0.0, 0.0, 2.0, 2.5, 2.0, 1.0, 0.5, 0.0, 1.0), "wait": (0.5, 1.0, 1.0, 0.5, 0.5, 0.5,
          0.5, 2.0, 0.5), "selected": (1.0,) * 9}


def ran(config: RunConfig) -> dict:
    """The parameters that a configuration reports: the kernel's own beside the switches."""
    if config.implementation in ("flash1", "flash2"):
        return {"block_m": 128, "block_n": 64, "num_warps": 8}
    if config.implementation != "hopper":
        return {}
    switches = {"turns": True, "overlap": True, "fixed": True} | dict(config.parameters)
    return {"block_m": 128, "block_n": 128, "consumers": 2, "ahead": True, **switches}


def bundle() -> Bundle:
    launches, timings, metrics = [], [], []
    per = len(TIMES)
    for place, config in enumerate(suites.ladder()):
        step = place % per
        parameters = ran(config)
        rows = synthetic.launch_rows(RunConfig(config.implementation, config.shape, parameters=parameters),
                                     len(launches))
        found = {s.stage: s for s in predict(RunConfig(config.implementation, config.shape, parameters=parameters),
                                             l2_size_bytes=synthetic.GPU["l2_size_bytes"]).stages}
        for row in rows:
            stage = found[row["stage"]]
            row.update(config.key(row["stage"]), parameters=parameters_text(parameters),
                       duration_ns=1.1e3 * TIMES[step] / len(rows), tensor_pipe_pct=TENSOR_PCT[step])
            if stage.l2_to_sm is not None:
                row["l2_to_sm_bytes"] = sum(stage.l2_to_sm.values())
            if stage.sm_to_l2 is not None:
                row["sm_to_l2_bytes"] = sum(stage.sm_to_l2.values())
            row["dram_read_bytes"], row["dram_write_bytes"] = stage.dram_read_bytes, stage.dram_written_bytes
            row["tensor_flops"] = stage.flops_computed or stage.flops_visible
            row["special_ops"] = stage.special_ops
            row["fp32_flops"] = 6 * (stage.exponentials or 0)
            for name in stall_names("9.0"):
                reason = name.split("issue_stalled_")[1].split("_per_issue")[0]
                metrics.append({"launch": row["launch"], "metric": name, "unit": "",
                                "value": json.dumps(STALLS.get(reason, (0.0,) * per)[step]), "used_for": None})
        launches += rows
        timings.append({**synthetic.timing_row(config, rows), "parameters": parameters_text(parameters),
                        "median_ns": 1e3 * TIMES[step], "p20_ns": 990 * TIMES[step], "p80_ns": 1020 * TIMES[step]})
    profile = {**synthetic.bundle((512,), ("full",), (64,)).profile, "suite": "ladder"}
    return Bundle("ladder", profile, table.make("launches", launches), table.make("metrics", metrics),
                  table.make("timings", timings))
