"""Temporary files: each carries the number of its process, and goes with it; after a kill, at the next start."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path

OLD_SECONDS = 3600  # a younger one may belong to a process that this one cannot see, as in another container
_NAME = re.compile(r"flashscope-(?:read|file)-(\d{1,9})-\w+(?:\.[A-Za-z0-9.-]*)?")


def prefix(kind: str) -> str:
    """How the name of a temporary file ("file") or folder ("read") of this process begins."""
    _clean_once()
    return f"flashscope-{kind}-{os.getpid()}-"


@lru_cache(maxsize=1)
def _clean_once() -> None:
    clean(Path(tempfile.gettempdir()))


def clean(folder: Path) -> None:
    """Remove what ended processes of this user left in ``folder``; nothing of a running one, no link, nothing else."""
    if os.name != "posix":
        return  # there a number says nothing of who has it
    for path in folder.glob("flashscope-*"):
        match = _NAME.fullmatch(path.name)
        try:
            about = path.lstat()
            mine = about.st_uid == os.getuid() and time.time() - about.st_mtime > OLD_SECONDS and not path.is_symlink()
            if match and mine and not _runs(int(match[1])):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            continue  # another process was faster


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
