"""Measure every configuration of the FlashAttention-2 forward on this GPU: the source of the table in kernels/plan.py.

    python -m tests.gpu.check_flash2 --out DIR

First each candidate is compiled and checked in a process of its own, several at a time (a compiler crash, a hang or a
NaN costs that candidate only). Then, one cell (head size, mask) after the other and alone on the GPU, the candidates
that passed run interleaved with PyTorch's SDPA in random order; medians of CUDA-event times, L2 flushed before each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TOKENS, HIDDEN = 16_384, 2_048
ROUNDS = 20
CHECK_SECONDS, CELL_SECONDS = 60, 60
# (path, block_m, block_n, num_warps, num_stages); each compiles for sm_90 without spilling in Triton 3.6 and 3.9.
CANDIDATES: dict[int, list[tuple[str, int, int, int, int]]] = {
    64: [("tma", 64, 64, 4, 2), ("tma", 64, 64, 4, 3), ("tma", 64, 64, 4, 4), ("tma", 64, 128, 4, 2),
         ("tma", 64, 128, 4, 3), ("tma", 128, 64, 4, 3), ("tma", 128, 64, 8, 3), ("tma", 128, 128, 8, 2),
         ("pointer", 64, 64, 4, 3), ("pointer", 128, 64, 4, 3), ("pointer", 64, 128, 4, 2)],
    128: [("tma", 64, 32, 4, 3), ("tma", 64, 64, 4, 2), ("tma", 64, 64, 4, 3), ("tma", 64, 64, 4, 4),
          ("tma", 64, 128, 4, 3), ("tma", 128, 64, 8, 3), ("tma", 128, 128, 8, 3), ("pointer", 64, 64, 4, 3),
          ("pointer", 128, 64, 8, 3)],
}

def tuning(candidate: tuple[str, int, int, int, int]) -> dict[str, Any]:
    path, block_m, block_n, warps, stages = candidate
    return {"block_m": block_m, "block_n": block_n, "num_warps": warps, "num_stages": stages, "tma": path == "tma"}


def inputs(n: int, head_dim: int) -> list[Any]:
    import torch

    torch.manual_seed(0)
    shape = (TOKENS // n, HIDDEN // head_dim, n, head_dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def run_poisoned(q: Any, k: Any, v: Any, causal: bool, options: dict[str, Any]) -> Any:
    """The kernel's output on memory that held NaN: an element it forgets stays NaN."""
    import torch

    from kernels import flash2, plan

    chosen = plan.choose(q, k, v, causal=causal, cc=torch.cuda.get_device_capability(), tuning=options)
    out = torch.full_like(q, float("nan"))
    flash2.forward(q, k, v, chosen, causal=causal, scale=q.shape[-1] ** -0.5, return_lse=False, out=out)
    torch.cuda.synchronize()
    return out


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Largest error against float64 at the timed shape (sampled rows) and at odd lengths (all rows), and eager's."""
    import torch

    from kernels import naive_attention, reference_attention

    causal, options = job["causal"], tuning(job["candidate"])
    worst = {"error": 0.0, "eager_error": 0.0, "ok": True}
    q, k, v = inputs(4096, job["head_dim"])
    odd_q, odd_k, odd_v = q[:1, :3, :999], k[:1, :3, :1101], v[:1, :3, :1101]
    for a, b, c, rows in ((q, k, v, torch.randint(0, 4096, (48,))), (odd_q, odd_k, odd_v, torch.arange(999))):
        rows = rows.to(a.device)
        out = run_poisoned(a, b, c, causal, options)
        expected, _ = reference_attention(a, b, c, causal=causal, rows=rows)
        eager = naive_attention(a[:1], b[:1], c[:1], causal=causal)[:, :, rows]
        size = float(expected.abs().max())
        error = float((out[:, :, rows].double() - expected).abs().max()) / size
        eager_error = float((eager.double() - expected[:1]).abs().max()) / size
        finite = bool(torch.isfinite(out).all())
        worst["error"] = max(worst["error"], error) if finite else float("nan")
        worst["eager_error"] = max(worst["eager_error"], eager_error)
        worst["ok"] = worst["ok"] and finite and error <= 2 * eager_error + 4e-3
    return worst


