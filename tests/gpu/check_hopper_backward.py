"""The Hopper backward on a GPU: every candidate against float64, then what each costs beside its peers.

    python -m tests.gpu.check_hopper_backward FOLDER [--seconds 55] [--only SUBSTRING] [--cells ordered]

Appends one JSON line a check and a timing to FOLDER/results.jsonl and prints them; exit 1 if a candidate that ran is
wrong. Each candidate is checked in a process of its own, several at once, and each ordered one timed in one of its own,
with cuDNN as the measure of both, so one that hangs or crashes costs only itself. --cells ordered: no checks, and of
the timings only those at N 4096 in bfloat16, in at most 35 seconds. The limit of an error is 3 times that of eager
PyTorch in the same dtype plus the floor of its dtype. Times are CUDA events around every kernel of a backward, in
random order, 256 MB cleared before each; TFLOP/s count 10 B H N N D, half of it when causal. Deterministic forms must
give the same bits in every run. A peer that is not installed or refuses is named.
"""

import argparse
import contextlib
import importlib
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
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
TWO_PASSES = {128: Tuning(64, "none"),
              64: Tuning(64, "none", consumers=3, query_consumers=3, block_n=64, query_stages=4)}
BLOCK = {128: 64, 64: 128}  # queries a step of the ordered pass


def candidates(head_dim, causal):
    """Under a causal mask the later tiles of a head are short, so that they need more heads abreast."""
    m, other = BLOCK[head_dim], 8 if causal else 2
    return {"default": plan.ONE_PASS[head_dim], **({"reduce": Tuning(m, "reduce")} if head_dim == 64 else {}),
            "ordered, 4": Tuning(m, "reduce", 4), f"ordered, {other}": Tuning(m, "reduce", other),
            "ordered, 4, fenced": Tuning(m, "reduce", 4, True), "two passes": TWO_PASSES[head_dim]}


CANDIDATES = {key: candidates(*key) for key in HEADS}
# (name, batch, query heads, key heads, Nq, Nk, head size, window, dtype, dLSE)
CALLS = [("aligned", 2, 3, 3, 512, 512, None, (-1, -1), "bfloat16", False),
         ("tails", 2, 3, 3, 1000, 1000, None, (-1, -1), "bfloat16", False),
         ("fewer queries", 2, 3, 3, 300, 1000, None, (-1, -1), "bfloat16", True),
         ("groups, fewer keys: rows without keys", 1, 8, 2, 700, 333, None, (-1, -1), "float16", True),
         ("head size 40 or 96", 1, 4, 2, 513, 640, -24, (-1, -1), "bfloat16", False),
         ("window", 1, 4, 2, 900, 1100, None, (200, 50), "bfloat16", False),
         ("few tokens", 1, 2, 1, 1, 3, None, (-1, -1), "float16", False)]


FEWER = ("ordered, 2", "ordered, 8", "ordered, 4, fenced", "reduce")  # three calls: others have their code


def calls_of(name):
    return [CALLS[0], CALLS[3], CALLS[5]] if name in FEWER else CALLS


def deterministic(tuning):
    return tuning.dq_sum == "none" or tuning.ordered > 0


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


def check(head_dim, causal, tuning, calls):
    results = {}
    for call in calls:
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


def finish_or_end(name, seconds=5.0):
    """Wait for the device; end this process, saying what hangs, where that takes longer than `seconds`."""
    event, late = torch.cuda.Event(), time.monotonic() + seconds
    event.record()
    while not event.query():
        if time.monotonic() > late:
            print(json.dumps({"not_run": f"{name} did not finish in {seconds:.0f} s"}), flush=True)
            os._exit(1)
        time.sleep(0.001)


def step_times(call, rounds=5):
    """Median microseconds of each kernel of a backward, in its place: the ordered one needs the step before it."""
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


