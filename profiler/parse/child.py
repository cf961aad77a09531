"""Starting, watching and ending the process that reads one file."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiler import errors

ROOT = Path(__file__).resolve().parents[2]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """seconds: longest time without progress; total_seconds: longest in all (None: from the size of the file);
    memory_bytes: address space of the process (Linux; elsewhere only time is limited)."""

    seconds: float = 120.0
    total_seconds: float | None = None
    memory_bytes: int = 8 << 30

    def total(self, size: int) -> float:
        return self.total_seconds if self.total_seconds is not None else self.seconds + 3.0 * size / 1e6


def run(source: Path, name: str, folder: Path, limits: Limits, progress: Progress | None = None,
        launch: int | None = None) -> list[Path]:
    """Read ``source``, or one launch of it, in a process of its own: the folders of the bundles it wrote under
    ``folder``. Raises the error it met."""
    job = {"source": str(source), "name": name, "memory_bytes": limits.memory_bytes, "launch": launch}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    process = start(folder)
    try:
        _watch(process, source.stat().st_size, name, limits, progress)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
    error = folder / "error.json"
    if error.is_file():
        raise _error(json.loads(error.read_text(encoding="utf-8")))
    if process.returncode != 0 or not (folder / "result").is_dir():
        raise errors.DamagedFile(
            f"{name} is damaged: the process that read it ended with {_ending(process.returncode)}.",
            remedy="Copy the file again from where it was written, or collect it again with ncu.")
    return sorted((folder / "result").iterdir())


def start(folder: Path) -> subprocess.Popen:
    """The process that does FOLDER/job.json."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    return subprocess.Popen(
        [sys.executable, "-m", "profiler.parse.worker", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=environment)


def _watch(process: subprocess.Popen, size: int, name: str, limits: Limits, progress: Progress | None) -> None:
    lines: queue.Queue[bytes | None] = queue.Queue()

    def pump() -> None:
        while process.stdout and (line := process.stdout.readline(4096)):
            lines.put(line)
        process.wait()
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    start = last = time.monotonic()
    total = limits.total(size)
    while True:
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            line = b""
        if line is None and process.poll() is not None:
            return
        line = line or b""
        words = line.split()
        if len(words) == 3 and words[0] == b"progress" and words[1].isdigit() and words[2].isdigit():
            last = time.monotonic()
            if progress is not None:
                progress(int(words[1]), int(words[2]))
        now = time.monotonic()
        if now - last > limits.seconds or now - start > total:
            raise errors.DamagedFile(
                f"{name} was given up after {now - start:.0f} s: reading it made no end.",
                remedy="The file may be damaged. Of a very large report collect fewer launches or metrics.")


def _error(found: dict[str, str]) -> errors.FlashScopeError:
    kind = getattr(errors, str(found.get("class")), errors.DamagedFile)
    if not (isinstance(kind, type) and issubclass(kind, errors.FlashScopeError)):
        kind = errors.DamagedFile
    return kind(str(found.get("what")), remedy=str(found.get("remedy", "")), detail=str(found.get("detail", "")))


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
