"""Runs a command in a process group of its own, follows its output, and ends the group when nothing moves any more."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.errors import NcuFailed, NoProgress

KEEP_LINES = 60
GRACE_S = 5.0
# Ends a process group as soon as the process that started it is gone, kill -9 included: $1 the one, $2 the other.
GUARD = 'while kill -0 "$1" 2>/dev/null; do sleep 0.5; done; kill -9 "-$2"'
PROFILING = re.compile(r'==PROF== Profiling "(?P<kernel>[^"]*)"')
PASSES = re.compile(r"100% - (\d+) passe?s?")


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


@contextlib.contextmanager
def guarded(process: subprocess.Popen) -> Iterator[None]:
    """Meanwhile the group of ``process`` ends with this process, however that ends."""
    guard = subprocess.Popen(["sh", "-c", GUARD, "sh", str(os.getpid()), str(process.pid)], start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()


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
        with guarded(process), selectors.DefaultSelector() as selector:
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
