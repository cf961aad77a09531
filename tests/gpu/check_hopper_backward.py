"""The Hopper backward on a GPU: every candidate against float64, then what each costs beside its peers.

    python -m tests.gpu.check_hopper_backward FOLDER [--only SUBSTRING] [--check-only]

Appends one JSON line a check and a timing to FOLDER/results.jsonl and prints them; exit 1 if a candidate is wrong.
Each candidate is checked in a process of its own, several at once, so one that hangs or crashes costs only itself; then
a process for each head size and mask times what is right. The limit of an error is 3 times that of eager PyTorch in the
same dtype plus the floor of its dtype. Times are CUDA events around every kernel of a backward, in random order, 256 MB
cleared before each; TFLOP/s count 10 B H N N D, half of it when causal. Two passes must give the same bits in every
run. A peer that is not installed or refuses is named. To try a form, add it to CANDIDATES.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from kernels import hopper_backward_plan as plan
from kernels.hopper_backward_plan import Tuning

DEVICE, TOKENS, HIDDEN, ROUNDS, RUNS = "cuda", 16384, 2048, 13, 12
CELLS = [(4096, "bfloat16"), (16384, "bfloat16"), (1024, "bfloat16"), (4096, "float16")]
HEADS = [(128, False), (128, True), (64, False), (64, True)]  # (head size, causal)
FLOOR = {torch.float16: 5e-4, torch.bfloat16: 4e-3}
CANDIDATES = {head_dim: {"one pass": plan.ONE_PASS[head_dim], "two passes": plan.DETERMINISTIC[head_dim]}
              for head_dim in (128, 64)}
# (name, batch, query heads, key heads, Nq, Nk, head size, window, dtype, dLSE)
CALLS = [("aligned", 2, 3, 3, 512, 512, None, (-1, -1), "bfloat16", False),
         ("tails", 2, 3, 3, 1000, 1000, None, (-1, -1), "bfloat16", False),
         ("fewer queries", 2, 3, 3, 300, 1000, None, (-1, -1), "bfloat16", True),
         ("groups, fewer keys: rows without keys", 1, 8, 2, 700, 333, None, (-1, -1), "float16", True),
         ("head size 40 or 96", 1, 4, 2, 513, 640, -24, (-1, -1), "bfloat16", False),
         ("window", 1, 4, 2, 900, 1100, None, (200, 50), "bfloat16", False),
         ("few tokens", 1, 2, 1, 1, 3, None, (-1, -1), "float16", False)]


def deterministic(tuning):
    return tuning.dq_sum == "none"


def make(batch, heads, kv_heads, nq, nk, head_dim, dtype):
    torch.manual_seed(0)
    sizes = ((heads, nq), (kv_heads, nk), (kv_heads, nk), (heads, nq))
    return [torch.randn(batch, h, n, head_dim, device=DEVICE).to(dtype) for h, n in sizes]


def eager(q, k, v, dout, dlse, causal, window):
    """Gradients by plain PyTorch in the inputs' dtype; rows without keys give none."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:])
    s = leaves[0] @ keys.mT * q.shape[3] ** -0.5
    nq, nk = s.shape[2:]
    left, right = window[0], 0 if causal else window[1]
    at = torch.arange(nk, device=DEVICE) - torch.arange(nq, device=DEVICE)[:, None] - (nk - nq)
    hidden = torch.zeros_like(at, dtype=torch.bool)
    if right >= 0:
        hidden |= at > right
    if left >= 0:
        hidden |= at < -left
    s = s.masked_fill(hidden, float("-inf"))
    dead = hidden.all(-1)
    p = torch.softmax(s.masked_fill(dead[:, None], 0.0), -1).masked_fill(dead[:, None], 0.0)
    lse = torch.logsumexp(s.float().masked_fill(dead[:, None], 0.0), -1).masked_fill(dead, 0.0)
    target = (p @ values * dout).sum() + (0.0 if dlse is None else (lse * dlse.masked_fill(dead, 0.0)).sum())
    return torch.autograd.grad(target, leaves), s, dead


