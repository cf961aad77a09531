"""What profiling does on a real GPU and cannot show without one; each step by itself, timed, with its own limit.

    python tests/gpu/check_collect.py FOLDER [STEP...]

Writes FOLDER/STEP.log, and a line of FOLDER/results.jsonl for each step: ok, seconds, and what was found. Steps:
ceilings, resume, callable, evidence, scaling, dask (two GPUs; compares with scaling), peers, suite (the GPU tests).
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
REST_S = 2.0  # after it the clock does not show what ran before
MODULE = '''
import torch
def attention(q, k, v, causal=False):
    """Attention over blocks of 512 keys with a running maximum and sum, as nobody would write it for speed."""
    scale = q.shape[-1] ** -0.5
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    high = q.new_full((*q.shape[:3], 1), float("-inf"), dtype=torch.float32)
    total, out = torch.zeros_like(high), torch.zeros_like(q, dtype=torch.float32)
    for first in range(0, k.shape[2], 512):
        part = (q @ k[:, :, first:first + 512].transpose(-1, -2)).float() * scale
        if causal:
            keys = torch.arange(first, first + part.shape[-1], device=q.device)
            part = part.masked_fill(keys > rows + k.shape[2] - q.shape[2], float("-inf"))
        peak = torch.maximum(high, part.amax(-1, keepdim=True))
        weight, fade = torch.exp(part - peak), torch.exp(high - peak)
        total = total * fade + weight.sum(-1, keepdim=True)
        out = out * fade + weight.to(q.dtype) @ v[:, :, first:first + 512]
        high = peak
    return (out / total).to(q.dtype)
'''
TWELVE = """
implementations = ["naive", "flash2", "sdpa_flash", "sdpa_cudnn"]
n = [1024, 2048, 4096]
head_dims = [64]
"""


class Folder:
    """Where a step writes; ``profiler`` runs the command line there with its output in the step's log."""

    def __init__(self, path: Path, step: str, limit_s: float):
        self.path, self.step = path, step
        self.deadline = time.monotonic() + limit_s
        self.log = path / f"{step}.log"
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}

    def start(self, *arguments: str) -> subprocess.Popen:
        with open(self.log, "a", encoding="utf-8") as log:
            return subprocess.Popen([sys.executable, "-m", "profiler", *arguments], cwd=self.path, stdout=log,
                                    stderr=log, env=self.environment, start_new_session=True)

    def profiler(self, *arguments: str) -> float:
        """Seconds that the command took. Raises RuntimeError where it fails or runs past the step's limit."""
        began, process = time.monotonic(), self.start(*arguments)
        try:
            code = process.wait(timeout=max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its children, and --resume could go on from there
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
            raise RuntimeError(f"{arguments[0]}: past the limit of the step") from None
        if code:
            raise RuntimeError(f"{' '.join(arguments)}: exit code {code}: {self.log.read_text()[-800:]}")
        return time.monotonic() - began

    def last(self, word: str) -> str:
        return next((line for line in reversed(self.log.read_text().splitlines()) if word in line), "")


def suite(folder: Folder, name: str, *options: str) -> dict[str, Any]:
    from profiler import bundle

    out = folder.path / folder.step
    seconds = folder.profiler("run", "--suite", name, "--out", out.name, *options)
    made = bundle.read(out)
    return {"seconds": round(seconds, 1), "configurations": len(made.timings), "launches": len(made.launches),
            "passes": made.profile.get("passes"), "said": folder.last("replay passes a launch"),
            "not ok": sorted(set(made.timings["status"]) - {"ok"}), "notes": list(made.notes)[:10],
            "ceilings": {entry["quantity"]: entry["value"] for entry in made.profile["ceilings"]}}


def evidence(folder: Folder) -> dict[str, Any]:
    found = suite(folder, "evidence")
    folder.profiler("evidence", "evidence")
    return {**found, "ok": found["seconds"] < 90}


def scaling(folder: Folder) -> dict[str, Any]:
    found = suite(folder, "scaling")
    return {**found, "ok": found["seconds"] < 480}


def dask(folder: Folder) -> dict[str, Any]:
    import torch

    if torch.cuda.device_count() < 2:
        raise RuntimeError("needs two GPUs")
    found = suite(folder, "scaling", "--workers", "dask")
    alone = [r for r in results(folder.path) if r["step"] == "scaling" and r.get("seconds")]
    ratio = alone[-1]["seconds"] / found["seconds"] if alone else None
    from profiler import bundle

    gpus = bundle.read(folder.path / "dask").timings["gpu"].value_counts().to_dict()
    shares = [line for line in folder.log.read_text().splitlines() if " in " in line and "s each), timing: " in line]
    return {**found, "times as fast as one GPU": ratio, "gpus": gpus, "shares": shares,
            "ok": bool(ratio and ratio >= 1.7)}


def resume(folder: Folder) -> dict[str, Any]:
    """kill -9 while the sixth of twelve configurations is timed; the resumed bundle against an uninterrupted one."""
    from profiler import bundle, table

    (folder.path / "twelve.toml").write_text(TWELVE)
    seconds = folder.profiler("run", "--sweep", "twelve.toml", "--out", "whole")
    records = folder.path / "killed.partial/timing.jsonl"
    first = folder.start("run", "--sweep", "twelve.toml", "--out", "killed")
    while first.poll() is None and time.monotonic() < folder.deadline and len(timed(records)) < 4:
        time.sleep(0.005)
    first.kill()
    first.wait()
    before = timed(records)
    time.sleep(3)
    left = [line for line in running() if str(records) in line]
    again = folder.profiler("run", "--sweep", "twelve.toml", "--out", "killed", "--resume")
    whole, killed = bundle.read(folder.path / "whole"), bundle.read(folder.path / "killed")
    keys = ["config_id", "stage", "kernel", "grid", "block", "tensor_flops", "l2_to_sm_bytes"]
    kept = killed.timings.set_index("config_id")["median_ns"]
    found = {
        "rows before the kill": len(before),
        "orphans": left,
        "kept rows are the same": all(kept[row["config_id"]] == row["median_ns"] for row in before),
        "same configurations": list(whole.timings["config_id"]) == list(killed.timings["config_id"]),
        "same launches": table.records(whole.launches[keys[:6]]) == table.records(killed.launches[keys[:6]]),
        "seconds whole": round(seconds, 1), "seconds resumed": round(again, 1),
    }
    right = not left and 0 < len(before) < 12
    return {**found, "ok": right and all(found[name] for name in found if name.startswith(("kept", "same")))}


def timed(path: Path) -> list[dict[str, Any]]:
    from profiler.collect import worker

    return [record["row"] for record in worker.of(worker.read_records(path), "timing")]


def running() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def ceilings(folder: Folder) -> dict[str, Any]:
    """Ours against a product into a given output and a raw copy, in turns. Before each the GPU rests, so that neither
    finds it at the power limit where the one before left it; the clock of each is in the result."""
    import torch

    from profiler.workload import ceilings as ours

    n, size, calls = 8192, 2**32, 20
    a, b, c = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    x, y = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))

    def rested(call: Callable[[], Any]) -> tuple[float, dict[str, Any]]:
        """Mean seconds of a call between two events, and what the sensors said meanwhile."""
        torch.cuda.synchronize()
        time.sleep(REST_S)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            call()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        said = {"sm_clock_hz": ours.sensors().clock_hz()}
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls, said

    theirs = {"matmul_bf16_flops_per_s": (2 * n**3, lambda: torch.mm(a, b, out=c)),
              "dram_copy_bytes_per_s": (2 * size, lambda: y.copy_(x))}
    rounds: list[dict[str, Any]] = []
    for _ in range(4):
        time.sleep(REST_S)
        entries = {entry["quantity"]: entry for entry in ours.measure()}
        for name, (amount, call) in theirs.items():
            seconds, said = rested(call)
            entry = entries.pop(name)
            at = {key: entry.get(key) for key in said}
            rounds.append({"quantity": name, "ours": entry["value"], "independent": amount / seconds, "ours at": at,
                           "independent at": said})
        rounds += [{"quantity": name, "ours": entry["value"]} for name, entry in entries.items()]

    def values(name: str, whose: str = "ours") -> list[float]:
        return [one[whose] for one in rounds if one["quantity"] == name]

    names = dict.fromkeys(one["quantity"] for one in rounds)
    mine = {name: statistics.median(values(name)) for name in names}
    independent = {name: statistics.median(values(name, "independent")) for name in theirs}
    ratio = {name: mine[name] / independent[name] for name in theirs}
    return {"ratio": ratio, "ours": mine, "independent": independent,
            "spread of ours": {name: max(values(name)) / min(values(name)) - 1 for name in names},
            "rounds": [one for one in rounds if "independent" in one],
            "ok": all(abs(value - 1) <= 0.03 for value in ratio.values())}


