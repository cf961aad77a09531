from __future__ import annotations

from pathlib import Path

import pytest

from profiler.bundle import Bundle
from profiler.parse import build, text

DATA = Path(__file__).resolve().parents[1] / "data"
REPORTS = sorted((DATA / "reports").glob("*.ncu-rep"))


def read(content: str | bytes) -> Bundle:
    """A text export as a bundle, in this process: what the worker does, without the cost of starting one."""
    data = content if isinstance(content, bytes) else content.encode()
    return build.bundle(text.read(data), "test", {"name": "test", "sha256": "", "bytes": len(data)})


def column(bundle: Bundle, name: str) -> list:
    return [None if value is None or value != value else value for value in bundle.launches[name].astype(object).where(
        bundle.launches[name].notna(), None)]


@pytest.fixture
def small_report() -> bytes:
    return (DATA / "reports" / "rtx3070_one_kernel.ncu-rep").read_bytes()
