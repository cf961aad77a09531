"""Check and time the float8 forward on a Hopper GPU. To try a form, add its fields of Config to CANDIDATES.

    python -m tests.gpu.check_hopper_fp8 FOLDER

Each candidate is compiled and checked in a process of its own, at the same time, so that a crash or a hang costs that
candidate only. What is right is then timed, one process a head size, interleaved in random order with
FlashAttention-3 in float8 (where fa3_fwd is installed) and cuDNN's attention in bfloat16; L2 flushed before each,
medians of CUDA events, the transposition of V inside ours; it alone and a copy of V, its floor, are timed too. One JSON
object a line goes to FOLDER/results.jsonl; kernels/hopper_fp8_plan.py holds what was found.

The oracle of an error: attention in float64 of the dequantised inputs, and the same with P, scaled as the kernel does,
rounded to e4m3 before P·V and the output to bfloat16. The kernel's root mean square error may be 1.5 times that of the
latter; the LSE may be off by 5e-3.
"""

from __future__ import annotations

import json
import os
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
ROUNDS, CHECK_SECONDS, TIME_SECONDS = 15, 60, 30
CANDIDATES: dict[int, dict[str, dict[str, Any]]] = {128: {"chosen": {}}, 64: {"chosen": {}}, 256: {"chosen": {}}}
# query heads, key heads, Nq, Nk, causal, which scales: none, head or block
SHAPES = [(2, 2, 1000, 1000, False, "none"), (4, 2, 77, 3001, False, "head"), (2, 2, 3001, 3001, True, "none"),
          (4, 1, 1000, 3001, True, "head"), (2, 1, 300, 77, True, "none"), (2, 2, 640, 1024, False, "block"),
          (2, 2, 640, 2304, True, "block")]


def quantised(shape: tuple[int, ...], seed: int, scales: str) -> tuple[Any, Any, Any]:
    """x in e4m3 (B, H, N, D), its scale or None, and x · scale in float64."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=generator)
    x = (x * 16).clamp(-448, 448).to(torch.float8_e4m3fn) if scales != "none" else x.to(torch.float8_e4m3fn)
    size = {"none": (1,), "head": shape[:2], "block": (*shape[:2], -(-shape[2] // 128))}[scales]
    scale = (0.5 + torch.rand(size, device="cuda", generator=generator)) / 16 if scales != "none" else None
    real = x.double()
    if scale is not None:
        wide = scale if scales == "block" else scale[..., None]
        real = real * wide.double().repeat_interleave(128 if scales == "block" else shape[2], 2)[:, :, :shape[2], None]
    return x, scale, real


def attention(q: Any, k: Any, v: Any, causal: bool, rounded: bool = False) -> tuple[Any, Any]:
    """Attention and LSE in float64 of (B, H, N, D); `rounded`: P in e4m3, its largest value of a row 2^6, and the
    output in bfloat16."""
    import torch

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.mT * q.shape[3] ** -0.5
    nq, nk = s.shape[2:]
    if causal:
        hidden = torch.arange(nk, device=s.device) > torch.arange(nq, device=s.device)[:, None] + nk - nq
        s = s.masked_fill(hidden, float("-inf"))
    top = s.amax(3, keepdim=True).clamp(min=-1e30)
    p = torch.exp(s - top) * 64
    total = p.sum(3, keepdim=True)
    if rounded:
        p = p.float().to(torch.float8_e4m3fn).double()
    out = p @ v / total.where(total > 0, 1.0)
    return out.bfloat16().double() if rounded else out, (top + torch.log(total / 64)).squeeze(3)


def turned_right(head_dim: int) -> bool:
    """Whether the transposition of V, at a length that is no multiple of its blocks, is exact and its padding 0."""
    import torch

    from kernels import hopper_fp8_plan as plan

    v = torch.randn(2, 3, 300, head_dim, device="cuda").to(torch.float8_e4m3fn)
    (kernel, grid, arguments, options), _ = plan.launches(
        v, v, v, torch.empty_like(v, dtype=torch.bfloat16), v, causal=False, scale=1.0, multiprocessors=1)
    kernel[grid](*arguments, **options)
    keys = torch.nn.functional.pad(v.view(torch.uint8), (0, 0, 0, 384 - 300)).reshape(6, 24, 2, 4, 2, head_dim)
    return torch.equal(arguments[1], keys.permute(0, 5, 1, 3, 2, 4).reshape(6, head_dim, 384))


def places(head_dim: int, fields: dict[str, Any]) -> list[int]:
    """With P the identity of 64 keys: the key whose value each of the first 32 rows holds, -1 where it is none's."""
    import torch

    from kernels import hopper_fp8_plan as plan

    unit = torch.eye(64, head_dim, device="cuda")[None, None]
    value = torch.randn(1, 1, 64, head_dim, device="cuda").to(torch.float8_e4m3fn)
    key = (unit * 256).to(torch.float8_e4m3fn)
    out, _ = plan.forward(key, key, value, tuning=fields)
    distance = (out[0, 0, :32, None].double() - value[0, 0].double()).abs().amax(2)
    return [int(row.argmin()) if row.min() < 0.2 else -1 for row in distance]


