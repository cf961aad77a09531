"""What a killed process leaves behind: its reader ends, and the next start removes its temporary files, only those."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from profiler.parse import child, scratch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process numbers and owners of files as POSIX has them")


def test_only_what_ended_processes_left_is_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {f"flashscope-read-{ended.pid}-abc": False, f"flashscope-file-{ended.pid}-abc.csv": False,
             f"flashscope-read-{os.getpid()}-abc": True, f"flashscope-file-{ended.pid}-young": True,
             "flashscope-notes": True, f"other-read-{ended.pid}-abc": True}
    for name in names:
        (tmp_path / name).mkdir() if "read" in name else (tmp_path / name).write_text("x")
        if "young" not in name:
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / f"flashscope-read-{ended.pid}-link").symlink_to(tmp_path / "flashscope-notes")
    scratch.clean(tmp_path)
    assert {name for name in names if (tmp_path / name).exists()} == {name for name, kept in names.items() if kept}
    assert (tmp_path / f"flashscope-read-{ended.pid}-link").is_symlink()


def test_a_reader_ends_with_the_process_that_started_it(tmp_path):
    """It waits on a pipe for ever; killed is the process between."""
    os.mkfifo(tmp_path / "source")
    (tmp_path / "job.json").write_text(
        f'{{"source": "{tmp_path}/source", "name": "x", "memory_bytes": {8 << 30}, "launch": null}}')
    between = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; from pathlib import Path; from profiler.parse import child; "
         "print(child.start(Path(sys.argv[1])).pid, flush=True); time.sleep(600)", str(tmp_path)],
        stdout=subprocess.PIPE, text=True, cwd=child.ROOT)
    assert between.stdout
    reader = int(between.stdout.readline())
    time.sleep(1.0)
    between.kill()
    between.wait()
    for _ in range(300):
        if not _alive(reader):
            return
        time.sleep(0.1)
    os.kill(reader, 9)
    pytest.fail("the reader goes on")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