def error(call, causal, tuning):
    """The largest error over its limit, of dQ, dK and dV, the relative errors (NaN stays); do all runs agree?"""
    _, batch, heads, kv_heads, nq, nk, head_dim, window, dtype, with_dlse = call
    q, k, v, dout = make(batch, heads, kv_heads, nq, nk, head_dim, getattr(torch, dtype))
    dlse = torch.randn(batch, heads, nq, device=DEVICE) if with_dlse else None
    exact, scores, dead = eager(*(x.double() for x in (q, k, v, dout)), None if dlse is None else dlse.double(),
                                causal, window)
    lse = torch.logsumexp(scores, -1).masked_fill(dead, float("-inf"))
    p = torch.exp(scores - lse[..., None]).masked_fill(dead[:, None], 0.0)
    out = p @ v.double().repeat_interleave(heads // kv_heads, 1)
    plain = eager(q, k, v, dout, dlse, causal, window)[0]
    torch.cuda.empty_cache()
    poison = [torch.full_like(x, float("nan")) for x in (q, k, v, q, q)]
    del poison  # what is allocated next holds NaN
    arguments = dict(scale=head_dim**-0.5, causal=causal, window=window, dlse=dlse, tuning=asdict(tuning),
                     deterministic=deterministic(tuning))
    grads = plan.backward(dout, q, k, v, out.to(q.dtype), lse.float(), **arguments)
    again = [plan.backward(dout, q, k, v, out.to(q.dtype), lse.float(), **arguments) for _ in range(RUNS)]
    equal = [all(torch.equal(a, b) for b in others) for a, *others in zip(grads, *again)]
    worst, relative = 0.0, []
    for g, r, e in zip(grads, exact, plain):
        limit = 3 * (e.double() - r).abs().max() + FLOOR[q.dtype] * r.abs().max()
        ratio = ((g.double() - r).abs().max() / limit).item() if limit > 0 else float(g.abs().max() > 0)
        relative.append(((g.double() - r).norm() / r.norm().clamp_min(1e-30)).item())
        worst = ratio if not ratio <= worst else worst
    return {"over_limit": worst if worst == worst else "nan", "relative": relative, "bitwise_dq_dk_dv": equal,
            "right": worst <= 1 and all(equal[0 if deterministic(tuning) else 1:])}


def check(head_dim, causal, tuning):
    results = {}
    for call in CALLS:
        size = head_dim + call[6] if call[6] and head_dim == 64 else 96 if call[6] else head_dim
        results[call[0]] = error((*call[:6], size, *call[7:]), causal, tuning)
        print(json.dumps(results), flush=True)  # what is known if the next one hangs


def check_autograd(head_dim):
    """Gradients of flash_attention(implementation="hopper") through autograd, plain and compiled, and 30 runs alike."""
    from kernels import flash_attention

    q, k, v, dout = make(2, 4, 2, 777, 900, head_dim, torch.bfloat16)
    exact = eager(*(x.double() for x in (q, k, v, dout)), None, True, (-1, -1))[0]
    plain = eager(q, k, v, dout, None, True, (-1, -1))[0]

    def attention(*leaves, deterministic=False):
        return flash_attention(*leaves, causal=True, implementation="hopper", deterministic=deterministic)

    def gradients(function, **options):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(function(*leaves, **options), leaves, dout)

    results = {}
    for name, function in (("plain", attention), ("compiled", torch.compile(attention, fullgraph=True))):
        worst = max(((g.double() - r).abs().max() / (3 * (e.double() - r).abs().max()
                                                     + FLOOR[q.dtype] * r.abs().max())).item()
                    for g, r, e in zip(gradients(function), exact, plain))
        results[name] = {"over_limit": worst, "right": worst <= 1}
        print(json.dumps(results), flush=True)
    first = gradients(attention, deterministic=True)
    same = all(torch.equal(a, b) for _ in range(30)
               for a, b in zip(first, gradients(attention, deterministic=True)))
    results["30 deterministic runs"] = {"right": same}
    print(json.dumps(results), flush=True)


def sdpa(q, k, v, dout, causal, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(getattr(SDPBackend, backend)):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def fa4(q, k, v, dout, causal):
    attention = importlib.import_module("flash_attn.cute").flash_attn_func
    leaves = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, causal=causal)
    out = out[0] if isinstance(out, tuple) else out
    d = dout.transpose(1, 2).contiguous()
    return lambda: torch.autograd.grad(out, leaves, d, retain_graph=True)


def ours(q, k, v, dout, out, lse, causal, tuning):
    grads = tuple(torch.empty_like(x) for x in (q, k, v))
    steps = list(plan.launches(dout, q, k, v, out, lse, left=-1, right=0 if causal else -1, scale=q.shape[3] ** -0.5,
                               dlse=None, tuning=tuning, grads=grads))

    def call(stage=None):
        plan.run(steps, stage)
        return grads
    return call


def step_times(call, rounds=5):
    """Median microseconds of each kernel of a backward, in its place."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device=DEVICE)
    events = {}

    @contextlib.contextmanager
    def stage(name):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        events.setdefault(name, []).append((start, end))
    for _ in range(rounds):
        flush.zero_()
        torch.cuda._sleep(1_500_000)
        call(stage)
    torch.cuda.synchronize()
    return {name: round(statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3, 1)
            for name, pairs in events.items()}


def times(calls, rounds):
    """Milliseconds on the device of each named call: median, least, most; random order, L2 cleared before each."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device=DEVICE)
    events = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            flush.zero_()
            torch.cuda._sleep(1_500_000)  # under a millisecond, in which the host prepares the launches
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            calls[name]()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    taken = {name: sorted(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}
    return {name: (statistics.median(t), t[0], t[-1]) for name, t in taken.items()}


def prepare_cell(head_dim, causal, n, dtype):
    """Inputs of a cell, the peers as calls, and those that are missing."""
    heads = HIDDEN // head_dim
    q, k, v, dout = make(TOKENS // n, heads, heads, n, n, head_dim, getattr(torch, dtype))
    calls, missing = {}, {}
    makers = {"cudnn": lambda *a: sdpa(*a, "CUDNN_ATTENTION"), "sdpa flash": lambda *a: sdpa(*a, "FLASH_ATTENTION"),
              "fa4": fa4}
    for name, maker in makers.items():
        try:
            call = maker(q, k, v, dout, causal)
            call()
            torch.cuda.synchronize()
            calls[name] = call
        except Exception as failure:  # whatever a peer raises, the others are still measured
            missing[name] = f"{type(failure).__name__}: {failure}"[:200]
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=DEVICE)
    for b in range(q.shape[0]):
        for h in range(heads):
            for rows in torch.arange(n, device=DEVICE).split(4096):
                s = (q[b, h, rows].float() @ k[b, h].float().T) * head_dim**-0.5
                if causal:
                    s.masked_fill_(torch.arange(n, device=DEVICE) > rows[:, None], float("-inf"))
                lse[b, h, rows] = torch.logsumexp(s, -1)
                out[b, h, rows] = torch.softmax(s, -1).to(q.dtype) @ v[b, h]
    torch.cuda.synchronize()
    return (q, k, v, dout, out, lse), calls, missing


def measure(head_dim, causal, n, dtype, tunings):
    """A cell's rates, ratios, spreads, and the time of each kernel of each candidate."""
    tensors, peers, missing = prepare_cell(head_dim, causal, n, dtype)
    calls = {name: ours(*tensors, causal, Tuning(**tuning)) for name, tuning in tunings.items()}
    expected = peers["cudnn"]() if "cudnn" in peers else None
    differences, same = {}, {}
    for name, call in calls.items():
        grads = call()
        if deterministic(Tuning(**tunings[name])):
            first = [x.clone() for x in grads]
            same[name] = all(torch.equal(a, b) for _ in range(RUNS) for a, b in zip(first, call()))
        if expected is not None:
            differences[name] = max(((a.float() - b.float()).norm() / b.float().norm()).item()
                                    for a, b in zip(grads, expected))
    times(peers | calls, 2)
    taken = times(peers | calls, ROUNDS)
    flops = 10 * TOKENS // n * (HIDDEN // head_dim) * n * n * head_dim / (2 if causal else 1)
    best = min((taken[name][0] for name in peers), default=None)
    record = {"cell": [head_dim, "causal" if causal else "full", n, dtype], "missing": missing,
              "tflops": {name: round(flops / t[0] / 1e9, 1) for name, t in taken.items()},
              "ratio_to_best_peer": {name: round(best / taken[name][0], 3) for name in calls} if best else None,
              "spread": {name: round((t[2] - t[1]) / t[0], 3) for name, t in taken.items()},
              "ms": {name: round(t[0], 4) for name, t in taken.items()},
              "same_bits": same,
              "difference_to_cudnn": {name: round(x, 5) for name, x in differences.items()},
              "steps_us": {name: step_times(call) for name, call in calls.items()}}
    print(json.dumps(record), flush=True)


def child(job, seconds):
    """Run `job` in a process of its own: (lines of JSON it printed, why it ended if not well)."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:  # workers may keep a pipe open
        process = subprocess.Popen([sys.executable, "-m", __spec__.name, ".", "--job", json.dumps(job)],
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        try:
            code, why = process.wait(seconds), ""
        except subprocess.TimeoutExpired:
            process.kill()
            code, why = 0, f"no answer in {seconds:.0f} s"
        output.seek(0)
        errors.seek(0)
        if code:
            why = (errors.read().strip() or "?").splitlines()[-1][:300]
        return [json.loads(line) for line in output.read().splitlines() if line.startswith("{")], why


def work(job):
    if job["kind"] == "check":
        check(job["head_dim"], job["causal"], Tuning(**job["tuning"]))
    elif job["kind"] == "autograd":
        check_autograd(job["head_dim"])
    else:
        for cell in CELLS:
            measure(job["head_dim"], job["causal"], *cell, job["tunings"])


def check_all(only, say):
    """Check the candidates: (are all right?, names and tunings of those that are, by head size and mask)."""
    jobs = [("autograd", (head_dim, True), "autograd", None) for head_dim in CANDIDATES] + [
        ("check", key, name, tuning) for key in HEADS for name, tuning in CANDIDATES[key[0]].items() if only in name]

    def run(job):
        kind, (head_dim, causal), _, tuning = job
        return child({"kind": kind, "head_dim": head_dim, "causal": causal, "tuning": tuning and asdict(tuning)}, 120.0)

    right = {key: {} for key in HEADS}
    all_right = True
    with ThreadPoolExecutor(10) as pool:
        for (kind, key, name, tuning), (lines, why) in zip(jobs, pool.map(run, jobs)):
            results = lines[-1] if lines else {}
            good = len(results) == (len(CALLS) if kind == "check" else 3) and all(r["right"] for r in results.values())
            all_right &= good
            say({"check": [key[0], "causal" if key[1] else "full", name], "tuning": tuning and asdict(tuning),
                 "right": good, "results": results, "not_run": why})
            if good and tuning:
                right[key][name] = asdict(tuning)
    return all_right, right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose name has this")
    parser.add_argument("--check-only", action="store_true", help="time nothing")
    parser.add_argument("--job")
    args = parser.parse_args()
    if args.job:
        work(json.loads(args.job))
        sys.stdout.flush()
        os._exit(0)  # without waiting for the workers of torch.compile
    if not torch.cuda.is_available():
        parser.error("this check needs an NVIDIA GPU that torch can use")
    args.folder.mkdir(parents=True, exist_ok=True)
    log = (args.folder / "results.jsonl").open("a")

    def say(record):
        log.write(json.dumps(record) + "\n")
        log.flush()
        print(json.dumps(record), flush=True)

    say({"device": torch.cuda.get_device_name(), "torch": torch.__version__})
    good, right = check_all(args.only, say)
    for (head_dim, causal), tunings in ({} if args.check_only else right).items():
        job = {"kind": "time", "head_dim": head_dim, "causal": causal, "tunings": tunings}
        lines, why = child(job, 120.0)
        for record in [*lines, *([{"not_timed": [head_dim, causal], "why": why}] if why else [])]:
            good &= all(record.get("same_bits", {}).values())
            say(record)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