def peers(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Callable[[], Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def using(backend: Any) -> Callable[[], Any]:
        def run() -> Any:
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(q, k, v, is_causal=causal)
        return run

    return {"sdpa_flash": using(SDPBackend.FLASH_ATTENTION), "sdpa_cudnn": using(SDPBackend.CUDNN_ATTENTION)}


def time_cell(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Median, 20th and 80th percentile of the seconds of each candidate and peer, interleaved in random order."""
    import torch

    from kernels import flash_attention

    n, head_dim, causal = job["n"], job["head_dim"], job["causal"]
    q, k, v = inputs(n, head_dim)
    runs: dict[str, Callable[[], Any]] = peers(q, k, v, causal)
    for candidate in job["candidates"]:
        options = tuning(candidate)
        runs[json.dumps(candidate)] = lambda options=options: flash_attention(q, k, v, causal=causal, tuning=options)
    for name, run in list(runs.items()):
        try:
            for _ in range(3):
                run()
            torch.cuda.synchronize()
        except RuntimeError as error:  # a peer that this GPU or build does not have
            if not name.startswith("sdpa"):
                raise
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            del runs[name]
    flush = torch.empty(512 << 20, dtype=torch.int8, device="cuda")
    order, times = list(runs), {name: [] for name in runs}
    for _ in range(ROUNDS):
        random.shuffle(order)
        torch.cuda._sleep(4_000_000)  # the queue fills meanwhile, so that no launch waits for Python
        events = []
        for name in order:
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            runs[name]()
            end.record()
            events.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in events:
            times[name].append(start.elapsed_time(end) / 1e3)
    flops = 4 * TOKENS * HIDDEN * n * (0.5 if causal else 1)
    rows = []
    for name, seconds in times.items():
        deciles = statistics.quantiles(seconds, n=10)
        rows.append({"name": name, "n": n, "head_dim": head_dim, "causal": causal,
                     "seconds": statistics.median(seconds), "p20": deciles[1], "p80": deciles[7],
                     "tflops": flops / statistics.median(seconds) / 1e12})
    return rows


def child(mode: str, job: dict[str, Any], seconds: float) -> tuple[Any, str]:
    """Run one job in its own process: (result, "") or (None, why not)."""
    command = [sys.executable, "-m", "tests.gpu.check_flash2", f"--{mode}", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"no end after {seconds:.0f} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return None, lines[-1][-300:]
    return json.loads(done.stdout.splitlines()[-1]), ""


def report(rows: list[dict[str, Any]]) -> None:
    flash = next((row["seconds"] for row in rows if row["name"] == "sdpa_flash"), None)
    cudnn = next((row["seconds"] for row in rows if row["name"] == "sdpa_cudnn"), None)
    first = rows[0]
    print(f"\nD {first['head_dim']} {'causal' if first['causal'] else 'full'} N {first['n']}")
    for row in sorted(rows, key=lambda row: row["seconds"]):
        ratios = [f"{other / row['seconds']:5.2f}" if other else "   - " for other in (flash, cudnn)]
        spread = (row["p80"] - row["p20"]) / row["seconds"] * 100
        print(f"  {row['name']:32s} {row['seconds'] * 1e6:8.1f} us  {row['tflops']:6.1f} TFLOP/s  x flash {ratios[0]}"
              f"  x cuDNN {ratios[1]}  spread {spread:4.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for flash2_tuning.json")
    parser.add_argument("--workers", type=int, default=12, help="checks at a time (default 12)")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--time", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps(check(json.loads(arguments.check))))
        return
    if arguments.time:
        print(json.dumps(time_cell(json.loads(arguments.time))))
        return
    if arguments.out is None:
        parser.error("--out DIR is needed")

    begin = time.monotonic()
    cells = [(head_dim, causal) for head_dim in CANDIDATES for causal in (False, True)]
    jobs = [{"head_dim": head_dim, "causal": causal, "candidate": candidate}
            for head_dim, causal in cells for candidate in CANDIDATES[head_dim]]
    with ThreadPoolExecutor(arguments.workers) as pool:
        checked = list(pool.map(lambda job: child("check", job, CHECK_SECONDS), jobs))
    passed: dict[tuple[int, bool], list[Any]] = {cell: [] for cell in cells}
    checks = []
    for job, (result, problem) in zip(jobs, checked):
        checks.append({**job, "result": result, "problem": problem})
        if result and result["ok"]:
            passed[job["head_dim"], job["causal"]].append(job["candidate"])
        else:
            print(f"dropped {job}: {problem or result}")
    worst = max((c["result"]["error"] for c in checks if c["result"] and c["result"]["ok"]), default=0.0)
    print(f"{sum(map(len, passed.values()))} of {len(jobs)} candidates right, largest error {worst:.1e}, "
          f"after {time.monotonic() - begin:.0f} s", flush=True)

    rows: list[dict[str, Any]] = []
    for head_dim, causal in cells:
        candidates = passed[head_dim, causal]
        for n in (4096, 16_384, 1024):
            job = {"head_dim": head_dim, "causal": causal, "n": n, "candidates": candidates}
            measured, problem = child("time", job, CELL_SECONDS)
            if problem:
                print(f"D {head_dim} {'causal' if causal else 'full'} N {n} not measured: {problem}")
                break
            report(measured)
            rows += measured
            ours = [row for row in measured if not row["name"].startswith("sdpa")]
            candidates = [json.loads(row["name"]) for row in sorted(ours, key=lambda row: row["seconds"])[:3]]
    save(arguments.out, checks, rows, time.monotonic() - begin)


def save(folder: Path, checks: list[dict[str, Any]], rows: list[dict[str, Any]], seconds: float) -> None:
    import torch
    import triton

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "flash2_tuning.json"
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    path.write_text(json.dumps({**versions, "rounds": ROUNDS, "checks": checks, "timings": rows}, indent=1))
    print(f"\n{path} after {seconds:.0f} s")


if __name__ == "__main__":
    main()
