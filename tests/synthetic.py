"""A small made-up bundle for tests of evidence, figures and pages: values worked out by hand, nothing measured.

B1 H16 D64 bf16 on a made-up GPU with 132 SMs and 60 MB of L2. Counters equal the compulsory bytes exactly, so a test
can say what any figure or verdict must be. Never shown to users as data.
"""

from __future__ import annotations

import json

from profiler import table
from profiler.bundle import Bundle
from profiler.spec import AttentionShape, RunConfig, parameters_text

GPU = {"name": "Synthetic GPU", "cc": "9.0", "sm_count": 132, "l2_size_bytes": 60_000_000,
       "memory_bytes": 140_000_000_000}
DRAM_PEAK, L2_PEAK, TENSOR_PEAK, CLOCK = 4.8e12, 1.2e13, 9.44e14, 1.746e9
BLOCK_M = 128

# stage -> (reads, writes) in whole tensors: q is one of Q/K/V/O, s one N×N matrix
STAGES = {
    ("naive", "full"): {"scores": (2, 0, 0, 1), "scale": (0, 1, 0, 1), "softmax": (0, 1, 0, 1), "values": (1, 1, 1, 0)},
    ("naive", "causal"): {"scores": (2, 0, 0, 1), "scale": (0, 1, 0, 1), "mask": (0, 1, 0, 1), "softmax": (0, 1, 0, 1),
                          "values": (1, 1, 1, 0)},
    ("naive_folded", "full"): {"scores": (2, 0, 0, 1), "softmax": (0, 1, 0, 1), "values": (1, 1, 1, 0)},
    ("naive_folded", "causal"): {"scores": (2, 0, 0, 1), "softmax": (0, 1, 0, 1), "values": (1, 1, 1, 0)},
}


def launch_rows(config: RunConfig, first: int) -> list[dict]:
    s = config.shape
    q, n2 = s.q_bytes, s.matrix_bytes
    pairs = s.batch * s.heads * s.nq * s.nk
    # pairs of one head in the blocks flash visits: query block i of 128 rows sees the first 128·(i + 1) keys if causal
    blocks = s.nq // BLOCK_M
    visited = BLOCK_M**2 * blocks * (blocks + 1) // 2 if s.mask == "causal" else s.nq * s.nk
    key_rows = visited // BLOCK_M
    if config.implementation.startswith("naive"):
        stages = STAGES[config.implementation, s.mask]
        moved = {name: (a * q + b * n2 + (s.nq * s.nk if name == "mask" else 0), c * q + d * n2)  # boolean mask: 1 B
                 for name, (a, b, c, d) in stages.items()}
        flops = {"scores": 2 * pairs * s.head_dim, "values": 2 * pairs * s.head_dim}
    else:
        moved = {"attention": (3 * q, q)}
        flops = {"attention": 4 * s.batch * s.heads * visited * s.head_dim}
    rows = []
    for i, (stage, (read, write)) in enumerate(moved.items()):
        work = flops.get(stage, 0)
        duration = max((read + write) / (0.8 * DRAM_PEAK), work / (0.4 * TENSOR_PEAK)) * 1e9
        rows.append({
            "source": "synthetic", "launch": first + i, "range": stage, "domain": "flashscope",
            "kernel": f"{config.implementation}_{stage}_kernel", "device": GPU["name"], "cc": GPU["cc"],
            "grid": "132,1,1", "block": "128,1,1", "duration_ns": duration, "dram_read_bytes": read,
            "dram_write_bytes": write, "dram_bytes_per_second": (read + write) / duration * 1e9,
            "l2_bytes": 1.5 * (read + write), "l2_to_xbar_bytes": 1.2 * read,
            "l2_to_sm_bytes": q + 2 * q * key_rows // s.nk if stage == "attention" else 1.1 * read,
            "sm_to_l2_bytes": write, "tensor_flops": work, "tensor_dtype": s.dtype if work else None,
            "special_ops": pairs if stage in ("softmax", "attention") else 0,
            "tensor_pipe_pct": 100 * work / duration * 1e9 / TENSOR_PEAK,
            "achieved_occupancy_pct": 94.0 if stage == "softmax" else 12.5,
            "theoretical_occupancy_pct": 100.0 if stage == "softmax" else 12.5, "occupancy_limiter": "registers",
            "registers_per_thread": 168, "shared_bytes_per_block": 98304, "waves_per_sm": 3.9, "spill_requests": 0,
            "sm_clock_hz": CLOCK, "dram_peak_bytes_per_s": DRAM_PEAK, "l2_peak_bytes_per_s": L2_PEAK,
            "tensor_peak_flops_per_s": TENSOR_PEAK, "l2_size_bytes": GPU["l2_size_bytes"], "sm_count": GPU["sm_count"],
            **config.key(stage), "parameters": parameters_text(config.parameters),
        })
    return rows


def timing_row(config: RunConfig, rows: list[dict]) -> dict:
    s = config.shape
    naive = config.implementation.startswith("naive")
    return {
        **config.key(), "parameters": parameters_text(config.parameters), "status": "ok",
        "median_ns": sum(r["duration_ns"] for r in rows), "p20_ns": 0.99 * sum(r["duration_ns"] for r in rows),
        "p80_ns": 1.02 * sum(r["duration_ns"] for r in rows), "repetitions": 20,
        "peak_memory_bytes": s.q_bytes + (2 * s.matrix_bytes if naive else 4 * s.batch * s.heads * s.nq),
        "error_max_abs": 2e-3, "error_relative": 2.0e-3, "error_eager_relative": 2.4e-3, "error_rows": "all",
        "sm_clock_hz": CLOCK, "power_w": 500,
    }


def bundle(lengths=(512, 1024, 2048, 4096, 8192), masks=("full", "causal"), head_dims=(64, 128)) -> Bundle:
    """The synthetic profile: both naive forms, flash2 and sdpa_flash over the given lengths, masks and head sizes."""
    launches: list[dict] = []
    timings: list[dict] = []
    for head_dim in head_dims:
        for mask in masks:
            for n in lengths:
                for name in ("naive", "naive_folded", "flash2", "sdpa_flash"):
                    parameters = {"block_m": BLOCK_M, "block_n": 64, "num_warps": 4} if name == "flash2" else {}
                    config = RunConfig(name, AttentionShape(1, 16, n, n, head_dim, mask=mask), parameters=parameters)
                    rows = launch_rows(config, len(launches))
                    launches += rows
                    timings.append(timing_row(config, rows))
    profile = {
        "schema_version": 1, "kind": "profile", "created": "2026-01-01T00:00:00+00:00", "counters": True, "gpu": GPU,
        "driver": "0", "torch": "0", "triton": "0", "ncu": "0", "cache_control": "all", "clock_control": "none",
        "suite": "synthetic", "ceilings": [
            {"quantity": "dram_copy_bytes_per_s", "value": 4.2e12, "unit": "B/s", "kind": "measured", "how": "made up"},
            {"quantity": "matmul_bf16_flops_per_s", "value": 8.0e14, "unit": "FLOP/s", "kind": "measured",
             "how": "made up"}],
    }
    metrics = [{"launch": r["launch"], "metric": "dram__bytes_read.sum", "unit": "byte",
                "value": json.dumps(r["dram_read_bytes"]), "used_for": "dram_read_bytes"} for r in launches]
    return Bundle("synthetic", profile, table.make("launches", launches), table.make("metrics", metrics),
                  table.make("timings", timings))
