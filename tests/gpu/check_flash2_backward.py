"""FlashAttention-2 backward on a GPU: every candidate configuration exact, then what each costs beside SDPA's backward.

    python -m tests.gpu.check_flash2_backward --out DIR

Writes flash2_backward.json and prints the same as tables; exit 1 if a candidate that ran is wrong. Each candidate is
checked in a process of its own (SECONDS at most, several at once), so one that hangs or fails to compile costs only
itself.
Errors are against float64 on tensors that were full of NaN; the limit is 3 times the error of eager PyTorch in bfloat16
plus 4e-3 of the largest gradient. Times are CUDA events, L2 flushed before each, median of 20; TFLOP/s count
10·B·H·N·N·D, half of it when causal, and every kernel of the backward.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.backward_plan import TMA, Pass, Tuning
from kernels.flash2_backward import flash2_backward, launches
from kernels.reference import reference_attention

SECONDS, REPEATS, TOKENS, HIDDEN, N = 60, 20, 16384, 2048, 4096
# (pass, seed): the pass over keys of two; the one pass with atomics; the pass over queries
KEYS = {
    64: [(Pass(64, 64, 4, 2, 168), False), (Pass(64, 64, 4, 3, 168), False), (Pass(64, 64, 4, 2), True),
         (Pass(64, 128, 8, 2), False), (Pass(64, 128, 8, 2), True), (Pass(64, 128, 8, 3), True),
         (Pass(128, 128, 8, 2), True), (Pass(128, 64, 4, 2), True)],
    128: [(Pass(64, 64, 4, 2), False), (Pass(64, 64, 4, 2), True), (Pass(64, 128, 8, 2), False),
          (Pass(64, 128, 8, 2), True), (Pass(64, 128, 8, 3), False)],
}
ATOMIC = {
    64: [(Pass(64, 64, 4, 2), False), (Pass(64, 128, 8, 2), True), (Pass(64, 128, 8, 2), False),
         (Pass(128, 128, 8, 2), True)],
    128: [(Pass(64, 128, 8, 2), True), (Pass(64, 64, 4, 1), True)],
}
QUERIES = {
    64: [Pass(128, 64, 8, 2), Pass(128, 64, 8, 3), Pass(64, 64, 4, 2), Pass(64, 64, 4, 3), Pass(128, 128, 8, 2),
         Pass(64, 128, 4, 2)],
    128: [Pass(128, 64, 8, 2), Pass(128, 64, 8, 3), Pass(64, 64, 4, 2), Pass(128, 128, 8, 2), Pass(64, 128, 4, 1)],
}


def candidates(head_dim, causal):
    """(kind, tuning) of every candidate; the other pass is the table's."""
    base = TMA[head_dim, causal]
    for p, seed in KEYS[head_dim]:
        yield "keys", Tuning(p, base.queries, seed, True)
    for p, seed in ATOMIC[head_dim]:
        yield "one pass", Tuning(p, None, seed, True)
    for p in QUERIES[head_dim]:
        yield "queries", Tuning(base.keys, p, base.seed, True)
    if head_dim == 64:
        yield "keys", Tuning(Pass(64, 64, 4, 2), Pass(64, 64, 4, 2), False, False)  # pointers


def make(batch, heads, kv_heads, nq, nk, head_dim, dtype=torch.bfloat16):
    torch.manual_seed(0)
    sizes = ((heads, nq), (kv_heads, nk), (kv_heads, nk), (heads, nq))
    return [torch.randn(batch, h, n, head_dim, device="cuda", dtype=dtype) for h, n in sizes]


