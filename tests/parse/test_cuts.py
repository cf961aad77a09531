"""Every sample cut at every twentieth of its length: refused by name, or read with a note; nothing passes for whole."""

from __future__ import annotations

import pytest

from profiler.errors import DamagedFile, FlashScopeError
from profiler.parse import blocks
from tests.parse.conftest import DATA, REPORTS, read

TEXTS = sorted(path for path in (DATA / "exports").iterdir() if path.suffix != ".json")


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_cut_report_is_refused(path, tmp_path):
    """By its frame alone, before NVIDIA's reader sees it."""
    data = path.read_bytes()
    for part in range(1, 20):
        (tmp_path / "cut.ncu-rep").write_bytes(data[:len(data) * part // 20])
        with pytest.raises(DamagedFile, match=r"cut\.ncu-rep is cut short"):
            blocks.read(tmp_path / "cut.ncu-rep", "cut.ncu-rep")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_cut_export_is_refused_or_said(path):
    data = path.read_bytes()
    whole = outcome(data)
    for part in range(1, 20):
        found = outcome(data[:len(data) * part // 20])
        if isinstance(found, FlashScopeError):
            assert found.what and found.remedy, part
        else:
            assert set(found.notes) - set(whole.notes), f"{part}/20 of the file passes for all of it"


def outcome(data):
    try:
        return read(data)
    except FlashScopeError as error:
        return error
