"""A server of the app on a free port and a Chromium to look at it, both ended when done."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]


def chromium() -> str | None:
    """The Chromium to drive: CHROMIUM in the environment, else one on PATH."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


class Address(str):
    """Where a server listens; `process` is the server."""

    process: subprocess.Popen[bytes]


@contextmanager
def server(data: Path | None = None, script: Path = ROOT / "app.py", **more: str) -> Iterator[Address]:
    """The app's address while it runs; `data` in place of the recorded profiles, `more` for its environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, **({"FLASHSCOPE_DATA": str(data)} if data else {}), **more}
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(script), "--server.port", str(port),
         "--server.fileWatcherType", "none"],  # a source file that changes meanwhile would take modules away
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=None)
    address = Address(f"http://127.0.0.1:{port}")
    address.process = process
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=2).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the app's server did not start") from None
                time.sleep(0.02)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def settled(page) -> None:
    """Wait until the app has drawn and Streamlit says that no script runs."""
    page.wait_for_selector("[data-testid='stAppViewContainer']", timeout=60_000)
    page.wait_for_function(
        "() => document.querySelector('[data-testid=stApp]')?.getAttribute('data-test-script-state') === 'notRunning'"
        " && !document.querySelector('[data-testid=stSkeleton]')"
        " && [...document.querySelectorAll('[class*=st-key-chart] .stBidiComponent')]"
        ".every(one => one.querySelector('.main-svg'))",
        timeout=60_000)
