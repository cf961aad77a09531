"""Check every form of the Hopper forward on this GPU, then time those that are right beside their peers.

    python -m tests.gpu.check_hopper FOLDER [--seconds 100] [--cells NAMES]

Checks run in processes of their own, several at a time, each with a time limit: a hang or a crash costs one form. Then
each cell runs its forms and peers in one process, in random order, L2 flushed before each call and a round's calls
queued before the first begins; medians of CUDA-event times. One JSON line a check and a cell, also in
FOLDER/results.jsonl. NAMES: forms to check, with commas between; "packed" is timed on packed sequences, "chosen" on
the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

TOKENS, HIDDEN = 16_384, 2_048
PEERS = ("sdpa_flash", "sdpa_cudnn", "fa3", "fa4")
SECONDS = {"packed": 25, "packed_alone": 25}  # of a process that checks a form, else 75; of the times of packed alone
FLOOR = {"float16": 5e-4, "bfloat16": 4e-3}
# What a form changes in the configuration that kernels.hopper_plan.choose gives, packed that of kernels.hopper_varlen
FORMS: dict[str, dict[str, Any]] = {
    "max": {"fixed": False}, "fixed": {"late": False}, "late": {"late": True},
    "two": {"consumers": 2, "ahead": True}, "three": {"consumers": 3, "ahead": False}, "packed": {},
    "packed_alone": {"ahead": False}}
FORMS_OF = {64: ("max", "two", "three"), 128: ("max", "fixed", "late")}
TIMED = ("chosen",)  # the others are right, and were timed: kernels.hopper_plan has what they gave
# name: dtype, batch, heads, key heads, Nq, Nk, D, causal, window, how the tensors lie
ODD = [(1, 2, 2, n, n, causal, (-1, -1)) for n in (64, 77, 1000, 3001, 4097) for causal in (False, True)]
SHAPES = [(1, 4, 1, 113, 203, True, (-1, -1)), (2, 4, 2, 1023, 1024, True, (-1, -1)), (1, 2, 2, 3, 799, True, (-1, -1)),
          (1, 2, 2, 300, 40, True, (-1, -1)), (1, 2, 1, 5, 2, True, (-1, -1)), (1, 2, 2, 500, 1300, False, (-1, -1)),
          (1, 3, 3, 1, 1, True, (-1, -1)), (2, 4, 4, 900, 900, False, (100, 40)), (1, 4, 2, 2049, 2049, True, (255, 0)),
          (1, 2, 2, 700, 1100, False, (-1, 30)), (1, 2, 2, 700, 500, False, (64, -1)),
          (1, 2, 2, 640, 640, False, (0, 0)), (1, 2, 1, 1024, 1088, True, (-1, -1))]


def jobs() -> list[dict[str, Any]]:
    """One job a process: a form, a head size and its cases."""
    found = []
    for head_dim in (128, 64):
        for form in FORMS_OF[head_dim]:
            cases = [(*shape, head_dim, "bfloat16", "plain") for shape in ODD]
            cases += [(4, 16, 16, 4096, 4096, causal, (-1, -1), head_dim, "bfloat16", "large")
                      for causal in (False, True)]
            found.append({"form": form, "head_dim": head_dim, "cases": cases})
    for head_dim in (128, 64, 256):
        for part in (SHAPES[:6], SHAPES[6:]):
            found.append({"form": "chosen", "head_dim": head_dim,
                          "cases": [(*shape, head_dim, "bfloat16", "plain") for shape in part]})
    for dtype in ("float16", "bfloat16"):
        found.append({"form": "chosen", "head_dim": 0, "cases": [
            (1, 4, 2, 777, 777, causal, (-1, -1), d, dtype, lay) for d, causal, lay in (
                (40, True, "plain"), (96, False, "plain"), (192, True, "plain"), (256, False, "plain"),
                (64, True, "tokens"), (128, False, "fused"), (128, True, "tokens"), (8, True, "plain"))]
            + [(1, 2, 2, 2100, 2100, causal, (-1, -1), 64, dtype, "plain") for causal in (False, True)]})
    for head_dim, form in ((128, "max"), (64, "max")):
        found.append({"form": form, "head_dim": head_dim, "cases": [
            (1, 2, 2, 2304, 2304, causal, (-1, -1), head_dim, "float16", "plain") for causal in (False, True)]})
    for head_dim in (128, 64):
        found.append({"form": "chosen", "head_dim": head_dim, "cases": [
            (1, 8, 2, 2304, 2304, False, (-1, -1), head_dim, "bfloat16", "plain"),
            (1, 8, 2, 2304, 2304, True, (-1, -1), head_dim, "bfloat16", "plain"),
            (1, 8, 8, 2304, 2304, True, (1023, 0), head_dim, "bfloat16", "plain")]})
    pairs = [PACKED[i:i + 2] for i in range(0, len(PACKED), 2)]
    alone = [(PACKED[0], PACKED[4]), (PACKED[1], PACKED[3])]  # a configuration each
    for form, head_dim, dtype, parts in (
            ("packed", 128, "bfloat16", pairs), ("packed", 64, "bfloat16", pairs),
            ("packed_alone", 128, "bfloat16", alone), ("packed_alone", 64, "bfloat16", alone),
            ("packed", 256, "bfloat16", pairs[2:]), ("packed", 128, "float16", pairs[1:3])):
        found += [{"form": form, "head_dim": head_dim, "dtype": dtype, "cases": part} for part in parts]
    found.append({"form": "chosen", "head_dim": 1, "cases": [
        (1, 2, 2, 1000, 1000, causal, (-1, -1), d, dtype, lay) for lay in ("sink", "growing", "low", "huge")
        for d, causal, dtype in ((128, False, "bfloat16"), (64, True, "bfloat16"), (128, True, "float16"))]})
    return found


def tensors(case: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch

    batch, heads, kv_heads, nq, nk, _, _, head_dim, dtype, lay = case
    torch.manual_seed(0)
    kind = getattr(torch, dtype)

    def make(h: int, n: int) -> Any:
        if lay == "tokens":
            return torch.randn(batch, n, h, head_dim, device="cuda", dtype=kind).transpose(1, 2)
        if lay == "fused":
            return torch.randn(batch, n, h, 3, head_dim, device="cuda", dtype=kind)[..., 1, :].transpose(1, 2)
        return torch.randn(batch, h, n, head_dim, device="cuda", dtype=kind)

    q, k, v = make(heads, nq), make(kv_heads, nk), make(kv_heads, nk)
    if lay == "sink":  # the first key, which is met last, has by far the largest score of all
        q = q.abs()
        k[:, :, 0] = 30
    elif lay == "growing":  # scores grow towards the first key
        q = q.abs()
        k = -torch.linspace(0, 12, nk, device="cuda", dtype=kind)[None, None, :, None].expand_as(k).contiguous()
        k = k + torch.randn_like(k)
        k = k.flip(2).contiguous() if head_dim == 64 else k.contiguous()
    elif lay == "low":
        q, k = q.abs() * 100, -k.abs() * 100
    elif lay == "huge":
        q, k = q * 20, k * 20
    return q, k, v


def visible(nq: int, nk: int, causal: bool, window: tuple[int, int]) -> Any:
    import torch

    i = torch.arange(nq, device="cuda")[:, None] + nk - nq
    j = torch.arange(nk, device="cuda")[None, :]
    left, right = window
    seen = torch.ones(nq, nk, dtype=torch.bool, device="cuda")
    if causal or right >= 0:
        seen &= j <= i + (0 if causal else right)
    if left >= 0:
        seen &= j >= i - left
    return seen


def attention(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """By definition in the tensors' own type, with the rows that see nothing 0; (out, lse)."""
    import torch

    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~seen, float("-inf"))
    out = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0) @ v
    return out, torch.logsumexp(scores.double(), -1)


