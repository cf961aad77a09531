"""Decoding on a GPU: exact against float64, and how near its reads come to the device's copy bandwidth.

    python -m tests.gpu.check_decode --out DIR

Writes decode.json and prints the same as a table; exit 1 if a result is wrong. Takes about a minute: candidates that
would start after BUDGET_S are listed as not run.
Bytes of a call are those it must move: the keys and values within the lengths, Q, O and LSE; partial results of the
splits are not counted. The rate is those bytes over the median of CUDA events around a replay of the whole call, merge
included, captured as a CUDA graph: Python launches more slowly than the small shapes run.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import triton

from kernels.decode import choose_splits, choose_tuning, flash_attention_decode

REPEATS = 20
BUDGET_S = 50
# name, batch, query heads, KV heads, queries, keys, head size, dtype, page size (0: contiguous), further options
EXACT = [
    ("MHA", 2, 4, 4, 1, 1000, 64, torch.float16, 0, {}),
    ("GQA 32/8", 3, 32, 8, 1, 4097, 128, torch.bfloat16, 0, {}),
    ("GQA 6/2, 5 queries", 3, 6, 2, 5, 777, 80, torch.bfloat16, 0, {}),
    ("MQA, 16 queries", 2, 32, 1, 16, 1500, 128, torch.float16, 0, {}),
    ("D 256, 64 rows", 2, 16, 2, 8, 600, 256, torch.bfloat16, 0, {}),
    ("float32", 2, 8, 2, 3, 900, 128, torch.float32, 0, {}),
    ("D 59", 2, 4, 2, 2, 300, 59, torch.float16, 0, {}),
    ("pages of 24", 3, 8, 2, 4, 1001, 64, torch.float16, 24, {}),
    ("window 100, softcap", 2, 8, 2, 2, 3000, 64, torch.float16, 0, {"window": (99, -1), "softcap": 5.0}),
    ("65,600 heads", 8200, 8, 8, 1, 33, 16, torch.float16, 0, {}),
]
# name, batch, query heads, KV heads, keys, page size; one query, head size 128, bfloat16
TIMED = [("B32 N32k 32/8", 32, 32, 8, 32768, 0), ("B32 N32k 32/8, pages of 64", 32, 32, 8, 32768, 64),
         ("B4 N16k 32/8", 4, 32, 8, 16384, 0), ("B1 N32k 32/8", 1, 32, 8, 32768, 0)]
CANDIDATES = [{"block_n": n, "num_warps": w, "num_stages": s} for n, w, s in (
    (64, 4, 2), (64, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 3), (32, 4, 4), (64, 4, 5), (128, 4, 3), (32, 4, 3))]


def median_seconds(call, repeats=REPEATS):
    """Median device time of a call, by CUDA events around replays of its CUDA graph, the first two not counted."""
    for _ in range(2):
        call()  # compiles and loads, which a capture may not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(2):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3


def caches(batch, kv_heads, n, dim, dtype, page_size):
    """K and V as the function takes them, and the page table (None where contiguous); pages in random order."""
    if not page_size:
        return *(torch.randn(batch, kv_heads, n, dim, device="cuda", dtype=dtype) for _ in range(2)), None
    per = triton.cdiv(n, page_size)
    table = torch.randperm(batch * per, device="cuda").reshape(batch, per).to(torch.int32)
    return *(torch.randn(batch * per, page_size, kv_heads, dim, device="cuda", dtype=dtype) for _ in range(2)), table


def gathered(cache, table, b, length):
    """Keys of one sequence, (Hk, length, D)."""
    return cache[b, :, :length] if table is None else cache[table[b].long()].flatten(0, 1)[:length].transpose(0, 1)


def expected(q, keys, values, dtype, window=(-1, -1), softcap=0.0):
    """Causal attention of one sequence written out in `dtype`: q (Hq, Nq, D), keys, values (Hk, length, D)."""
    group, nq, length = q.shape[0] // keys.shape[0], q.shape[1], keys.shape[1]
    keys, values = (x.to(dtype).repeat_interleave(group, 0) for x in (keys, values))
    scores = q.to(dtype) @ keys.mT * q.shape[2] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    distance = (torch.arange(length, device=q.device) - torch.arange(nq, device=q.device)[:, None]) - (length - nq)
    hidden = (distance > 0) | ((distance < -window[0]) if window[0] >= 0 else False)
    scores = scores.masked_fill(hidden, float("-inf"))
    nothing = hidden.all(1)[:, None]
    return torch.where(nothing, 0, scores.softmax(-1)) @ values, scores.logsumexp(-1)


def exactness(name, batch, heads, kv_heads, nq, n, dim, dtype, page_size, options):
    """Largest error against float64, as a share of what is allowed (2× eager PyTorch's own error plus a floor)."""
    torch.manual_seed(0)
    q = torch.randn(batch, heads, nq, dim, device="cuda", dtype=dtype)
    k, v, table = caches(batch, kv_heads, n, dim, dtype, page_size)
    lengths = torch.randint(0, n + 1, (batch,), dtype=torch.int32)
    lengths[0], lengths[-1] = n, 0
    if table is None:
        for b, length in enumerate(lengths.tolist()):
            k[b, :, length:], v[b, :, length:] = float("nan"), float("nan")
    floor = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}[dtype]
    worst = 0.0
    sampled = sorted({0, batch // 2, batch - 1})
    for splits in (None, 1, 7):
        o, lse = flash_attention_decode(q, k, v, cache_seqlens=lengths.cuda(), page_table=table, num_splits=splits,
                                        return_lse=True, **options)
        if not bool(o.isfinite().all()):
            return {"name": name, "worst_share_of_allowed": None, "holds": False}
        for b in sampled:
            length = int(lengths[b])
            if length == 0:
                worst = max(worst, 0.0 if not o[b].any() and bool((lse[b] == float("-inf")).all()) else float("inf"))
                continue
            keys, values = (gathered(x, table, b, length) for x in (k, v))
            exact, exact_lse = expected(q[b], keys, values, torch.float64, **options)
            eager, _ = expected(q[b], keys, values, dtype, **options)
            allowed = 2 * (eager.double() - exact).abs().max() + floor * exact.abs().max()
            seen = exact_lse.isfinite()
            same_rows = bool((lse[b].isfinite() == seen).all())
            lse_share = (lse[b] - exact_lse)[seen].abs().max() / (1e-3 if dtype != torch.float32 else 1e-4)
            share = max(((o[b].double() - exact).abs().max() / allowed).item(), lse_share.item())
            worst = max(worst, share if same_rows else float("inf"))
    return {"name": name, "worst_share_of_allowed": worst, "holds": worst <= 1}


def timings(name, batch, heads, kv_heads, n, page_size, copy_bytes_per_s, deadline):
    """One row for each candidate: median time, compulsory bytes a second, and their ratio to the copy."""
    dim, dtype, sm_count = 128, torch.bfloat16, torch.cuda.get_device_properties(0).multi_processor_count
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=dtype)
    k, v, table = caches(batch, kv_heads, n, dim, dtype, page_size)
    lengths = torch.full((batch,), n, dtype=torch.int32, device="cuda")
    nbytes = 2 * batch * kv_heads * n * dim * 2 + 2 * q.numel() * 2 + batch * heads * 4
    chosen = choose_tuning(heads // kv_heads, dim, 2, bool(page_size))
    auto = choose_splits(batch * kv_heads, n, sm_count)
    others = sorted({1, 2, 4, 8, 16, 32, max(1, auto // 2), min(256, 2 * auto)} - {auto})
    trials = [({}, auto)] + [({}, splits) for splits in others] + [(tuning, auto) for tuning in CANDIDATES]
    rows = []
    for tuning, splits in trials:
        row = {"name": name, "nbytes": nbytes, "splits": splits, **vars(chosen), **tuning,
               "chosen": not tuning and splits == auto, "seconds": None, "bytes_per_s": None, "of_copy": None}

        def call(tuning=tuning, splits=splits):
            return flash_attention_decode(q, k, v, cache_seqlens=lengths, page_table=table, tuning=tuning,
                                          num_splits=splits)
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("not run, the time budget is spent")
            seconds = median_seconds(call)
        except Exception as error:  # a candidate that the device cannot hold is a result, not the end
            row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        else:
            row |= {"seconds": seconds, "bytes_per_s": nbytes / seconds, "of_copy": nbytes / seconds / copy_bytes_per_s}
        rows.append(row)
    return rows


def copy_rate():
    """Bytes read and written a second by an elementwise kernel over 4 GiB.

    Not copy_: in a CUDA graph that is a copy node, which ran at 2.77 TB/s on an H200 where the kernel runs above 4.
    """
    source = torch.empty(2**30, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: torch.neg(source, out=target))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for decode.json")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        sys.exit("No CUDA device: this check measures one.")
    torch.backends.cuda.matmul.allow_tf32 = False
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
              "repeats": REPEATS, "exact": [], "copy_bytes_per_s": None, "timed": []}

    deadline = time.monotonic() + BUDGET_S

    def save():
        (out / "decode.json").write_text(json.dumps(result, indent=1))

    for case in EXACT:
        row = exactness(*case)
        result["exact"].append(row)
        print("ok   " if row["holds"] else "WRONG", f"{row['name']:<20} largest error / allowed",
              row["worst_share_of_allowed"], flush=True)
    save()
    result["copy_bytes_per_s"] = copy = copy_rate()
    print(f"copy {copy / 1e12:.3f} TB/s, read and write", flush=True)
    for case in TIMED:
        torch.cuda.empty_cache()
        for row in timings(*case, copy, deadline):
            result["timed"].append(row)
            text = row.get("failed") or (f"{row['seconds'] * 1e6:9.1f} µs  {row['bytes_per_s'] / 1e12:6.3f} TB/s"
                                         f"  {100 * row['of_copy']:5.1f} % of copy")
            print(f"{row['name']:<27} n {row['block_n']:<3} warps {row['num_warps']} stages {row['num_stages']}"
                  f" splits {row['splits']:<3} {text}{'  <- chosen' if row['chosen'] else ''}", flush=True)
        save()
    return 0 if all(row["holds"] for row in result["exact"]) else 1


if __name__ == "__main__":
    sys.exit(main())
