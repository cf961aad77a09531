"""A stand-in for ncu: a script first on PATH that says and does what the real one was seen to."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "tests/data/reports"
VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version 2025.3.1.0 (build 36398880) (public-release)"""

# `{run}` is the body for anything but --version. export(): the value of --export; application(): run what is profiled.
SCRIPT = '''#!{python}
import json, os, pathlib, shutil, subprocess, sys, time
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("""{version}""")
    sys.exit(0)
report = pathlib.Path(arguments[arguments.index("--export") + 1])
def say(*lines):
    print("\\n".join(lines), flush=True)
def application():
    start = arguments.index("-m") - 1
    return subprocess.run(arguments[start:]).returncode
{run}
'''


class Stub:
    """The stub's folder; ``write(body)`` makes ncu do ``body``."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "ncu"

    def write(self, body: str, version: str = VERSION) -> None:
        self.folder.mkdir(exist_ok=True)
        self.path.write_text(SCRIPT.format(python=sys.executable, version=version, run=body), encoding="utf-8")
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def stub(tmp_path, monkeypatch):
    found = Stub(tmp_path / "bin")
    found.write("sys.exit(0)")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    return found


@pytest.fixture
def cli(tmp_path):
    """Runs ``python -m profiler ARGUMENTS`` from an empty folder; a finished process with text output."""
    folder = tmp_path / "work"
    folder.mkdir()

    def call(*arguments: str, timeout: float = 120, env: dict[str, str] | None = None,
             stdout: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "profiler", *arguments],
            cwd=folder,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            timeout=timeout,
            check=False,
        )

    call.folder = folder
    return call


def processes_with(word: str) -> list[str]:
    """Command lines of running processes that contain ``word``; the test gives each stub a word of its own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text:
            found.append(text)
    return found


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """The workload runs tiny shapes here: more threads only make it wait for itself."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Locks and paces of a test are its own, not the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