def run_form(form: str, q: Any, k: Any, v: Any, causal: bool, window: tuple[int, int]) -> tuple[Any, Any]:
    """out and lse of a form, on outputs that held NaN."""
    import torch

    from kernels import hopper, hopper_plan
    from kernels.options import Options

    left, right = window[0], 0 if causal else window[1]
    config = configured(form, hopper_plan.choose(q, k, Options(left=left, right=right)))
    out = torch.full(q.shape, float("nan"), device="cuda", dtype=q.dtype)
    return hopper.forward(q, k, v, config, scale=q.shape[3] ** -0.5, left=left, right=right, out=out)


def configured(form: str, config: Any) -> Any:
    return config if form == "chosen" else replace(config, **FORMS[form])


def check(job: dict[str, Any]) -> None:
    """Print one line a case: errors of out and lse against float64, and eager's."""
    import torch

    if job["form"].startswith("packed"):
        return check_packed(job)
    for case in job["cases"]:
        nq, nk, causal, window, dtype, lay = *case[3:6], tuple(case[6]), *case[8:]
        q, k, v = tensors(case)
        started = time.time()
        out, lse = run_form(job["form"], q, k, v, causal, window)
        again, _ = run_form(job["form"], q, k, v, causal, window)
        torch.cuda.synchronize()
        line: dict[str, Any] = {"check": job["form"], "case": case, "seconds": round(time.time() - started, 1),
                                "same": bool(torch.equal(out, again))}
        if lay == "large":
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                peer = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            line["against_sdpa"] = float((out.float() - peer.float()).abs().max() / peer.float().abs().max())
            q, k, v, out, lse = q[:1, :2], k[:1, :2], v[:1, :2], out[:1, :2], lse[:1, :2]
        seen = visible(nq, nk, causal, window)
        expected, expected_lse = attention(q.double(), k.double(), v.double(), seen)
        eager, _ = attention(q, k, v, seen)
        size = float(expected.abs().max()) or 1.0
        line["error"] = float((out.double() - expected).abs().max()) / size
        line["eager_error"] = float((eager.double() - expected).abs().max()) / size
        blind = torch.isinf(expected_lse)
        line["blind_right"] = bool((torch.isinf(lse) == blind).all()) and bool((lse[blind] < 0).all())
        line["lse_error"] = float((lse.double() - expected_lse)[~blind].abs().max()) if bool((~blind).any()) else 0.0
        limit = 2 * line["eager_error"] + FLOOR[dtype]
        line["ok"] = (line["same"] and line["blind_right"] and line["error"] <= limit
                      and line["lse_error"] <= 1e-4 * max(1.0, float(expected_lse[~blind].abs().max())
                                                           if bool((~blind).any()) else 1.0)
                      and line.get("against_sdpa", 0.0) <= 1e-2)
        print(json.dumps(line), flush=True)


