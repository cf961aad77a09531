"""Runs a command in a process group of its own, follows its output, and ends the group when nothing moves any more.

Every known failure of ncu gets its own class and remedy here; the text decides before the exit code, since ncu ends
with 0 after some of them.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.errors import CountersNotPermitted, NcuFailed, NoProgress, NothingProfiled, RunFailed, WorkerFailed

KEEP_LINES = 60
GRACE_S = 5.0
PROFILING = re.compile(r'==PROF== Profiling "(?P<kernel>[^"]*)"')
PASSES = re.compile(r"100% - (\d+) passe?s?")

PERMISSION = """The driver keeps the performance counters for administrators. Ways out:
  own machine:  run as root (sudo -E env "PATH=$PATH" python -m profiler run …), or once for everybody:
                echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/profiling.conf
                then reload the driver or reboot.
  container:    start it with --cap-add=SYS_ADMIN, or set the option above on the host.
  WSL2:         in Windows, NVIDIA Control Panel > Developer > Manage GPU Performance Counters > allow all users.
  rented GPU:   only the provider can allow it; ask for a bare-metal or virtual machine instead of a container.
Meanwhile `python -m profiler run --no-counters` measures time, memory and error, labelled as without counters."""


@dataclass
class Seen:
    """What a watched command did: its last lines, exit code, the kernel profiled last, launches and replay passes."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEEP_LINES))
    code: int | None = None
    kernel: str = ""
    launches: int = 0
    passes: int = 0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def end_group(process: subprocess.Popen) -> None:
    """End the command and all its children: first asked to, then killed."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                break
            except PermissionError:  # only zombies of the group are left on some systems
                break
            time.sleep(0.05)
        else:
            continue
        break
    process.wait()


def follow(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    quiet_s: float,
    on_line: Callable[[str, Seen], None] = lambda line, seen: None,
    moved: Callable[[], object] = lambda: None,
) -> Seen:
    """Run to the end. Raises NoProgress after ``quiet_s`` seconds without output or a change of ``moved()``.

    Whatever happens, Ctrl-C included, no process of the group is left behind.
    """
    seen = Seen()
    try:
        process = subprocess.Popen(
            list(arguments),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise NcuFailed(f"{Path(arguments[0]).name}: could not be started ({error.strerror}).") from error
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    decoder, pending = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    last, mark = time.monotonic(), moved()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if selector.select(timeout=0.2):
                    data = process.stdout.read()
                    if data == b"":
                        break
                    last = time.monotonic()
                    pending += decoder.decode(data or b"")
                    *whole, pending = re.split(r"\r\n|\n|\r", pending)
                    for line in whole:
                        _take(line, seen)
                        on_line(line, seen)
                elif process.poll() is not None:
                    break  # ended, while a child that outlived it still holds the pipe
                if (now := moved()) != mark:
                    last, mark = time.monotonic(), now
                if time.monotonic() - last > quiet_s:
                    # A kernel being profiled is named before its progress ends the line.
                    _take(pending, seen)
                    where = f"the last kernel was {seen.kernel}" if seen.kernel else "no kernel had been profiled"
                    raise NoProgress(
                        f"No progress for {quiet_s:.0f} s: {where}. The process and its children were ended.",
                        remedy="A kernel that waits for another one never ends under kernel replay; a larger --timeout "
                        "helps when the configuration is merely slow.",
                        detail=seen.text,
                    )
        _take(pending, seen)
        process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_group(process)
        process.stdout.close()
    seen.code = process.returncode
    return seen


def _take(line: str, seen: Seen) -> None:
    if not line.strip():
        return
    seen.lines.append(line.rstrip())
    if match := PROFILING.search(line):
        seen.kernel = match["kernel"]
        seen.launches += 1
    if match := PASSES.search(line):
        seen.passes = max(seen.passes, int(match[1]))


# What ncu says -> class, sentence, remedy. The first that is found decides.
FAILURES: tuple[tuple[str, type[RunFailed], str, str], ...] = (
    (
        r"ERR_NVGPUCTRPERM",
        CountersNotPermitted,
        "The GPU's performance counters are not permitted to this user (ERR_NVGPUCTRPERM).",
        PERMISSION,
    ),
    (
        r"driver resource was unavailable|other tool \(like DCGM\)",
        NcuFailed,
        "The counters are in use by another tool (DCGM, or another profiler).",
        "End it, or pause DCGM: dcgmi profiling --pause, and --resume afterwards.",
    ),
    (
        r"(?i)lock ?file|InterprocessLockFailed|nsight-compute-lock",
        NcuFailed,
        "ncu could not take its lock file in the temporary folder: it belongs to another user or another run.",
        "Set TMPDIR to a folder of your own, or wait for the other run.",
    ),
    (
        r"(?i)MIG (?:instance|device|mode)|shared counters.*MIG",
        NcuFailed,
        "These counters are not available on this MIG slice.",
        "Profile on a whole GPU, or on a slice that has the counters to itself.",
    ),
    (
        r"LibraryNotLoaded|Failed to initialize the profiler",
        NcuFailed,
        "ncu could not load the driver's profiling library.",
        "Some sandboxes (gVisor) do not pass it through; use a virtual machine or bare metal, or --no-counters.",
    ),
    (
        r"Profiling is not supported on (?:this )?device|unsupported GPU",
        NcuFailed,
        "This ncu does not support this GPU.",
        "Use the ncu of a CUDA toolkit that knows the GPU (ncu --list-chips), or --no-counters.",
    ),
    (
        r"(?i)cuda driver.*(?:not compatible|incompatible|insufficient)|UnsupportedDriver",
        NcuFailed,
        "ncu and the driver do not fit each other.",
        "Use the ncu that came with this driver's CUDA version, or update the driver.",
    ),
    (
        r"Failed to find metric|The following metrics do not exist|Invalid metric",
        NcuFailed,
        "ncu does not know one of the metrics asked for.",
        "Update Nsight Compute; the lines below name the metric.",
    ),
    (
        r"(?i)out of memory.*(?:save|restore|replay)|(?:save|restore|replay).*out of memory|OutOfMemory",
        NcuFailed,
        "ncu ran out of memory while saving device memory for replay.",
        "Leave out the longest sequences for this implementation.",
    ),
)
NOTHING = re.compile(r"No kernels were profiled")
UNKNOWN_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([A-Za-z0-9_]+(?:\.[A-Za-z_]+)*)")


def unknown_metrics(text: str, asked: Sequence[str]) -> list[str]:
    """Those of the metrics asked for that this ncu said it does not have; it names them with or without a suffix."""
    named = set(UNKNOWN_METRIC.findall(text))
    return [name for name in asked if name in named or name.split(".")[0] in named]


APPLICATION = re.compile(r"The application returned an error code \((\d+)\)|application (?:crashed|terminated)")


def diagnose(seen: Seen) -> RunFailed | None:
    """The error that a finished ncu stands for, or None when it profiled something and ended well."""
    for pattern, kind, what, remedy in FAILURES:
        if re.search(pattern, seen.text):
            return kind(what, remedy=remedy, detail=seen.text)
    if APPLICATION.search(seen.text):
        last = [line for line in seen.lines if not line.startswith("==")]
        return WorkerFailed(
            "The profiled Python process failed" + (f": {last[-1]}" if last else "."),
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
