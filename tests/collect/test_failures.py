"""Every known way in which ncu fails: what the user reads, the exit code, and what is left behind (nothing)."""

import os
import subprocess
import sys
import time

import pytest

from profiler.collect import failures, gpu
from profiler.collect.run import run
from profiler.collect.suites import sweep
from profiler.errors import (
    BadInput,
    CountersBusy,
    CountersNotPermitted,
    DriverMismatch,
    MigWithoutCounters,
    NcuFailed,
    NcuLocked,
    NcuMissing,
    NoProgress,
    NothingProfiled,
    ReplayOutOfMemory,
    RunFailed,
    UnknownMetric,
    UnsupportedGpu,
    WorkerFailed,
    WrongPython,
)

from .conftest import ROOT, processes_with

PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
CONFIGS = sweep(("naive",), (16,), head_dims=(16,), masks=("full",), dtypes=("fp32",), heads=1)

# name -> (what the stub does, class, words of the first line, words of the remedy)
CASES = {
    "permission, exit 0": (
        f"say({PERMISSION!r}, '==WARNING== No kernels were profiled.')",
        CountersNotPermitted,
        "not permitted",
        ("NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN", "WSL2", "rented"),
    ),
    "permission, exit 1": (
        f"say({PERMISSION!r}); sys.exit(1)",
        CountersNotPermitted,
        "ERR_NVGPUCTRPERM",
        ("--no-counters",),
    ),
    "nothing matched": (
        "say('==PROF== Connected to process 1', '==WARNING== No kernels were profiled.')",
        NothingProfiled,
        "No kernels were profiled",
        ("nvtx", "doctor"),
    ),
    "busy": (
        "say('==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool "
        "(like DCGM) is concurrently collecting profiling data.', '==WARNING== No kernels were profiled.'); "
        "sys.exit(1)",
        CountersBusy,
        "another tool",
        ("dcgmi",),
    ),
    "unsupported": (
        "say('==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer "
        "--list-chips option.'); "
        "sys.exit(1)",
        UnsupportedGpu,
        "does not support this GPU",
        ("--list-chips",),
    ),
    "WSL of Windows 10": (
        "say('==ERROR== Profiling is not supported on device 0 as it uses the Windows Subsystem for Linux (WSL).', "
        "'==WARNING== No kernels were profiled.')",
        UnsupportedGpu,
        "Windows Subsystem",
        ("Windows 11", "--no-counters"),
    ),
    "lock of another user": (
        "say('==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check that this process has "
        "write permissions on this file.', 'InterprocessLockFailed'); sys.exit(9)",
        NcuLocked,
        "lock file",
        ("TMPDIR", "nsight-compute-lock"),
    ),
    "MIG": (
        "say('==ERROR== Profiling is not supported on MIG compute instances that share a GPU instance.'); sys.exit(1)",
        MigWithoutCounters,
        "MIG slice",
        ("whole GPU", "--no-counters"),
    ),
    "driver": (
        "say('==ERROR== Cuda driver is not compatible with Nsight Compute.', '==WARNING== Failed to load Nsight "
        "Compute CUDA modules.', '==ERROR== The application returned an error code (139).'); sys.exit(1)",
        DriverMismatch,
        "do not fit each other",
        ("--ncu PATH", "update the driver"),
    ),
    "replay memory": (
        "say('==PROF== Profiling \"gemm\" - 0: 0%', '==ERROR== Out of memory while saving device memory for replay.'); "
        "sys.exit(1)",
        ReplayOutOfMemory,
        "out of memory",
        ("longest sequences",),
    ),
    "sandbox": (
        "say('==ERROR== Failed to initialize the profiler: LibraryNotLoaded'); sys.exit(1)",
        DriverMismatch,
        "profiling library",
        ("gVisor",),
    ),
    "metric": (
        "say('==ERROR== Failed to find metric dram__bytes_read.sum'); sys.exit(1)",
        UnknownMetric,
        "one of the metrics",
        ("Update Nsight Compute",),
    ),
    "application": (
        "say('ModuleNotFoundError: No module named torch', '==PROF== Disconnected from process 1', '==ERROR== The "
        "application returned an error code (1).', '==WARNING== No kernels were profiled.'); sys.exit(1)",
        WorkerFailed,
        "This Python lacks PyTorch",
        ("requirements.txt", "doctor"),
    ),
    "no report": ("say('==PROF== Disconnected from process 1')", NcuFailed, "no report", ()),
    "other": ("say('==ERROR== something new'); sys.exit(7)", NcuFailed, "exit code 7", ()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_failure_is_named(case, stub, tmp_path):
    body, kind, first, remedy = case
    stub.write(body)
    with pytest.raises(RunFailed) as caught:
        run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert type(caught.value) is kind
    assert first in caught.value.what
    assert all(word in caught.value.remedy for word in remedy)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin"]


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("proc/version", "Linux version 5.15 (Microsoft@Microsoft.com) WSL2", "WSL2"),
        (".dockerenv", "", "container"),
        ("proc/1/cgroup", "12:cpu:/kubepods/burstable/pod1", "container"),
        ("proc/version", "Linux version 6.8 (buildd@lcy02)", "own machine"),
    ],
)
def test_the_way_to_the_counters_that_fits_this_place_comes_first(tmp_path, file, text, place):
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert failures.surroundings(tmp_path) == place
    first = failures.permission(place).splitlines()[1]
    assert first.strip().startswith(f"{place} (this looks like one): ") and failures.ALLOWING[place] in first


