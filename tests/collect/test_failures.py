"""Every known way in which ncu fails: what the user reads, the exit code, and what is left behind (nothing)."""

import sys

import pytest

from profiler.collect.run import run
from profiler.collect.suites import sweep
from profiler.errors import (
    BadInput,
    CountersNotPermitted,
    NcuFailed,
    NcuMissing,
    NoProgress,
    NothingProfiled,
    RunFailed,
    WorkerFailed,
)

from .conftest import processes_with

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
        NcuFailed,
        "another tool",
        ("dcgmi",),
    ),
    "unsupported": (
        "say('==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer "
        "--list-chips option.'); "
        "sys.exit(1)",
        NcuFailed,
        "does not support this GPU",
        ("--list-chips",),
    ),
    "sandbox": (
        "say('==ERROR== Failed to initialize the profiler: LibraryNotLoaded'); sys.exit(1)",
        NcuFailed,
        "profiling library",
        ("gVisor",),
    ),
    "metric": (
        "say('==ERROR== Failed to find metric dram__bytes_read.sum'); sys.exit(1)",
        NcuFailed,
        "one of the metrics",
        ("Update Nsight Compute",),
    ),
    "application": (
        "say('ModuleNotFoundError: No module named torch', '==PROF== Disconnected from process 1', '==ERROR== The "
        "application returned an error code (1).', '==WARNING== No kernels were profiled.'); sys.exit(1)",
        WorkerFailed,
        "No module named torch",
        ("--no-counters",),
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
    assert done.stderr.splitlines()[0].startswith("No progress for 2 s")
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
