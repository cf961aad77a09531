"""A whole run on the CPU: the real workload under a stub ncu, interrupted and resumed, and what the bundle says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler import bundle, table
from profiler.bundle import Bundle
from profiler.collect import provenance, suites
from profiler.collect import run as runs
from profiler.errors import BadInput, NcuFailed, WorkerFailed
from profiler.spec import parameters_text

from .conftest import REPORTS, ROOT, processes_with

CONFIGS = suites.sweep(
    ("naive", "sdpa_math"), (16, 32), head_dims=(16,), masks=("full", "causal"), dtypes=("fp32",), heads=1
)
# What ncu does on success: runs the application, prints each kernel, writes the report.
SUCCESS = f"""
with open(pathlib.Path(__file__).with_name("calls"), "a") as log: log.write(str(os.getcwd()) + "\\n")
code = application()
say('==PROF== Profiling "gemm" - 0: 0%....50%....100% - 5 passes')
shutil.copy({str(REPORTS / "rtx3070_one_kernel.ncu-rep")!r}, report)
sys.exit(code)
"""


@pytest.fixture
def reports(monkeypatch):
    """parse.load of a chunk's report: one launch for each stage that naive has and one for each peer."""

    def load(path):
        rows = [
            {
                "source": path.name,
                "launch": i,
                "range_path": f"{config.config_id}/{stage}",
                "range": stage,
                "kernel": stage,
                "duration_ns": 1000.0,
            }
            for i, (config, stage) in enumerate((c, s) for c in CONFIGS for s in stages(c))
        ]
        metrics = [{"launch": row["launch"], "metric": "m", "value": "1"} for row in rows]
        return Bundle(path.name, {}, table.make("launches", rows), table.make("metrics", metrics))

    monkeypatch.setattr("profiler.parse.load", load)


def stages(config):
    if config.implementation != "naive":
        return ["attention"]
    return ["scores", "scale", *(["mask"] if config.shape.mask == "causal" else []), "softmax", "values"]


def test_a_run_makes_a_whole_bundle(stub, tmp_path, reports):
    stub.write(SUCCESS)
    heard = []
    runs.run(CONFIGS, tmp_path / "bundle", device="cpu", suite="mine", progress=lambda *said: heard.append(said))
    made = bundle.read(tmp_path / "bundle")
    assert made.profile["counters"] is True and made.profile["ncu"] == "2025.3.1" and made.profile["passes"] == 5
    assert (made.profile["cache_control"], made.profile["clock_control"]) == ("all", "none")
    assert list(made.timings["config_id"]) == [c.config_id for c in CONFIGS]
    assert set(made.timings["status"]) == {"ok"} and made.timings["median_ns"].gt(0).all()
    assert made.timings["peak_memory_bytes"].isna().all()  # nothing measures it on a CPU: null, not 0
    assert made.timings["note"].str.contains("CPU").all()
    assert len(made.launches) == 4 * 1 + 2 * 4 + 2 * 5
    assert made.notes == () or all("under ncu" in note for note in made.notes)
    assert heard[-1][1:] == (16, 16)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "bundle"]


def test_nothing_private_and_no_path_in_the_bundle(stub, tmp_path, reports):
    stub.write(SUCCESS)
    runs.run(CONFIGS[:2], tmp_path / "bundle", device="cpu")
    profile = (tmp_path / "bundle/profile.json").read_text(encoding="utf-8")
    folders = {line for line in (stub.folder / "calls").read_text().splitlines()}
    assert str(tmp_path) not in profile and str(ROOT) not in profile and sys.executable not in profile
    assert all(folder not in profile and not folder.startswith(str(Path.cwd())) for folder in folders)
    assert "--nvtx-include regex:flashscope@.*/" in json.loads(profile)["commands"]["ncu"]


def test_a_run_without_counters_says_so(tmp_path):
    runs.run(CONFIGS[:1], tmp_path / "bundle", counters=False, device="cpu")
    made = bundle.read(tmp_path / "bundle")
    assert made.profile["counters"] is False and not made.has_counters
    assert "ncu" not in made.profile and "cache_control" not in made.profile
    assert any("without counters" in note for note in made.notes)


def test_kept_reports_are_scrubbed_copies(stub, tmp_path, monkeypatch):
    scrubbed = []
    monkeypatch.setattr(
        "profiler.privacy.scrub_file",
        lambda path, out: scrubbed.append((path.name, out.name)) or shutil.copy(path, out),
    )
    made = Bundle("b", {"kind": "profile"})
    report = tmp_path / "chunk-0.ncu-rep"
    report.write_bytes(b"x")
    runs.publish(made, tmp_path / "b", [report])
    assert scrubbed == [("chunk-0.ncu-rep", "b-0.ncu-rep")]
    assert (tmp_path / "b/reports/b-0.ncu-rep").is_file()