def callable_(folder: Folder) -> dict[str, Any]:
    """A function that the project does not contain; the bundle is then opened page by page by tests/viewer_smoke.py."""
    from profiler import bundle

    (folder.path / "visitor.py").write_text(MODULE)
    shapes = ("--n", "512", "--n", "1024", "-d", "64", "--mask", "full", "--mask", "causal")  # up to 30 launches each
    names = ("--callable", "visitor:attention", "-i", "flash2", "-i", "naive")
    seconds = folder.profiler("run", *names, *shapes, "--out", "visitor")
    said = [line for line in folder.log.read_text().splitlines() if line.startswith("[") and (
        " by " in line or ("visitor_attention-" in line and "counters: " in line))]
    made = bundle.read(folder.path / "visitor")
    rows = made.timings[made.timings["implementation"] == "visitor:attention"]
    launches = made.launches[made.launches["implementation"] == "visitor:attention"]
    return {"seconds": round(seconds, 1), "estimates": said[:3], "took": folder.last("replay passes a launch"),
            "status": sorted(set(rows["status"])), "launches": len(launches), "notes": list(made.notes)[:10],
            "error": [float(x) for x in rows["error_relative"]],
            "ok": set(rows["status"]) == {"ok"} and launches["config_id"].nunique() == 4}


