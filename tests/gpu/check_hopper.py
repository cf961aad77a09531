"""Check every form of the Hopper forward on this GPU, plain and on packed sequences, against float64.

    python -m tests.gpu.check_hopper FOLDER [--forms NAMES]

Checks run in processes of their own, several at a time, each with a time limit: a hang or a crash costs one form. One
JSON line a check in FOLDER/results.jsonl, those that are wrong on the screen too. NAMES: of FORMS, with commas between,
all by default. What is right is timed beside its peers by `python -m profiler bench --suite peers` (or shapes).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

CHECK_SECONDS = 75  # of a process that checks a form
FLOOR = {"float16": 5e-4, "bfloat16": 4e-3}
# What a form changes in the configuration that kernels.hopper_plan.choose gives, packed that of kernels.hopper_varlen
FORMS: dict[str, dict[str, Any]] = {
    "chosen": {}, "packed": {}, "max": {"fixed": False}, "fixed": {"late": False}, "late": {"late": True},
    "two": {"consumers": 2, "ahead": True}, "three": {"consumers": 3, "ahead": False}}
FORMS_OF = {64: ("max", "two", "three"), 128: ("max", "fixed", "late")}
# name: dtype, batch, heads, key heads, Nq, Nk, D, causal, window, how the tensors lie
ODD = [(1, 2, 2, n, n, causal, (-1, -1)) for n in (64, 77, 1000, 3001, 4097) for causal in (False, True)]
SHAPES = [(1, 4, 1, 113, 203, True, (-1, -1)), (2, 4, 2, 1023, 1024, True, (-1, -1)), (1, 2, 2, 3, 799, True, (-1, -1)),
          (1, 2, 2, 300, 40, True, (-1, -1)), (1, 2, 1, 5, 2, True, (-1, -1)), (1, 2, 2, 500, 1300, False, (-1, -1)),
          (1, 3, 3, 1, 1, True, (-1, -1)), (2, 4, 4, 900, 900, False, (100, 40)), (1, 4, 2, 2049, 2049, True, (255, 0)),
          (1, 2, 2, 700, 1100, False, (-1, 30)), (1, 2, 2, 700, 500, False, (64, -1)),
          (1, 2, 2, 640, 640, False, (0, 0)), (1, 2, 1, 1024, 1088, True, (-1, -1)),
          (1, 2, 1, 900, 900, True, (190, 0)), (1, 2, 2, 900, 1000, False, (200, -1))]

# Keys whose scores stand out, by when they are met (the last keys are first), and the calls on which they do
JUMPS = {"second": (850,), "middle": (500,), "before last": (130,), "last": (5,), "twice": (500, 380)}
JUMPED = [((1000, 1000), False, (-1, -1)), ((1000, 1000), True, (-1, -1)), ((1000, 1000), True, (300, -1)),
          ((1000, 1000), False, (300, -1)), ((1000, 1111), True, (300, -1)), ((2500, 2500), True, (-1, -1)),
          ((2500, 2500), False, (-1, -1))]


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
    for head_dim in (128, 64):
        found.append({"form": "max", "head_dim": head_dim, "cases": [
            (1, 2, 2, 2304, 2304, causal, (-1, -1), head_dim, "float16", "plain") for causal in (False, True)]})
        found.append({"form": "chosen", "head_dim": head_dim, "cases": [
            (1, 8, 2, 2304, 2304, False, (-1, -1), head_dim, "bfloat16", "plain"),
            (1, 8, 2, 2304, 2304, True, (-1, -1), head_dim, "bfloat16", "plain"),
            (1, 8, 8, 2304, 2304, True, (1023, 0), head_dim, "bfloat16", "plain"),
            (1, 2, 2, 4000, 4000, True, (2500, 0), head_dim, "bfloat16", "plain"),
            (1, 2, 2, 4000, 4000, False, (2500, -1), head_dim, "float16", "plain")]})
    pairs = [PACKED[i:i + 2] for i in range(0, len(PACKED), 2)]
    for form, head_dim, dtype, parts in (
            ("packed", 128, "bfloat16", pairs), ("packed", 64, "bfloat16", pairs),
            ("packed", 256, "bfloat16", pairs[2:]), ("packed", 128, "float16", pairs[1:3]),
            ("packed", 64, "float16", pairs)):
        found += [{"form": form, "head_dim": head_dim, "dtype": dtype, "cases": part} for part in parts]
    found += [{"form": "chosen", "head_dim": head_dim, "cases": [
        (1, 2, 2, *sizes, causal, window, head_dim, "float16", f"jump {where}") for where in JUMPS
        for sizes, causal, window in part]} for head_dim in (128, 64) for part in (JUMPED[:4], JUMPED[4:])]
    found.append({"form": "chosen", "head_dim": 1, "cases": [
        (1, 2, 2, 1000, 1000, causal, (-1, -1), d, dtype, lay) for lay in ("sink", "growing", "low", "huge")
        for d, causal, dtype in ((128, False, "bfloat16"), (64, True, "bfloat16"), (128, True, "float16"),
                             (128, False, "float16"), (64, True, "float16"))]})
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
    elif lay.startswith("jump"):
        jump(q, k, JUMPS[lay[5:]])
    elif lay == "low":
        q, k = q.abs() * 100, -k.abs() * 100
    elif lay == "huge":
        q, k = q * 20, k * 20
    return q, k, v


def jump(q: Any, k: Any, keys: tuple[int, ...]) -> None:
    """Let the weights of `keys` pass all others of q (B, H, Nq, D) and k by 2^10 to 2^40, row by row, and those of the
    second key the first's by as much again."""
    import torch

    at = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(0)).to(q.device) / q.shape[2]
    q[..., 0] = (10 + 30 * at).to(q.dtype)
    k[..., 0] = 0
    for times, key in enumerate(keys, 1):
        k[:, :, key, 0] = times * math.log(2.0) * q.shape[3] ** 0.5


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
    return replace(config, **FORMS[form])