LENGTHS = (1024, 5003, 2048, 8192 - 1, 118)  # of packed sequences: 16,384 in all
PACKED = [(LENGTHS, LENGTHS, True, (-1, -1)), (LENGTHS, LENGTHS, False, (-1, -1)), (LENGTHS, LENGTHS, True, (1023, 0)),
          ((300, 1, 0, 513, 128, 77), (300, 1, 0, 513, 128, 77), False, (-1, -1)),
          ((300, 1, 0, 513, 128, 77), (300, 1, 0, 513, 128, 77), True, (-1, -1)),
          ((300, 1, 0, 513, 128, 77), (10, 700, 5, 0, 400, 1000), True, (-1, -1)),
          ((300, 1, 0, 513, 128, 77), (10, 700, 5, 0, 400, 1000), False, (-1, -1)),
          ((300, 1, 0, 513, 128, 77), (10, 700, 5, 0, 400, 1000), False, (40, 30))]


def packed_tensors(lengths: Any, key_lengths: Any, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Any:
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(n), h, head_dim, device="cuda", dtype=getattr(torch, dtype))
               for n, h in ((lengths, heads), (key_lengths, kv_heads), (key_lengths, kv_heads)))
    cu_q = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    cu_k = cu_q if key_lengths == lengths else torch.tensor([0, *accumulate(key_lengths)], dtype=torch.int32,
                                                            device="cuda")
    return q, k, v, cu_q, cu_k


