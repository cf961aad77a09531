"""Profiling runs started from the app: each a process of its own, one at a time, the rest in a queue.

A run outlives reruns, reloads and closed tabs: it belongs to the server, not to a visitor. Its Python is the one that
runs the app, or the one named in the environment variable FLASHSCOPE_PYTHON (where torch lives in another environment).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import streamlit as st

from profiler.dashboard import store, text
from profiler.errors import BadInput, RunFailed

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
FOR_COUNTERS = ("Nsight Compute", "Counter permission")  # what the doctor calls what only counters need
MOST_WAITING = 3
TAIL_BYTES = 20_000
PATIENCE_S = 10  # between asking a run to end and ending it


def python() -> str:
    return os.environ.get("FLASHSCOPE_PYTHON") or sys.executable


@dataclass
class Job:
    """One run. progress(): finished, of how many, and what it is at."""

    suite: str
    counters: bool
    out: Path
    log: Path
    state: str = WAITING
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def command(self) -> list[str]:
        more = [] if self.counters else ["--no-counters"]
        return [python(), "-m", "profiler", "run", "--suite", self.suite, "--out", str(self.out), *more]

    def tail(self) -> str:
        """The end of what the run has written."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def progress(self) -> tuple[int, int, str]:
        lines = re.findall(r"^\[(\d+)/(\d+)\] (.*)$", self.tail(), re.MULTILINE)
        return (int(lines[-1][0]), int(lines[-1][1]), lines[-1][2].strip()) if lines else (0, 0, "")


class Jobs:
    """All runs of this server, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._jobs: list[Job] = []
        threading.Thread(target=self._work, daemon=True, name="flashscope-jobs").start()

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs)

    def start(self, suite: str, counters: bool, folder: Path) -> Job:
        """Queue a run of `suite` into a new folder under `folder`."""
        with self._lock:
            if sum(job.state == WAITING for job in self._jobs) >= MOST_WAITING:
                raise BadInput(text.QUEUE_FULL, remedy=text.QUEUE_FULL_REMEDY)
            taken = {job.out.name for job in self._jobs} | {path.name for path in folder.glob("*")}
            stem = f"{suite}-{time.strftime('%Y%m%d-%H%M')}"
            name = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, 1000))) if n not in taken)
            handle, log = tempfile.mkstemp(prefix="flashscope-run-", suffix=".log")
            os.close(handle)
            job = Job(suite, counters, folder / name, Path(log))
            self._jobs.append(job)
            self._lock.notify_all()
            return job

    def cancel(self, job: Job) -> None:
        """Take a waiting run out of the queue; end a running one with everything it started."""
        with self._lock:
            if job.state == WAITING:
                job.state = CANCELLED
            elif job.state == RUNNING and job.process is not None:
                job.state = CANCELLED
                threading.Thread(target=_end, args=(job.process,), daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                job = next((job for job in self._jobs if job.state == WAITING), None)
                if job is None:
                    self._lock.wait()
                    continue
                try:
                    with open(job.log, "wb") as log:
                        job.process = subprocess.Popen(
                            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                            cwd=store.ROOT, start_new_session=True)
                    job.state = RUNNING
                except OSError as error:
                    job.log.write_text(f"{error}\n", encoding="utf-8")
                    job.state = FAILED
                    continue
            code = job.process.wait()
            with self._lock:
                if job.state == RUNNING:
                    job.state = DONE if code == 0 else FAILED


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if process.poll() is None:
            try:
                os.killpg(process.pid, number) if hasattr(os, "killpg") else process.terminate()
            except ProcessLookupError:
                return
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    return Jobs()


@st.cache_data(ttl=600, show_spinner=False)
def machine(interpreter: str) -> list[dict[str, str]]:
    """What the machine has and lacks, as `profiler doctor` says: name, state, text, remedy, needed_for."""
    command = [interpreter, "-m", "profiler", "doctor", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, cwd=store.ROOT, timeout=120, check=False)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise RunFailed(text.DOCTOR_FAILED, remedy=text.DOCTOR_FAILED_REMEDY, detail=str(error)) from error