def prepare_cell(head_dim, causal, n, dtype, names):
    """Inputs of a cell, the peers as calls, and those that are missing."""
    heads = HIDDEN // head_dim
    q, k, v, dout = make(TOKENS // n, heads, heads, n, n, head_dim, getattr(torch, dtype))
    calls, missing = {}, {}
    makers = {"cudnn": lambda *a: sdpa(*a, "CUDNN_ATTENTION"), "sdpa flash": lambda *a: sdpa(*a, "FLASH_ATTENTION"),
              "fa4": fa4}
    for name in names:
        try:
            call = makers[name](q, k, v, dout, causal)
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


def measure(cell, peers, missing, calls, tunings, steps_too):
    """A cell's rates, ratios, spreads; steps_too: also each kernel of each candidate."""
    began = time.monotonic()
    head_dim, causal, n, _ = cell
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
    record = {"cell": [head_dim, "causal" if causal else "full", *cell[2:]], "missing": missing,
              "tflops": {name: round(flops / t[0] / 1e9, 1) for name, t in taken.items()},
              "ratio_to_best_peer": {name: round(best / taken[name][0], 3) for name in calls} if best else None,
              "spread": {name: round((t[2] - t[1]) / t[0], 3) for name, t in taken.items()},
              "ms": {name: round(t[0], 4) for name, t in taken.items()},
              "same_bits": same,
              "difference_to_cudnn": {name: round(x, 5) for name, x in differences.items()}}
    if steps_too:
        record["steps_us"] = {name: step_times(call) for name, call in calls.items()}
    return record | {"seconds": round(time.monotonic() - began, 1)}


def serve(job):
    """Prepare a job's cells; after a line of tunings on standard input run each once, then measure a cell a line."""
    cells = {(n, dtype): prepare_cell(job["head_dim"], job["causal"], n, dtype, job["peers"])
             for n, dtype in job["cells"]}
    tunings = json.loads(sys.stdin.readline())
    calls = {cell: {} for cell in cells}
    for cell, (tensors, _, _) in cells.items():
        for name, tuning in tunings.items():
            calls[cell][name] = ours(*tensors, job["causal"], Tuning(**tuning))
            if cell[1] == "bfloat16":  # what is compiled for float16 is compiled last
                calls[cell][name]()
                finish_or_end(name)
    print(json.dumps({"ready": list(tunings)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        n, dtype = cell = tuple(request["cell"])
        record = measure((job["head_dim"], job["causal"], n, dtype), *cells[cell][1:], calls[cell], tunings,
                         request["steps"])
        print(json.dumps(record), flush=True)


class Server:
    """A process of `serve`, whose answers are waited for at most so long; one that is late is ended."""

    def __init__(self, job, errors):
        self.process = subprocess.Popen([sys.executable, "-m", __spec__.name, ".", "--job", json.dumps(job)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.lines = queue.Queue()
        self.cells = [tuple(cell) for cell in job["cells"]]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
        self.lines.put({"not_run": "the process ended"})

    def ask(self, request):
        with contextlib.suppress(OSError):  # of a process that has ended, which `answer` reports
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def answer(self, seconds):
        try:
            return self.lines.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.process.kill()
            return {"not_run": f"no answer in {max(seconds, 0):.0f} s"}


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
        check(job["head_dim"], job["causal"], Tuning(**job["tuning"]), job["calls"])
    elif job["kind"] == "autograd":
        check_autograd(job["head_dim"])
    else:
        serve(job)


def check_all(seconds, only, say):
    """Check the candidates: (is one wrong?, names and tunings of those to time by head size and mask)."""
    end = time.monotonic() + seconds
    jobs = [("autograd", (head_dim, True), "autograd", None) for head_dim in BLOCK] + [
        ("check", key, name, tuning) for key in HEADS for name, tuning in CANDIDATES[key].items() if only in name]

    def run(job):
        kind, (head_dim, causal), name, tuning = job
        return child({"kind": kind, "head_dim": head_dim, "causal": causal, "calls": calls_of(name),
                      "tuning": tuning and asdict(tuning)}, max(5.0, min(50.0, end - time.monotonic())))

    wrong, right = False, {key: {} for key in HEADS}
    with ThreadPoolExecutor(14) as pool:
        for (kind, key, name, tuning), (lines, why) in zip(jobs, pool.map(run, jobs)):
            results = lines[-1] if lines else {}
            sound = all(r["right"] for r in results.values())
            good = sound and len(results) == (len(calls_of(name)) if kind == "check" else 3)
            wrong |= not sound
            say({"check": [key[0], "causal" if key[1] else "full", name], "tuning": tuning and asdict(tuning),
                 "right": good, "results": results, "not_run": why})
            if sound and "aligned" in results:  # as are the calls that are timed
                right[key][name] = asdict(tuning)
    return wrong, right


def start(cells, peers, errors):
    """Servers by (head size and mask, candidates): one for all that wait for nothing, one for each ordered one."""
    servers = {}
    for key in HEADS:
        names = CANDIDATES[key]
        for group in [tuple(x for x in names if not names[x].ordered), *((x,) for x in names if names[x].ordered)]:
            ordered = names[group[0]].ordered > 0
            job = {"kind": "serve", "head_dim": key[0], "causal": key[1], "peers": peers[:1] if ordered else peers,
                   "cells": [cell for cell in cells if not ordered or cell[1] == "bfloat16"]}
            servers[key, group] = Server(job, errors)
    return servers


def time_all(servers, right, prepared, end, say):
    """Ask the servers for their cells, the first cell of all first; do all deterministic forms repeat their bits?

    Until the time `prepared` all are waited for, so that none disturbs another; then who is ready is asked."""
    for (key, group), server in servers.items():
        server.ask({name: right[key][name] for name in group if name in right[key]})
    open_cells = [(cell, name) for cell in CELLS for name, server in servers.items() if cell in server.cells]
    preparing, ready, good = set(servers), set(), True
    while time.monotonic() < end - 1 and (left := [x for x in open_cells if x[1] in preparing | ready]):
        for name in [name for name in servers if name in preparing and not servers[name].lines.empty()]:
            preparing.remove(name)
            if (answer := servers[name].answer(1)).get("ready"):
                ready.add(name)
            elif "ready" not in answer:
                say({"server": described(name)} | answer)
        now = [x for x in left if x[1] in ready]
        if not now or (preparing and time.monotonic() < prepared):
            time.sleep(0.02)
            continue
        cell, name = now[0]
        open_cells.remove(now[0])
        servers[name].ask({"cell": cell, "steps": cell == CELLS[0]})
        record = servers[name].answer(min(12.0, end - time.monotonic()))
        good &= all(record.get("same_bits", {}).values())
        if "cell" not in record:
            ready.remove(name)  # its other cells are lost with it
        say(record if "cell" in record else {"cell": cell, "server": described(name)} | record)
    say({"seconds_left": round(end - time.monotonic(), 1), "not_timed": [[*x, described(y)] for x, y in open_cells]})
    return good


def described(server):
    (head_dim, causal), names = server
    return [head_dim, "causal" if causal else "full", *names]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--only", default="", help="candidates whose name has this")
    parser.add_argument("--cells", choices=["all", "ordered"], default="all")
    parser.add_argument("--job")
    args = parser.parse_args()
    if args.job:
        work(json.loads(args.job))
        sys.stdout.flush()
        os._exit(0)  # without waiting for the workers of torch.compile
    if not torch.cuda.is_available():
        parser.error("this check needs an NVIDIA GPU that torch can use")
    args.folder.mkdir(parents=True, exist_ok=True)
    short = args.cells == "ordered"
    end = time.monotonic() + (min(30.0, args.seconds) if short else args.seconds)  # and 5 to begin
    log = (args.folder / "results.jsonl").open("a")

    def say(record):
        log.write(json.dumps(record) + "\n")
        log.flush()
        print(json.dumps(record), flush=True)

    errors = (args.folder / "errors.txt").open("w")
    peers = ["cudnn"] if short else ["cudnn", "sdpa flash", "fa4"]
    servers = start(CELLS[:1] if short else CELLS, peers, errors)
    wrong, right = False, {key: {name: asdict(tuning) for name, tuning in CANDIDATES[key].items()
                                 if args.only in name} for key in HEADS}
    if not short:
        wrong, right = check_all(end - 22 - time.monotonic(), args.only, say)
    say({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
         "seconds_left_after_checks": round(end - time.monotonic(), 1)})
    good = time_all(servers, right, end - (8 if short else 15), end, say)
    for server in servers.values():
        server.process.kill()
    return int(wrong or not good)


if __name__ == "__main__":
    sys.exit(main())