def eager(q, k, v, dout, causal):
    """Gradients by plain PyTorch in the inputs' dtype; needs Nq <= Nk, so that every row sees a key."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in leaves[1:])
    s = leaves[0] @ keys.transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        nq, nk = s.shape[2:]
        s = s.masked_fill(~torch.ones(nq, nk, dtype=torch.bool, device="cuda").tril(nk - nq), float("-inf"))
    return torch.autograd.grad(torch.softmax(s, -1) @ values, leaves, dout)


def worst_error(head_dim, causal, tuning):
    """The largest error over its limit, of dq, dk and dv over the shapes."""
    worst = 0.0
    for batch, heads, kv_heads, nq, nk in ((2, 4, 4, 512, 512), (1, 4, 2, 301, 403)):
        q, k, v, dout = make(batch, heads, kv_heads, nq, nk, head_dim)
        leaves = [x.double().requires_grad_() for x in (q, k, v)]
        out, lse = reference_attention(*leaves, causal=causal)
        exact = torch.autograd.grad(out, leaves, dout.double())
        grads = tuple(torch.full_like(x, float("nan")) for x in (q, k, v))
        flash2_backward(dout, q, k, v, out.detach().bfloat16(), lse.detach().float(), causal=causal, tuning=tuning,
                        grads=grads)
        for g, r, e in zip(grads, exact, eager(q, k, v, dout, causal)):
            limit = 3 * (e.double() - r).abs().max() + 4e-3 * r.abs().max()
            ratio = ((g.double() - r).abs().max() / limit).item()
            worst = ratio if ratio != ratio else max(worst, ratio)  # NaN stays
            if worst != worst:
                return worst
    return worst


def rebuild(data):
    passes = [None if p is None else Pass(*p) for p in data[:2]]
    return Tuning(*passes, *data[2:])


def flat(tuning):
    return [tuning.keys, tuning.queries, tuning.seed, tuning.tma]


def child(job):
    """Run `job` in a process of its own: (result, "") or (None, why not)."""
    try:
        done = subprocess.run([sys.executable, "-m", __spec__.name, "--job", json.dumps(job)], capture_output=True,
                              text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"no answer in {SECONDS} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, lines[-1][:300] if lines else f"exit {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""


def median_ms(calls):
    """Median device time of each of the named calls, interleaved, L2 flushed before each."""
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    for call in calls.values():
        for _ in range(3):
            call()
    events = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}


def peers(q, k, v, dout, causal):
    """An output, and the backward of SDPA's two backends as calls; a backend that refuses is absent."""
    calls, out_of_first = {}, None
    for name, backend in (("sdpa_flash", SDPBackend.FLASH_ATTENTION), ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        try:
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
            calls[name] = lambda o=out, leaves=leaves: torch.autograd.grad(o, leaves, dout, retain_graph=True)
            calls[name]()
        except RuntimeError as error:
            calls.pop(name, None)
            print(f"{name} refused: {error}", file=sys.stderr)
            continue
        out_of_first = out.detach() if out_of_first is None else out_of_first
    return out_of_first, calls


def timings(head_dim, causal, tunings):
    """Times in ms at N 4096: each pass alone, then the whole backward of the best pair, one pass, and the peers."""
    heads = HIDDEN // head_dim
    q, k, v, dout = make(TOKENS // N, heads, heads, N, N, head_dim)
    out, calls = peers(q, k, v, dout, causal)
    lse = torch.empty(q.shape[:3], device="cuda")
    scale = head_dim**-0.5
    for b, h in itertools.product(range(q.shape[0]), range(heads)):
        s = (q[b, h] @ k[b, h].T).float() * scale
        if causal:
            s.masked_fill_(~torch.ones_like(s, dtype=torch.bool).tril(), float("-inf"))
        lse[b, h] = torch.logsumexp(s, -1)
    grads = tuple(torch.empty_like(x) for x in (q, k, v))

    def steps(tuning):
        listed = list(launches(dout, q, k, v, out, lse, left=-1, right=0 if causal else -1, scale=scale, dlse=None,
                               tuning=tuning, grads=grads))
        for kernel, programs, args, options in listed:
            kernel[(programs,)](*args, **options)  # statistics and sums exist before a pass is timed alone
        return {kernel.__name__: (lambda k=kernel, p=programs, a=args, o=options: k[(p,)](*a, **o))
                for kernel, programs, args, options in listed}

    alone = {}
    for index, (kind, tuning) in enumerate(tunings):
        named = steps(tuning)
        alone[str(index)] = named["_query_pass" if kind == "queries" else "_key_pass"]
        alone.setdefault("prepare", named["_prepare"])
    passes = median_ms(alone)

    def best(kind):
        indices = [i for i, (what, tuning) in enumerate(tunings) if what == kind and tuning.tma]
        return min(indices, key=lambda i: passes[str(i)], default=None)

    def whole(tuning):
        return lambda: flash2_backward(dout, q, k, v, out, lse, causal=causal, tuning=tuning, grads=grads)

    table = TMA[head_dim, causal]
    chosen = {"table": table}
    if best("keys") is not None and best("queries") is not None:
        key, query = tunings[best("keys")][1], tunings[best("queries")][1]
        chosen["best two passes"] = Tuning(key.keys, query.queries, key.seed, True)
    if best("one pass") is not None:
        chosen["best one pass"] = tunings[best("one pass")][1]
    calls |= {name: whole(tuning) for name, tuning in chosen.items()}
    whole_ms = median_ms(calls)
    flops = 10 * q.shape[0] * heads * N * N * head_dim / (2 if causal else 1)
    return {"passes_ms": passes, "whole_ms": whole_ms,
            "whole_tflops": {name: flops / ms / 1e9 for name, ms in whole_ms.items()},
            "chosen": {name: flat(tuning) for name, tuning in chosen.items()}}


def deterministic():
    """Differing runs among 30 of the table's configuration, GQA 8/2, causal."""
    q, k, v, dout = make(2, 8, 2, 777, 1000, 128)
    out, lse = reference_attention(q, k, v, causal=True)
    out, lse = out.bfloat16(), lse.float()
    first = flash2_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)
    differing = 0
    for _ in range(29):
        again = flash2_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)
        differing += not all(torch.equal(a, b) for a, b in zip(first, again))
    return differing


