"""Pictures and PDF by a Chrome or Chromium of this machine, headless and cut off from every network."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

import plotly.graph_objects as go

from profiler.errors import RunFailed
from profiler.export import deck

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
PLACES = {  # where installers put it without touching PATH
    "darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
        "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    ),
    "win32": tuple(
        f"{os.environ.get(root, '')}\\{path}"
        for root in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA")
        for path in ("Google\\Chrome\\Application\\chrome.exe", "Microsoft\\Edge\\Application\\msedge.exe")
    ),
}
REMEDY = (
    "Install Chrome or Chromium (Debian, Ubuntu: `apt install chromium`; macOS: `brew install --cask chromium`; "
    "Windows: Edge will do) and run the same command again."
)
SECONDS = 300
PATIENCE_MS = 120_000  # of the browser's virtual clock: it jumps ahead whenever the page has nothing to do
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1920,1080",
    f"--virtual-time-budget={PATIENCE_MS}",
)
DRAW = """
(async () => {
  for (const job of JSON.parse(document.getElementById("jobs").textContent)) {
    const found = document.createElement("pre");
    found.id = job.key;
    found.textContent = await Plotly.toImage({ data: job.data, layout: job.layout },
      { format: job.format, width: job.width, height: job.height, scale: job.scale });
    document.body.append(found);
  }
  document.body.append(Object.assign(document.createElement("pre"), { id: "done" }));
})();
"""


@dataclass(frozen=True)
class Job:
    """One picture: a figure of fixed size in pixels, "svg" or "png"; scale: device pixels a pixel, png only."""

    figure: go.Figure
    format: str
    scale: float = 1


def find() -> str | None:
    """A Chrome or Chromium on PATH or where its installer puts it; None where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or next((path for path in PLACES.get(sys.platform, ()) if Path(path).is_file()), None)


def pictures(browser: str, jobs: Mapping[str, Job]) -> dict[str, bytes]:
    """The pictures by the jobs' keys (letters, digits, "-", "_", "."). Raises RunFailed when the browser cannot."""
    listed = [
        {
            "key": key,
            "format": job.format,
            "scale": job.scale,
            "width": int(job.figure.layout.width),
            "height": int(job.figure.layout.height),
            **deck.drawing(job.figure),
        }
        for key, job in jobs.items()
    ]
    page = (
        f'<!DOCTYPE html><meta charset="utf-8"><body><script>{deck.plotly()}</script>'
        f'<script id="jobs" type="application/json">{deck.embedded(listed)}</script><script>{DRAW}</script>'
    )
    with tempfile.TemporaryDirectory(prefix="flashscope-") as folder:
        file = Path(folder) / "pictures.html"
        file.write_text(page, encoding="utf-8")
        said = _run(browser, folder, "--dump-dom", file.as_uri())
    if '<pre id="done">' not in said:
        raise RunFailed("The browser ended before all pictures were drawn.", remedy=REMEDY)
    found = {key: html.unescape(text) for key, text in re.findall(r'<pre id="([^"]+)">(data:[^<]*)</pre>', said)}
    if absent := [key for key in jobs if key not in found]:
        raise RunFailed(f"The browser drew no {absent[0]}.", remedy=REMEDY)
    return {key: _content(found[key]) for key in jobs}


def _content(address: str) -> bytes:
    """What a data: address holds."""
    kind, _, body = address.partition(",")
    return b64decode(body) if kind.endswith(";base64") else unquote_to_bytes(body)


def pdf(browser: str, html_file: Path) -> bytes:
    """The deck in ``html_file`` on paper, a page a screen. Raises RunFailed when the browser cannot."""
    with tempfile.TemporaryDirectory(prefix="flashscope-") as folder:
        out = Path(folder) / "deck.pdf"
        _run(
            browser, folder, "--no-pdf-header-footer", f"--print-to-pdf={out}", f"{html_file.resolve().as_uri()}?paper"
        )
        if not out.is_file() or not out.stat().st_size:
            raise RunFailed("The browser wrote no PDF.", remedy=REMEDY)
        return out.read_bytes()


def _run(browser: str, folder: str, *arguments: str) -> str:
    flags = [*FLAGS, f"--user-data-dir={folder}/profile"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chrome refuses to start as root with its sandbox
    try:
        done = subprocess.run(
            [browser, *flags, *arguments],
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "HOME": folder},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunFailed(f"{Path(browser).name} could not draw: {type(error).__name__}.", remedy=REMEDY) from error
    if done.returncode:
        raise RunFailed(
            f"{Path(browser).name} ended with code {done.returncode}.",
            remedy=REMEDY,
            detail=done.stderr.decode("utf-8", "replace")[-2000:],
        )
    return done.stdout.decode("utf-8", "replace")
