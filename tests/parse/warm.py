"""A reading process forked from this one instead of started anew: 0.1 s where a new interpreter takes a second.

For the 10,000 mutations only. The limits, the worker's code and the watching are the product's. What differs: the
imports are shared, so that damage to them by an earlier file cannot be seen; what the worker wrote is read without the
checks of the bundle's schema that the product makes again; POSIX is needed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd

from profiler.bundle import Bundle


class Forked:
    """The part of ``subprocess.Popen`` that profiler.parse.child uses."""

    def __init__(self, folder: Path):
        self._lock, self.returncode = threading.Lock(), None
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _child(folder, write)
        os.close(write)
        self.stdout = open(read, "rb")  # noqa: SIM115

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        os.kill(self.pid, 9)


def _child(folder: Path, write: int) -> None:
    code = 1
    try:
        from profiler.parse import worker

        nothing = os.open(os.devnull, os.O_RDWR)
        for source, target in ((nothing, 0), (write, 1), (nothing, 2)):
            os.dup2(source, target)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        code = worker.do(folder)
        sys.stdout.flush()
    finally:
        os._exit(code)


def read(folder: Path) -> Bundle:
    """``bundle.read`` of what a worker wrote, without its checks."""
    profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    launches, metrics = (pd.read_parquet(folder / f"{name}.parquet", dtype_backend="numpy_nullable")
                         for name in ("launches", "metrics"))
    return Bundle(folder.name, profile, launches, metrics, notes=tuple(profile["notes"]))


def preload() -> Any:
    """Import in this process what a worker imports."""
    import ncu_report
    import pyarrow.parquet

    from profiler.parse import archive, build, compressed, report, text

    return ncu_report, pyarrow.parquet, archive, build, compressed, report, text