REFUSES = """
with open("result.jsonl", "a") as out:
    out.write(json.dumps({"record": "error", "what": "PyTorch sees no CUDA GPU.", "remedy": "Ask doctor."}) + "\\n")
say("PyTorch sees no CUDA GPU.", "==ERROR== The application returned an error code (1).")
sys.exit(1)
"""


def test_what_the_workload_itself_refuses_is_said_once_in_its_own_words(stub, tmp_path):
    stub.write(REFUSES)
    with pytest.raises(WorkerFailed) as caught:
        run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert str(caught.value) == "PyTorch sees no CUDA GPU.\nAsk doctor."


def test_without_a_gpu_nothing_is_said_twice(cli):
    if gpu.compute_capability():
        pytest.skip("this machine has a GPU")
    done = cli("run", "--suite", "quick", "--no-counters", "--out", "bundle")
    said = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert done.returncode == 1 and said[0] == "PyTorch sees no CUDA GPU." and len(said) == 2


LOCKED = """
calls = pathlib.Path(__file__).with_name("tmpdir")
with open(calls, "a") as log: log.write(os.environ.get("TMPDIR", "none") + "\\n")
if calls.read_text().count("\\n") == 1:
    say("==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock.")
    sys.exit(9)
say("==ERROR== something new")
sys.exit(7)
"""