def peers(folder: Folder) -> dict[str, Any]:
    folder.profiler("bench", "--suite", "peers")
    lines = folder.log.read_text().splitlines()
    return {"ratios": [line for line in lines if " as fast as " in line],
            "missing": sorted({line.split("missing: ")[1] for line in lines if "missing: " in line}), "ok": True}


def gpu_tests(folder: Folder) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/gpu/test_run_gpu.py"], cwd=ROOT,
                          capture_output=True, text=True, check=False,
                          timeout=max(1.0, folder.deadline - time.monotonic()))
    folder.log.write_text(done.stdout + done.stderr)
    return {"said": done.stdout.strip().splitlines()[-1:], "ok": done.returncode == 0}


# step -> (what does it, seconds that it may take)
STEPS: dict[str, tuple[Callable[[Folder], dict[str, Any]], float]] = {
    "ceilings": (ceilings, 120), "resume": (resume, 240), "callable": (callable_, 240), "evidence": (evidence, 300),
    "scaling": (scaling, 560), "dask": (dask, 560), "peers": (peers, 300), "suite": (gpu_tests, 300),
}


def results(path: Path) -> list[dict[str, Any]]:
    file = path / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def main(path: Path, steps: list[str]) -> int:
    path.mkdir(parents=True, exist_ok=True)
    right = True
    for name in steps or list(STEPS):
        step, limit_s = STEPS[name]
        began = time.monotonic()
        try:
            found = step(Folder(path.resolve(), name, limit_s))
        except Exception as error:  # a step that fails is a result, and the next one still runs
            found = {"ok": False, "failed": f"{type(error).__name__}: {error}"}
        line = {"step": name, "took_s": round(time.monotonic() - began, 1), **found}
        right = right and bool(line["ok"])
        print(json.dumps(line), flush=True)
        with open(path / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(STEPS):
        sys.exit(f"python tests/gpu/check_collect.py FOLDER [{' '.join(STEPS)}]")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