def fa3(q: Any, k: Any, v: Any, causal: bool, scales: list[Any] | None = None) -> Any:
    """FlashAttention-3 on (B, N, H, D); scales of q, k and v (B, Hk)."""
    from fa3_fwd_interface import flash_attn_func

    q_scale, k_scale, v_scale = scales or (None, None, None)
    out = flash_attn_func(q, k, v, causal=causal, q_descale=q_scale, k_descale=k_scale, v_descale=v_scale)
    return out[0] if isinstance(out, tuple) else out


def check(head_dim: int, name: str) -> dict[str, Any]:
    """Errors of one candidate over SHAPES, relative to the output's root mean square, and whether all are right."""
    import torch

    from kernels import hopper_fp8_plan as plan

    fields = CANDIDATES[head_dim][name]
    rows = []
    for heads, kv_heads, nq, nk, causal, scales in SHAPES:
        q, q_scale, q_real = quantised((1, heads, nq, head_dim), 0, scales)
        k, k_scale, k_real = quantised((1, kv_heads, nk, head_dim), 1, scales)
        v, v_scale, v_real = quantised((1, kv_heads, nk, head_dim), 2, scales)
        expected, expected_lse = attention(q_real, k_real, v_real, causal)
        model, _ = attention(q_real, k_real, v_real, causal, rounded=True)
        poisoned = torch.full(q.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
        out, lse = plan.forward(q, k, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, causal=causal,
                                tuning=fields, out=poisoned)
        torch.cuda.synchronize()
        size = expected.square().mean().sqrt()
        error = ((out.double() - expected).square().mean().sqrt() / size).item()
        allowed = ((model - expected).square().mean().sqrt() / size).item() * 1.5
        blind = torch.isneginf(expected_lse)
        lse_error = (lse.double() - expected_lse)[~blind].abs().max().item()
        good = (error <= allowed and lse_error <= 5e-3
                and bool((torch.isneginf(lse) == blind).all()) and bool((out[blind] == 0).all()))
        row = {"shape": [heads, kv_heads, nq, nk, causal, scales], "error": error, "allowed": allowed,
               "largest": ((out.double() - expected).abs().max() / size).item(), "lse": lse_error, "ok": good}
        if name == "chosen" and scales == "none":
            try:
                theirs = fa3(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2)
                row["fa3_error"] = ((theirs.double() - expected).square().mean().sqrt() / size).item()
            except Exception as failure:  # a peer that is missing or does not take the shape is told, not fatal
                row["fa3_error"] = str(failure)[:200]
        rows.append(row)
    result = {"head_dim": head_dim, "name": name, "rows": rows, "turned": turned_right(head_dim),
              "places": places(head_dim, fields)}
    return {**result, "ok": all(row["ok"] for row in rows) and result["turned"] and result["places"] == [*range(32)]}


def time_cell(head_dim: int, n: int, causal: bool, names: list[str]) -> list[dict[str, Any]]:
    """Median and 20th and 80th percentile of the seconds of each candidate and peer, interleaved in random order."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from kernels import hopper_fp8_plan as plan

    torch.manual_seed(0)
    shape = (TOKENS // n, HIDDEN // head_dim, n, head_dim)
    bf16: Any = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    fp8: Any = [x.to(torch.float8_e4m3fn) for x in bf16]
    tokens_first: Any = [x.transpose(1, 2).contiguous() for x in fp8]

    def cudnn() -> Any:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return scaled_dot_product_attention(*bf16, is_causal=causal)

    runs: dict[str, Callable[[], Any]] = {
        name: lambda fields=CANDIDATES[head_dim][name]: plan.forward(*fp8, causal=causal, tuning=fields)
        for name in names}
    runs |= {"FA3 fp8": lambda: fa3(*tokens_first, causal), "cuDNN bf16": cudnn, "transposition": lambda: turn(fp8),
             "copy of V": lambda: torch.empty_like(fp8[2]).copy_(fp8[2])}
    missing = {}
    for name, run in list(runs.items()):
        try:
            for _ in range(2):
                run()
            torch.cuda.synchronize()
        except Exception as failure:
            missing[name] = str(failure).splitlines()[0][:200]
            del runs[name]
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
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
    cell = {"head_dim": head_dim, "n": n, "causal": causal}
    rows = [{**cell, "name": name, "missing": why} for name, why in missing.items()]
    for name, seconds in times.items():
        deciles = statistics.quantiles(seconds, n=10)
        median = statistics.median(seconds)
        rows.append({**cell, "name": name, "seconds": median, "p20": deciles[1], "p80": deciles[7],
                     "tflops": flops / median / 1e12})
    return rows


def turn(tensors: list[Any]) -> None:
    """The transposition of V alone."""
    import torch

    from kernels import hopper_fp8_plan as plan

    q, k, v = tensors
    out = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
    (kernel, grid, arguments, options), _ = plan.launches(
        q, k, v, out, torch.empty(1, device="cuda"), causal=False, scale=1.0, multiprocessors=132)
    kernel[grid](*arguments, **options)


def child(job: list[Any], seconds: float) -> list[dict[str, Any]]:
    """Run one job in its own process: what it printed, a JSON object a line, and why it ended early where it did."""
    process = subprocess.Popen([sys.executable, "-m", "tests.gpu.check_hopper_fp8", "--job", json.dumps(job)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate(timeout=seconds)
        problem = "\n".join(errors.strip().splitlines()[-3:]) if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        problem = f"no end after {seconds} s"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines + ([{"job": job, "problem": problem[-600:]}] if problem else [])


def work(job: list[Any]) -> None:
    if job[0] == "check":
        print(json.dumps(check(*job[1:])))
        return
    _, head_dim, names = job
    for n in (4096, 16_384, 1024):
        for causal in (False, True):
            for row in time_cell(head_dim, n, causal, names):
                print(json.dumps(row), flush=True)


def told(rows: list[dict[str, Any]]) -> None:
    """Rates a cell, and ours over FlashAttention-3's."""
    cells = dict.fromkeys((row["head_dim"], row["n"], row["causal"]) for row in rows if "n" in row)
    for cell in cells:
        here = [row for row in rows if (row.get("head_dim"), row.get("n"), row.get("causal")) == cell]
        theirs = next((row["tflops"] for row in here if row["name"] == "FA3 fp8" and "tflops" in row), None)
        print(f"\nD {cell[0]} N {cell[1]} {'causal' if cell[2] else 'full'}")
        for row in sorted(here, key=lambda row: row.get("seconds", 9.0)):
            if "missing" in row:
                print(f"  {row['name']:22s} missing: {row['missing']}")
                continue
            ratio = f"{row['tflops'] / theirs:5.3f}" if theirs else "  -  "
            print(f"  {row['name']:22s} {row['seconds'] * 1e6:8.1f} us {row['tflops']:7.1f} TFLOP/s  x FA3 {ratio}"
                  f"  spread {(row['p80'] - row['p20']) / row['seconds'] * 100:4.1f} %")


def main(folder: Path) -> None:
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    jobs = [["check", head_dim, name] for head_dim, candidates in CANDIDATES.items() for name in candidates]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        checked = list(pool.map(lambda job: child(job, CHECK_SECONDS), jobs))
    results = [row for rows in checked for row in rows]
    timed: dict[int, list[str]] = {}
    for row in results:
        if not row.get("ok"):
            print("WRONG:" if "rows" in row else "FAILED:", json.dumps(row)[:2500])
            continue
        timed.setdefault(row["head_dim"], []).append(row["name"])
        worst = max(row["rows"], key=lambda r: r["error"])
        theirs = [r["fa3_error"] for r in row["rows"] if "fa3_error" in r]
        print(f"right: D {row['head_dim']} {row['name']}, error {worst['error']:.4f} of {worst['allowed']:.4f}, "
              f"LSE {max(r['lse'] for r in row['rows']):.1e}, FA3 {theirs}")
    print(f"checked after {time.monotonic() - begin:.0f} s", flush=True)
    for head_dim in (128, 64):
        if head_dim in timed:
            rows = child(["time", head_dim, timed[head_dim]], TIME_SECONDS)
            results += rows
            told(rows)
            for row in rows:
                if "problem" in row:
                    print(row)
        (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
        print(f"D {head_dim} after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.gpu.check_hopper_fp8 FOLDER")
    if sys.argv[1] == "--job":
        work(json.loads(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