def test_a_lock_file_of_another_user_is_left_alone_by_a_folder_of_our_own(stub, tmp_path, monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    stub.write(LOCKED)
    with pytest.raises(NcuFailed, match="exit code 7"):
        run(CONFIGS, tmp_path / "bundle", device="cpu")
    first, second = (stub.folder / "tmpdir").read_text().split()
    assert first == "none" and "flashscope-" in second


def test_a_python_without_the_packages_under_sudo_is_told_from_a_failed_one(stub, tmp_path, monkeypatch):
    stub.write(CASES["application"][0])
    monkeypatch.setenv("SUDO_USER", "ada")
    with pytest.raises(WrongPython, match="The Python that sudo runs lacks torch") as caught:
        run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert 'env "PATH=$PATH"' in caught.value.remedy


def test_memory_that_the_program_itself_lacked_is_no_replay_failure(stub, tmp_path):
    code = "==ERROR== The application returned an error code (1)."
    stub.write(f"say('torch.OutOfMemoryError: CUDA out of memory.', {code!r})")
    with pytest.raises(WorkerFailed, match="CUDA out of memory"):
        run(CONFIGS, tmp_path / "bundle", device="cpu")


NEVER = """
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "WORD"])
say('==PROF== Profiling "softmax_warp_forward" - 3: 0%....50%')
time.sleep(600)  # WORD
"""


def test_no_progress_ends_the_whole_group_and_names_the_kernel(stub, tmp_path):
    word = f"stub-child-of-{tmp_path}"
    stub.write(NEVER.replace("WORD", word))
    with pytest.raises(NoProgress) as caught:
        run(CONFIGS, tmp_path / "bundle", device="cpu", quiet_s=2)
    assert "softmax_warp_forward" in caught.value.what
    assert not processes_with(word)
    assert not processes_with(str(stub.path))
    assert not (tmp_path / "bundle").exists()


def test_a_child_that_ignores_the_request_to_end_is_killed(stub, tmp_path):
    word = f"stubborn-{tmp_path}"
    stub.write(f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", deaf, {word!r}])
time.sleep(600)
""")
    with pytest.raises(NoProgress, match="no kernel had been profiled"):
        run(CONFIGS, tmp_path / "bundle", device="cpu", quiet_s=2)
    assert not processes_with(word)


FOLLOWS = """
import os, sys
from pathlib import Path
from profiler.collect import watch
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', WORD]); "
child = child.replace("WORD", repr(sys.argv[1])) + "time.sleep(600)"
watch.follow([sys.executable, "-c", child, sys.argv[1]], cwd=Path("."), env=os.environ, quiet_s=600)
"""


def test_what_is_watched_ends_with_its_watcher_even_if_that_is_killed(tmp_path):
    """A worker of a cluster is killed where a run is interrupted: what it profiles knows nothing of that."""
    word = f"orphan-of-{tmp_path}"
    watcher = subprocess.Popen([sys.executable, "-c", FOLLOWS, word], env={**os.environ, "PYTHONPATH": str(ROOT)})

    def until(count):
        deadline = time.monotonic() + 20
        while len(processes_with(word)) != count and time.monotonic() < deadline:
            time.sleep(0.05)
        return len(processes_with(word)) == count

    assert until(3)  # the watcher, what it watches, and a child of that
    watcher.kill()
    watcher.wait()
    assert until(0)


@pytest.mark.parametrize("name", ["permission, exit 0", "permission, exit 1", "nothing matched"])
def test_command_line_says_which_and_what_to_do(name, stub, cli):
    body, _, first, remedy = CASES[name]
    stub.write(body)
    done = cli("run", "--suite", "quick", "--out", "bundle")
    lines = done.stderr.splitlines()
    shown = [line for line in lines if not line.startswith("[")]
    assert done.returncode == 1
    assert first in shown[0]
    assert all(word in done.stderr for word in remedy)
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert list(cli.folder.iterdir()) == []


def test_command_line_ends_a_run_that_does_not_move(stub, cli, tmp_path):
    word = f"cli-child-of-{tmp_path}"
    stub.write(NEVER.replace("WORD", word))
    done = cli("run", "--suite", "quick", "--out", "bundle", "--timeout", "2")
    assert done.returncode == 1
    shown = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    assert shown[0].startswith("No progress for 2 s")
    assert not processes_with(word)
    assert list(cli.folder.iterdir()) == []


def test_ncu_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("profiler.collect.ncu.PLACES", ())
    monkeypatch.setattr("profiler.collect.ncu.candidates", lambda: [])
    with pytest.raises(NcuMissing) as caught:
        run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert "--no-counters" in caught.value.remedy


def test_an_existing_folder_is_not_written_into(tmp_path):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="there already"):
        run(CONFIGS, tmp_path / "bundle", counters=False, device="cpu")
    assert (tmp_path / "bundle/mine.txt").read_text() == "mine"


def test_a_worker_that_cannot_start_is_a_failed_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "profiler.collect.worker.command", lambda plan, results: [sys.executable, "-c", "raise SystemExit('boom')", "x"]
    )
    with pytest.raises(WorkerFailed) as caught:
        run(CONFIGS, tmp_path / "bundle", counters=False, device="cpu")
    assert "boom" in caught.value.what
    assert list(tmp_path.iterdir()) == []