def test_a_configuration_that_kills_the_process_is_set_aside(stub, tmp_path, reports):
    guilty = CONFIGS[1].config_id
    stub.write(
        f"""
plan = json.loads(pathlib.Path("plan.json").read_text())
names = [c["implementation"] + str(c["shape"]["nq"]) + c["shape"]["mask"] for c in plan["configs"]]
if "sdpa_math16full" in names:
    with open("result.jsonl", "a") as out:
        out.write(json.dumps({{"record": "start", "config_id": {guilty!r}}}) + "\\n")
    say("Segmentation fault", "==ERROR== The application returned an error code (139).")
    sys.exit(1)
"""
        + SUCCESS
    )
    made = runs.run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert any(note.startswith(f"{guilty}: no counters (failed:") for note in made.notes)
    assert len((stub.folder / "calls").read_text().splitlines()) == 1


def test_a_lost_cuda_context_costs_one_configuration_of_the_counters(stub, tmp_path, reports):
    guilty = CONFIGS[1].config_id
    stub.write(
        f"""
plan = json.loads(pathlib.Path("plan.json").read_text())
names = [c["implementation"] + str(c["shape"]["nq"]) + c["shape"]["mask"] for c in plan["configs"]]
if "sdpa_math16full" in names:
    with open("result.jsonl", "a") as out:
        for record in ({{"record": "start", "config_id": {guilty!r}}},
                       {{"record": "counters", "config_id": {guilty!r}, "status": "failed: illegal memory access",
                         "stages": [], "sticky": True}}):
            out.write(json.dumps(record) + "\\n")
    say("==ERROR== The application returned an error code (1).")
    sys.exit(1)
"""
        + SUCCESS
    )
    made = runs.run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert any(note.startswith(f"{guilty}: no counters (failed:") for note in made.notes)


def test_failure_after_finished_work_keeps_it_and_resume_goes_on(stub, tmp_path, reports, monkeypatch):
    monkeypatch.setattr("profiler.collect.share.CHUNK", 4)
    monkeypatch.setattr("profiler.collect.provenance.code_hash", lambda: "same")
    stub.write(
        """
count = pathlib.Path(__file__).with_name("count")
done = int(count.read_text()) if count.exists() else 0
count.write_text(str(done + 1))
if done == 1:
    say("==ERROR== something new")
    sys.exit(9)
"""
        + SUCCESS
    )
    with pytest.raises(NcuFailed) as caught:
        runs.run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert "--resume" in caught.value.remedy
    assert not (tmp_path / "bundle").exists() and (tmp_path / "bundle.partial/chunk-0.done").is_file()
    with pytest.raises(BadInput, match="unfinished run"):
        runs.run(CONFIGS, tmp_path / "bundle", device="cpu")
    with pytest.raises(BadInput, match="seed"):
        runs.run(CONFIGS, tmp_path / "bundle", device="cpu", resume=True, seed=1)
    made = runs.run(CONFIGS, tmp_path / "bundle", device="cpu", resume=True)
    assert len((stub.folder / "calls").read_text().splitlines()) == 2  # chunk 0 once, chunk 1 once: nothing repeated
    assert list(made.timings["config_id"]) == [c.config_id for c in CONFIGS]
    assert not (tmp_path / "bundle.partial").exists()


# The workload as it is, but it waits for ever before its 21st configuration, so that none can finish before the kill.
STALLED = """
import sys, time
from profiler.workload import __main__ as workload, timing
measured, configurations = timing.measure, []
def measure(group, *rest, **more):
    if len(configurations) >= 20:
        time.sleep(3600)
    configurations.extend(group)
    return measured(group, *rest, **more)
timing.measure = measure
sys.exit(workload.main(sys.argv[1:]))
"""
KILLED = f"""
import sys
from pathlib import Path
from profiler.collect import run as runs, suites, worker
resume = "--resume" in sys.argv
if not resume:
    worker.command = lambda plan, results: [sys.executable, "-c", {STALLED!r}, plan.name, results.name]
lengths = tuple(range(8, 88, 4))
configs = suites.sweep(("naive", "sdpa_math"), lengths, head_dims=(16,), masks=("full",), dtypes=("fp32",), heads=1)
runs.run(configs, Path(sys.argv[1]), counters=False, device="cpu", resume=resume)
"""


def test_a_killed_sweep_resumes_without_repeating(tmp_path):
    out, timing = tmp_path / "sweep", tmp_path / "sweep.partial/timing.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], env=environment, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not timing.is_file() or len(rows(timing)) < 20):
        time.sleep(0.02)
    worker = processes_with(str(timing))
    first.send_signal(signal.SIGKILL)
    first.wait()
    # The worker is not the killed process: it ends by itself when its parent is gone.
    assert worker
    while time.monotonic() < deadline and processes_with(str(timing)):
        time.sleep(0.1)
    assert not processes_with(str(timing)) and not out.exists()
    before = rows(timing)
    assert len(before) == 20
    subprocess.run([sys.executable, "-c", KILLED, str(out), "--resume"], env=environment, check=True, timeout=300)
    made = bundle.read(out)
    assert len(made.timings) == 40 and made.timings["config_id"].is_unique and set(made.timings["status"]) == {"ok"}
    kept = made.timings.set_index("config_id")["median_ns"]
    assert all(kept[row["config_id"]] == row["median_ns"] for row in before)
    assert not out.with_name("sweep.partial").exists()


def rows(path):
    records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [record["row"] for record in records if record["record"] == "timing"]