def check(job: dict[str, Any]) -> None:
    """Print one line a case: errors of out and lse against float64, and eager's."""
    import torch

    if job["form"] == "packed":
        return check_packed(job)
    for case in job["cases"]:
        nq, nk, causal, window, dtype, lay = *case[3:6], tuple(case[6]), *case[8:]
        q, k, v = tensors(case)
        out, lse = run_form(job["form"], q, k, v, causal, window)
        again, _ = run_form(job["form"], q, k, v, causal, window)
        torch.cuda.synchronize()
        line: dict[str, Any] = {"check": job["form"], "case": case, "same": bool(torch.equal(out, again))}
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


def run_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, on: Any) -> tuple[Any, Any]:
    """out and lse of packed sequences."""
    from kernels import hopper_varlen

    return hopper_varlen.forward(q, k, v, cu_q, cu_k, max_q, max_k, scale=q.shape[2]**-0.5, options=on)


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
        results = [run_packed(q, k, v, cu_q, cu_k, max(lengths), max(key_lengths), on) for _ in range(2)]
        torch.cuda.synchronize()
        out, lse = results[0]
        kept = slice(0, ends[lost])
        line: dict[str, Any] = {"check": job["form"], "case": [lengths, key_lengths, causal, window, d, dtype],
                                "same": bool(torch.equal(out[kept], results[1][0][kept])), "error": 0.0,
                                "lse_error": 0.0, "ok": True}
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
        text, errors = process.communicate(timeout=CHECK_SECONDS)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--job", type=json.loads)
    arguments = parser.parse_args()
    names = arguments.forms.split(",")
    if {*names} - {*FORMS}:
        parser.error(f"--forms: of {', '.join(FORMS)}, not {arguments.forms}")
    if arguments.job:
        return check(arguments.job)
    if arguments.folder is None:
        parser.error("FOLDER is missing")
    started, wrong = time.time(), 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(16) as pool, (arguments.folder / "results.jsonl").open("w") as file:
        todo = [job for job in jobs() if job["form"] in names]
        for job, lines in zip(todo, pool.map(checked, todo)):
            for line in lines:
                file.write(json.dumps(line) + "\n")
                if not line["ok"]:
                    wrong += 1
                    print(json.dumps(line))
            errors = [line["error"] for line in lines if "error" in line]
            print(f"{job['form']} {job['head_dim']}: {sum(line['ok'] for line in lines)} of {len(job['cases'])} right, "
                  f"error up to {max(errors, default=float('nan')):.1e}, {time.time() - started:.0f} s", flush=True)
    if wrong:
        sys.exit(f"{wrong} wrong")


if __name__ == "__main__":
    main()