def work(job):
    kind, *rest = job
    if kind == "error":
        return worst_error(rest[0], rest[1], rebuild(rest[2]))
    if kind == "timings":
        return timings(rest[0], rest[1], [(name, rebuild(data)) for name, data in rest[2]])
    return deterministic()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(work(json.loads(args.job))))
        return 0
    if args.out is None:
        parser.error("--out is required")
    if not torch.cuda.is_available():
        parser.error("this check needs an NVIDIA GPU that torch can use")
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    cells = list(itertools.product((64, 128), (False, True)))
    jobs = [(d, causal, kind, tuning) for d, causal in cells for kind, tuning in candidates(d, causal)]
    with ThreadPoolExecutor(14) as pool:
        repeat = pool.submit(child, ["deterministic"])
        errors = list(pool.map(lambda j: child(["error", j[0], j[1], flat(j[3])]), jobs))
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "candidates": [], "cells": []}
    wrong = False
    print(f"{'D':>4} {'mask':6} {'kind':9} candidate: error over limit")
    for (d, causal, kind, tuning), (ratio, why) in zip(jobs, errors):
        bad = ratio is not None and not ratio <= 1
        wrong |= bad
        record["candidates"].append({"head_dim": d, "causal": causal, "kind": kind, "tuning": flat(tuning),
                                     "error_over_limit": ratio if ratio == ratio else "nan", "not_run": why})
        mask, verdict = "causal" if causal else "full", why or f"{ratio:.2f}"
        print(f"{d:4} {mask:6} {kind:9} {flat(tuning)}: {verdict}{' WRONG' * bad}")
    differing, why = repeat.result()
    record["deterministic"] = {"runs": 30, "differing": differing, "not_run": why}
    wrong |= differing != 0
    print(f"deterministic, 30 runs: {why or f'{differing} differ from the first'}")
    for d, causal in cells:
        good = [(kind, flat(t)) for (dd, c, kind, t), (ratio, _) in zip(jobs, errors)
                if (dd, c) == (d, causal) and ratio is not None and ratio <= 1]
        result, why = child(["timings", d, causal, good])
        record["cells"].append({"head_dim": d, "causal": causal, "candidates": good, "result": result, "not_run": why})
        print(f"\nD {d} {'causal' if causal else 'full'}, N {N}: {why}")
        if result is None:
            wrong = True
            continue
        for index, (kind, tuning) in enumerate(good):
            print(f"  {result['passes_ms'][str(index)]:7.3f} ms  {kind:9} {tuning}")
        print(f"  {result['passes_ms']['prepare']:7.3f} ms  prepare")
        base = result["whole_tflops"].get("sdpa_flash")
        for name, rate in result["whole_tflops"].items():
            print(f"  {rate:7.1f} TFLOP/s  {name}{f', {rate / base:.2f} of sdpa_flash' if base else ''} "
                  f"{result['chosen'].get(name, '')}")
        (args.out / "flash2_backward.json").write_text(json.dumps(record, indent=1))
    record["seconds"] = time.monotonic() - began
    (args.out / "flash2_backward.json").write_text(json.dumps(record, indent=1))
    print(f"{record['seconds']:.0f} s")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