def test_a_crash_in_the_timing_pass_costs_one_configuration(tmp_path, monkeypatch):
    guilty = CONFIGS[2].config_id
    script = f"""
import json, sys
plan, out = json.load(open(sys.argv[1])), open(sys.argv[2], "a")
from profiler.spec import RunConfig
for entry in plan["configs"]:
    config = RunConfig.from_json(entry)
    print(json.dumps({{"record": "start", "config_id": config.config_id}}), file=out, flush=True)
    if config.config_id == {guilty!r}:
        sys.exit("illegal memory access")
    row = {{**config.key(), "parameters": "{{}}", "status": "ok", "median_ns": 1.0}}
    print(json.dumps({{"record": "timing", "row": row}}), file=out, flush=True)
print(json.dumps({{"record": "end"}}), file=out, flush=True)
"""
    monkeypatch.setattr(
        "profiler.collect.worker.command", lambda plan, results: [sys.executable, "-c", script, plan.name, results.name]
    )
    made = runs.run(CONFIGS, tmp_path / "bundle", counters=False, device="cpu")
    status = dict(zip(made.timings["config_id"], made.timings["status"]))
    assert status.pop(guilty).startswith("failed: the process ended with code 1: illegal memory access")
    assert set(status.values()) == {"ok"}
    assert made.timings["median_ns"].isna().sum() == 1


def test_nothing_is_written_when_no_worker_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("profiler.collect.worker.command", lambda plan, results: [sys.executable, "-c", "pass", "x"])
    with pytest.raises(WorkerFailed):
        runs.run(CONFIGS, tmp_path / "bundle", counters=False, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_parameters_text_is_stable():
    assert parameters_text({"b": 1, "a": 2}) == '{"a":2,"b":1}'


def test_a_lost_cuda_context_costs_one_configuration_of_the_timings(tmp_path, monkeypatch):
    guilty = CONFIGS[2].config_id
    script = f"""
import json, sys
plan, out = json.load(open(sys.argv[1])), open(sys.argv[2], "a")
from profiler.spec import RunConfig
for entry in plan["configs"]:
    config = RunConfig.from_json(entry)
    print(json.dumps({{"record": "start", "config_id": config.config_id}}), file=out, flush=True)
    wrong = config.config_id == {guilty!r}
    row = {{**config.key(), "parameters": "{{}}", "status": "failed: CUDA error" if wrong else "ok"}}
    print(json.dumps({{"record": "timing", "row": row}}), file=out, flush=True)
    if wrong:
        sys.exit("CUDA error: an illegal memory access was encountered")
print(json.dumps({{"record": "end"}}), file=out, flush=True)
"""
    monkeypatch.setattr(
        "profiler.collect.worker.command", lambda plan, results: [sys.executable, "-c", script, plan.name, results.name]
    )
    made = runs.run(CONFIGS, tmp_path / "bundle", counters=False, device="cpu")
    status = dict(zip(made.timings["config_id"], made.timings["status"]))
    assert status.pop(guilty) == "failed: CUDA error" and set(status.values()) == {"ok"}


def test_an_export_inside_a_checkout_of_something_else_has_no_commit(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    export = tmp_path / "export"
    export.mkdir()
    monkeypatch.setattr("profiler.collect.worker.ROOT", export)
    assert provenance.git_commit() is None
    subprocess.run(["git", "init", "-q", str(export)], check=True)
    (export / "file").write_text("x")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(export), "add", "file"], check=True)
    subprocess.run(["git", "-C", str(export), *who, "commit", "-qm", "x"], check=True)
    first = provenance.git_commit()
    assert len(first) == 12
    (export / "file").write_text("y")
    assert provenance.git_commit() == f"{first}-dirty"


def test_another_gpu_or_driver_is_another_run(tmp_path, monkeypatch):
    monkeypatch.setattr("profiler.collect.provenance.code_hash", lambda: "same")
    monkeypatch.setattr(runs.join, "join", lambda *arguments: (_ for _ in ()).throw(RuntimeError("cut off")))
    with pytest.raises(RuntimeError):
        runs.run(CONFIGS[:1], tmp_path / "b", counters=False, device="cpu")
    monkeypatch.setattr("profiler.collect.gpu.identity", lambda: "GPU-another")
    monkeypatch.setattr("profiler.collect.gpu.driver", lambda: "999.1")
    with pytest.raises(BadInput, match=r"other settings \(GPU, driver\)"):
        runs.run(CONFIGS[:1], tmp_path / "b", counters=False, device="cpu", resume=True)


def test_where_no_configuration_can_be_run_its_reason_is_the_error(stub, tmp_path, monkeypatch):
    """A package that the worker lacks must not be reported as ranges that match nothing."""
    stub.write('application(); print("==WARNING== No kernels were profiled."); sys.exit(0)')
    broken = tmp_path / "site"
    broken.mkdir()
    (broken / "nvtx.py").write_text("raise ModuleNotFoundError(\"No module named 'nvtx'\")")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(WorkerFailed, match="lacks the package nvtx"):
        runs.run(CONFIGS[:2], tmp_path / "out", device="cpu")