def run_packed(form: str, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, on: Any
               ) -> tuple[Any, Any]:
    """out and lse of a packed form."""
    from kernels import hopper_varlen

    alike = hopper_varlen.are_alike(cu_q, cu_k, max_q, max_k)
    config = configured(form, hopper_varlen.choose(q, k, max_k, on, alike=alike))
    return hopper_varlen.forward(q, k, v, cu_q, cu_k, max_q, max_k, scale=q.shape[2]**-0.5, options=on, config=config)


def check_packed(job: dict[str, Any]) -> None:
    """As `check`, of packed sequences, of which one is NaN: the others may not show it. In the longest of them the
    first key, which is met last, has by far the largest scores."""
    import torch

    from kernels.options import Options

    for lengths, key_lengths, causal, window in ((tuple(a), tuple(b), c, tuple(d)) for a, b, c, d in job["cases"]):
        d, dtype = job["head_dim"], job["dtype"]
        q, k, v, cu_q, cu_k = packed_tensors(lengths, key_lengths, 4, 2, d, dtype)
        ends, key_ends = cu_q.tolist(), cu_k.tolist()
        lost = len(lengths) - 1
        for x, end in ((q, ends), (k, key_ends), (v, key_ends)):
            x[end[lost]:end[lost + 1]] = float("nan")
        most = max(range(lost), key=lambda s: key_lengths[s])
        q[ends[most]:ends[most + 1]].abs_()
        k[key_ends[most]] = 30
        on = Options(left=window[0], right=0 if causal else window[1])
        results = [run_packed(job["form"], q, k, v, cu_q, cu_k, max(lengths), max(key_lengths), on) for _ in range(2)]
        torch.cuda.synchronize()
        out, lse = results[0]
        kept = slice(0, ends[lost])
        line: dict[str, Any] = {"check": job["form"], "case": [lengths, key_lengths, causal, window, d, dtype],
                                "same": bool(torch.equal(out[kept], results[1][0][kept])), "error": 0.0,
                                "lse_error": 0.0, "ok": True, "seconds": 0.0}
        for s in range(lost):
            rows, keys = slice(ends[s], ends[s + 1]), slice(key_ends[s], key_ends[s + 1])
            if ends[s] == ends[s + 1]:
                continue
            one, two, three = (x[part].transpose(0, 1)[None] for x, part in ((q, rows), (k, keys), (v, keys)))
            seen = visible(lengths[s], key_lengths[s], causal, window)
            if not key_lengths[s]:
                line["ok"] &= not bool(out[rows].any()) and bool((lse[:, rows] == float("-inf")).all())
                continue
            expected, expected_lse = attention(one.double(), two.double(), three.double(), seen)
            eager, _ = attention(one, two, three, seen)
            size = float(expected.abs().max()) or 1.0
            error = float((out[rows].transpose(0, 1)[None].double() - expected).abs().max()) / size
            allowed = 2 * float((eager.double() - expected).abs().max()) / size + FLOOR[dtype]
            blind = torch.isinf(expected_lse)
            off = (lse[:, rows][None].double() - expected_lse)[~blind].abs()
            line["error"] = max(line["error"], error)
            largest = expected_lse[~blind].abs().max().clamp(min=1.0) if off.numel() else 1.0
            line["lse_error"] = max(line["lse_error"], float((off / largest).max()) if off.numel() else 0.0)
            line["ok"] &= (error <= allowed and bool((lse[:, rows][None][blind] < -1e30).all()) and line["same"]
                           and line["lse_error"] <= 1e-4)
        print(json.dumps(line), flush=True)


