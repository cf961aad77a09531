"""One measurement on a GPU at a time: two at once would spoil each other's times and counters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from profiler.errors import GpuInUse


def cache_folder() -> Path:
    """This user's folder for what may be lost: XDG_CACHE_HOME or ~/.cache, else the temporary folder."""
    with contextlib.suppress(OSError, RuntimeError):
        base = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(base) if base else Path.home() / ".cache") / "flashscope"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"flashscope-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def measuring(gpu: str) -> Iterator[None]:
    """Hold the GPU ``gpu`` for this user. Raises GpuInUse, naming the other process and its start.

    The operating system gives the lock up when its holder ends, however it ends: a file that a killed run left behind
    is no lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows: no ncu run of ours starts there
        yield
        return
    path = cache_folder() / f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', gpu)}.lock"
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GpuInUse(
                f"Another FlashScope run measures on this GPU: {_holder(file)}.",
                remedy="Wait for it, or choose another GPU with CUDA_VISIBLE_DEVICES.",
            ) from error
        file.truncate(0)
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "started": started}))
        file.flush()
        yield


def _holder(file: IO[str]) -> str:
    """Who holds the lock, as its file says."""
    try:
        file.seek(0)
        found = json.load(file)
        return f"process {found['pid']}, started {found['started']}"
    except (ValueError, KeyError, TypeError):
        return "it has just started"
