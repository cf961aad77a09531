"""Every known failure of ncu by what it says: its class, one sentence, and the remedy.

The text decides before the exit code, since ncu ends with 0 after some of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.collect.watch import Seen
from profiler.errors import (
    CountersBusy,
    CountersNotPermitted,
    DriverMismatch,
    MigWithoutCounters,
    NcuFailed,
    NcuLocked,
    NothingProfiled,
    ReplayOutOfMemory,
    RunFailed,
    UnknownMetric,
    UnsupportedGpu,
    WorkerFailed,
    WrongPython,
)

# Where a process runs -> what gives it the counters there.
ALLOWING = {
    "own machine": "run as root (sudo -E env \"PATH=$PATH\" python -m profiler run …), or once for everybody: "
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/profiling.conf, "
    "then reload the driver or reboot.",
    "container": "start it with --cap-add=SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0 on the host.",
    "WSL2": "in Windows, NVIDIA Control Panel > Developer > Manage GPU Performance Counters > allow all users.",
    "rented GPU": "only the provider can allow it; ask for a bare-metal or virtual machine instead of a container.",
}


def surroundings(root: Path = Path("/")) -> str:
    """Which of ALLOWING this process runs in, as far as files tell; a rented machine looks like any other."""
    with contextlib.suppress(OSError):
        if "microsoft" in (root / "proc/version").read_text(errors="replace").lower():
            return "WSL2"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "container"
    with contextlib.suppress(OSError):
        first = (root / "proc/1/cgroup").read_text(errors="replace")
        if re.search(r"docker|kubepods|containerd|lxc|libpod", first):
            return "container"
    return "own machine"


def permission(here: str | None = None) -> str:
    """How to be given the counters, the way that fits this place first."""
    here = here or surroundings()
    places = [here, *(place for place in ALLOWING if place != here)]
    ways = [f"  {place + (' (this looks like one)' if place == here else '')}: {ALLOWING[place]}" for place in places]
    return "\n".join([
        "The driver keeps the performance counters for administrators. Ways out:",
        *ways,
        "Meanwhile `run --no-counters` measures time, memory and error, labelled as without counters.",
    ])


SUDO = 'sudo -E env "PATH=$PATH" "$(command -v python)" -m profiler run …'

# What ncu says -> class, sentence, remedy. The first that is found decides.
FAILURES: tuple[tuple[str, type[RunFailed], str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM",
        CountersNotPermitted,
        "The GPU's performance counters are not permitted to this user (ERR_NVGPUCTRPERM).",
        "",  # by place: permission()
    ),
    (
        r"driver resource was unavailable|other tool \(like DCGM\)",
        CountersBusy,
        "The counters are in use by another tool (DCGM, or another profiler).",
        "End it, or pause DCGM: dcgmi profiling --pause, and --resume afterwards.",
    ),
    (
        r"(?i)lock ?file|InterprocessLockFailed|nsight-compute-lock",
        NcuLocked,
        "ncu could not take its lock file in the temporary folder: it belongs to another user or another run.",
        "Set TMPDIR to a folder of your own, wait for the other run, or have the file nsight-compute-lock removed.",
    ),
    (
        r"(?im)^==.*(?:\bMIG\b|multi-instance)",
        MigWithoutCounters,
        "These counters are not available on this MIG slice: it shares them with its neighbours.",
        "Profile on a whole GPU, or on a slice whose compute instance fills its GPU instance; or --no-counters.",
    ),
    (
        r"LibraryNotLoaded|Failed to initialize the profiler",
        DriverMismatch,
        "ncu could not load the driver's profiling library.",
        "Some sandboxes (gVisor) do not pass it through; use a virtual machine or bare metal, or --no-counters.",
    ),
    (
        r"(?i)not supported on (?:this )?device \d* *as it uses the Windows Subsystem",
        UnsupportedGpu,
        "Profiling is not supported under this version of the Windows Subsystem for Linux.",
        "It needs Windows 11 and a driver of 2022 or later; or run on Linux itself, or with --no-counters.",
    ),
    (
        r"Profiling is not supported on (?:this )?device|unsupported GPU",
        UnsupportedGpu,
        "This ncu does not support this GPU.",
        "Use the ncu of a CUDA toolkit that knows the GPU (ncu --list-chips), or --no-counters.",
    ),
    (
        r"(?i)cuda driver.*(?:not compatible|incompatible|insufficient)|UnsupportedDriver",
        DriverMismatch,
        "ncu and the driver do not fit each other: one is too new for the other.",
        "Use the ncu of this driver's CUDA version (nvidia-smi shows it; --ncu PATH), or update the driver.",
    ),
    (
        r"Failed to find metric|The following metrics do not exist|Invalid metric",
        UnknownMetric,
        "ncu does not know one of the metrics asked for.",
        "Update Nsight Compute; the lines below name the metric.",
    ),
    (
        r"(?im)^==(?:ERROR|WARNING)==.*(?:out of memory|OutOfMemory|insufficient memory)",
        ReplayOutOfMemory,
        "ncu ran out of memory while saving device memory for replay.",
        "Leave out the longest sequences for this implementation; fewer metrics need as much memory.",
    ),
)
NOTHING = re.compile(r"No kernels were profiled")
UNKNOWN_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([A-Za-z0-9_]+(?:\.[A-Za-z_]+)*)")


def unknown_metrics(text: str, asked: Sequence[str]) -> list[str]:
    """Those of the metrics asked for that this ncu said it does not have; it names them with or without a suffix."""
    named = set(UNKNOWN_METRIC.findall(text))
    return [name for name in asked if name in named or name.split(".")[0] in named]


APPLICATION = re.compile(r"The application returned an error code \((\d+)\)|application (?:crashed|terminated)")


NEEDED = {"torch": "PyTorch", "triton": "Triton", "numpy": "NumPy", "nvtx": "the package nvtx"}


def worker_failure(
    what: str, *, remedy: str, detail: str, environment: Mapping[str, str] = os.environ
) -> WorkerFailed:
    """The profiled process failed: WrongPython where sudo chose one without the packages, else WorkerFailed."""
    missing = re.search(r"No module named '?([\w.]+)", what + detail)
    if missing and environment.get("SUDO_USER"):
        return WrongPython(
            f"The Python that sudo runs lacks {missing[1]}: it is not the one of your environment.",
            remedy=f"Keep your environment: {SUDO}",
            detail=detail,
        )
    name = missing[1].split(".")[0] if missing else ""
    if name in NEEDED:  # said without the lines that led there: they are ours, not the visitor's
        return WorkerFailed(
            f"This Python lacks {NEEDED[name]}, which measuring needs.",
            remedy="pip install -r requirements.txt, on a machine with an NVIDIA GPU; `python -m profiler doctor` says "
                   "what else is missing.",
        )
    return WorkerFailed(what, remedy=remedy, detail=detail)


def nothing_ran(records: Sequence[Mapping[str, Any]]) -> RunFailed | None:
    """Why ncu saw no kernel, where every configuration says that it could not be run; None where one was."""
    said = list(dict.fromkeys(str(record.get("status")) for record in records))
    if not said or "ok" in said:
        return None
    return worker_failure(
        f"No configuration could be run under ncu: {said[0].rstrip('.')}.",
        remedy="`python -m profiler doctor` checks the packages; `run --no-counters` shows whether it fails there too.",
        detail="\n".join(said[1:20]),
    )


def diagnose(seen: Seen) -> RunFailed | None:
    """The error that a finished ncu stands for, or None when it profiled something and ended well."""
    for pattern, kind, what, remedy in FAILURES:
        if re.search(pattern, seen.text):
            return kind(what, remedy=remedy or permission(), detail=seen.text)
    if APPLICATION.search(seen.text):
        last = [line for line in seen.lines if not line.startswith("==")]
        return worker_failure(
            "The profiled Python process failed" + (f": {last[-1].rstrip('.')}." if last else "."),
            remedy="Its last lines are below; `run --no-counters` shows whether it also fails without ncu.",
            detail="\n".join(last[-20:]),
        )
    if NOTHING.search(seen.text):
        return NothingProfiled(
            "ncu ran, but no kernel was launched inside FlashScope's NVTX ranges (No kernels were profiled).",
            remedy="Is the package nvtx installed for this Python, and is NVTX_DISABLE unset? "
            "`python -m profiler doctor` checks it.",
            detail=seen.text,
        )
    if seen.code:
        return NcuFailed(f"ncu ended with exit code {seen.code}.", remedy="Its last lines are below.", detail=seen.text)
    return None