def checked(job: dict[str, Any]) -> list[dict[str, Any]]:
    """`check` in a process of its own; what it did not finish is said."""
    process = subprocess.Popen([sys.executable, "-m", "tests.gpu.check_hopper", "--job", json.dumps(job)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        text, errors = process.communicate(timeout=SECONDS.get(job["form"], 75))
        end = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        text, errors = process.communicate()
        end = "out of time"
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(lines) < len(job["cases"]):
        lines.append({"check": job["form"], "case": job["cases"][len(lines)], "ok": False, "why": end,
                      "text": errors[-1500:]})
    return lines


# ---- times -----------------------------------------------------------------------------------------------------
def cells() -> list[dict[str, Any]]:
    """Most important first."""
    found = []
    for dtype, lengths in (("bfloat16", (4096, 16_384, 1024)), ("float16", (4096, 16_384, 1024))):
        for n in lengths:
            for head_dim in (128, 64):
                for causal in (False, True):
                    found.append({"n": n, "head_dim": head_dim, "causal": causal, "dtype": dtype, "window": (-1, -1),
                                  "heads": HIDDEN // head_dim, "kv_heads": HIDDEN // head_dim})
    for head_dim in (128, 64):
        for kv_heads in ((32, 8) if head_dim == 128 else (8,)):  # 32 of 64 each stand above
            for causal in (False, True):
                found.append({"n": 4096, "head_dim": head_dim, "causal": causal, "dtype": "bfloat16",
                              "window": (-1, -1), "heads": 32, "kv_heads": kv_heads})
        for left in (1023, 4095):
            found.append({"n": 16_384, "head_dim": head_dim, "causal": True, "dtype": "bfloat16", "window": (left, 0),
                          "heads": HIDDEN // head_dim, "kv_heads": HIDDEN // head_dim})
    found[4:4] = [{"n": 0, "head_dim": 128, "causal": causal, "dtype": "bfloat16", "window": (-1, -1), "heads": 16,
                   "kv_heads": 16} for causal in (False, True)]  # packed
    found.append({"n": 4096, "head_dim": 256, "causal": False, "dtype": "bfloat16", "window": (-1, -1), "heads": 8,
                  "kv_heads": 8})
    return found


def flops(cell: dict[str, Any]) -> float:
    """4·D a visible pair of query and key."""
    n, left = cell["n"], cell["window"][0]
    if not n:
        pairs = sum(m * (m + 1) // 2 if cell["causal"] else m * m for m in LENGTHS)
        return 4.0 * cell["head_dim"] * pairs * cell["heads"]
    pairs = n * n if not cell["causal"] else n * (n + 1) // 2
    if left >= 0:
        pairs -= (n - left - 1) * (n - left) // 2
    return 4.0 * cell["head_dim"] * pairs * cell["heads"] * (TOKENS // n)


def candidates(cell: dict[str, Any], right: set[tuple[str, int]]
               ) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Callables by name, and why others are missing."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from kernels import hopper, hopper_plan
    from kernels.options import Options

    if not cell["n"]:
        return packed_candidates(cell, right)
    n, d, causal = cell["n"], cell["head_dim"], cell["causal"]
    left, window_right = cell["window"][0], 0 if causal else cell["window"][1]
    torch.manual_seed(0)
    q, k, v = (torch.randn(TOKENS // n, heads, n, d, device="cuda", dtype=getattr(torch, cell["dtype"]))
               for heads in (cell["heads"], cell["kv_heads"], cell["kv_heads"]))
    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    plain = left < 0 and cell["heads"] == cell["kv_heads"] == HIDDEN // d and d <= 128
    forms = tuple(form for form in TIMED if form != "chosen" and plain and form in FORMS_OF[d])
    seen = []
    for form in ("chosen", *forms):
        if form != "chosen" and (form, d) not in right:
            missing[form] = "not right, or not checked"
            continue
        config = configured(form, hopper_plan.choose(q, k, Options(left=left, right=window_right)))
        if config in seen:
            continue
        seen.append(config)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        try:
            grid, arguments, options = hopper.launch(q, k, v, out, lse, config, scale=d**-0.5, left=left,
                                                     right=window_right, processors=processors)
            kernel = hopper._forward[grid]

            def call(kernel: Any = kernel, arguments: Any = arguments, options: Any = options, out: Any = out) -> Any:
                kernel(*arguments, **options)
                return out

            call()
            torch.cuda.synchronize()
            found[form] = call
        except Exception as error:
            missing[form] = str(error)[:200]
    if left >= 0:
        return found, missing
    grouped = {"enable_gqa": True} if cell["heads"] != cell["kv_heads"] else {}
    for name, backend in (("sdpa_flash", SDPBackend.FLASH_ATTENTION), ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION)):
        def peer(backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)
        try:
            peer()
            found[name] = peer
        except Exception as error:
            missing[name] = str(error)[:200]
    try:
        flash3 = importlib.import_module("fa3_fwd_interface").flash_attn_func
        tokens = [x.transpose(1, 2).contiguous() for x in (q, k, v)]

        def third() -> Any:
            result = flash3(*tokens, causal=causal)
            return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

        third()
        found["fa3"] = third
    except Exception as error:
        missing["fa3"] = f"{type(error).__name__}: {error}"[:200]
    try:
        flash4 = importlib.import_module("flash_attn.cute").flash_attn_func
        rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]

        def fourth() -> Any:
            result = flash4(*rows, causal=causal)
            return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

        fourth()
        found["fa4"] = fourth
    except Exception as error:
        missing["fa4"] = f"{type(error).__name__}: {error}"[:200]
    return found, missing


def packed_candidates(cell: dict[str, Any], right: set[tuple[str, int]]
                      ) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """As `candidates`, of packed sequences; the reference is a plain call a sequence."""
    import torch

    from kernels import varlen
    from kernels.options import Options
    from kernels.plan import Tuning

    d, causal, longest = cell["head_dim"], cell["causal"], max(LENGTHS)
    q, k, v, cu, _ = packed_tensors(LENGTHS, LENGTHS, cell["heads"], cell["kv_heads"], d, cell["dtype"])
    on, scale = Options(right=0 if causal else -1), d**-0.5
    found: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    for name in ("packed", "packed_alone", "flash2", "fa3"):
        if name.startswith("packed") and (name, d) not in right:
            missing[name] = "not right, or not checked"
            continue

        def call(name: str = name) -> Any:
            if name.startswith("packed"):
                return run_packed(name, q, k, v, cu, cu, longest, longest, on)[0]
            if name == "flash2":
                return varlen.forward(q, k, v, cu, cu, longest, Tuning(64, 64, 8, 2), scale=scale, options=on)[0]
            flash3 = importlib.import_module("fa3_fwd_interface").flash_attn_varlen_func
            result = flash3(q, k, v, cu, cu, longest, longest, causal=causal)
            return result[0] if isinstance(result, tuple) else result

        try:
            call()
            torch.cuda.synchronize()
            found[name] = call
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"[:200]
    return found, missing


def time_cells(folder: Path, seconds: float, right: set[tuple[str, int]], names: list[str]) -> None:
    import torch

    deadline = time.time() + seconds
    flush = torch.empty(96 << 20, dtype=torch.int32, device="cuda")  # 384 MB
    todo = [cell for cell in cells() if not names or ("chosen" if cell["n"] else "packed") in names]
    for index, cell in enumerate(todo):
        if time.time() > deadline:
            print(json.dumps({"cell": "not timed, no time left", "cells": len(todo) - index}), flush=True)
            return
        functions, missing = candidates(cell, right)
        reference = None
        for name in ("sdpa_flash", "sdpa_cudnn", "flash2", *functions):
            if name in functions:
                out = functions[name]().float()
                reference = out if reference is None else reference
                error = float((out - reference).abs().max() / reference.abs().max())
                if not error <= 2e-2:
                    missing[name] = f"differs from SDPA by {error:.1e}"
                    del functions[name]
        del reference, out
        sensors = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu",
                                    "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True)
        until = min(deadline + 3, time.time() + min(3.0, max(0.7, seconds / len(todo))))
        samples: dict[str, list[float]] = {name: [] for name in functions}
        while time.time() < until or min(map(len, samples.values()), default=5) < 5:
            events = []
            torch.cuda._sleep(20_000_000)
            names = list(functions) * 2
            random.shuffle(names)
            for name in names:
                flush.zero_()
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                functions[name]()
                end.record()
                events.append((name, start, end))
            torch.cuda.synchronize()
            for name, start, end in events:
                samples[name].append(start.elapsed_time(end))
        work = flops(cell)
        rates = {}
        for name, values in samples.items():
            fifths = statistics.quantiles(values, n=5)
            middle = statistics.median(values)
            rates[name] = {"tflops": round(work / middle / 1e9, 1), "ms": round(middle, 4), "samples": len(values),
                           "spread_percent": round(100 * (fifths[3] - fifths[0]) / middle, 1)}
        peers = [rates[name]["tflops"] for name in PEERS if name in rates]
        ours = {name: r["tflops"] for name, r in rates.items() if name not in PEERS}
        line = {"cell": cell, "rates": rates, "missing": missing, "sensors": sensors.communicate()[0].strip()}
        if peers and ours:
            best = max(ours, key=lambda name: ours[name])
            line["best"] = best
            line["ratio_to_best_peer"] = {name: round(rate / max(peers), 3) for name, rate in ours.items()}
        print(json.dumps(line), flush=True)
        with (folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--cells", default="")
    parser.add_argument("--job")
    parser.add_argument("--times")
    arguments = parser.parse_args()
    names = [name for name in arguments.cells.split(",") if name]
    if set(names) - (known := {"chosen", *FORMS} - {"packed_alone"}):
        parser.error(f"--cells: of {', '.join(sorted(known))}, not {arguments.cells}")
    if arguments.job:
        return check(json.loads(arguments.job))
    if arguments.times:
        settings = json.loads(arguments.times)
        return time_cells(arguments.folder, settings["seconds"], {(form, d) for form, d in settings["right"]}, names)
    started = time.time()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    wrong: set[tuple[str, int]] = set()
    with ThreadPoolExecutor(16) as pool, (arguments.folder / "results.jsonl").open("w") as file:
        todo = [job for job in jobs() if not names or job["form"].split("_")[0] in names]
        for job, lines in zip(todo, pool.map(checked, todo)):
            for line in lines:
                file.write(json.dumps(line) + "\n")
                if not line["ok"]:
                    wrong.add((job["form"], job["head_dim"]))
                    print(json.dumps(line))
            errors = [line["error"] for line in lines if "error" in line]
            worst = f"error up to {max(errors):.1e}" if errors else "no result"
            print(f"{job['form']} {job['head_dim']}: {sum(line['ok'] for line in lines)} of {len(job['cases'])} right, "
                  f"{worst}, {time.time() - started:.0f} s", flush=True)
    right = [(form, d) for d, forms in FORMS_OF.items() for form in (*forms, "packed", "packed_alone")
             if (form, d) not in wrong]
    packed = names == ["packed"]
    if names and not {"packed", "chosen"} & set(names):
        return
    settings = {"seconds": 14.0 if packed else max(20.0, arguments.seconds - (time.time() - started) - 12),
                "right": right}
    process = subprocess.Popen([sys.executable, "-m", "tests.gpu.check_hopper", str(arguments.folder), "--times",
                                json.dumps(settings), "--cells", arguments.cells])
    try:
        process.wait(timeout=SECONDS["packed"] if packed else settings["seconds"] + 40)
    except subprocess.TimeoutExpired:
        process.kill()
        print("the times: out of time", flush=True)
    print(f"{time.time() - started:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
