"""Hostile zips among good files, through the app's uploader: each is refused by name, the good ones are there."""

from __future__ import annotations

import io
import stat
import struct
import tempfile
import warnings
import zipfile

import pytest

from profiler.dashboard import store
from profiler.errors import FlashScopeError
from profiler.parse import archive, sniff
from tests.dashboard.conftest import REPORTS, link_of, upload, visit

GOOD = REPORTS / "rtx3070_one_kernel.ncu-rep"


def packed(members: dict[str, bytes], mode: int = 0) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        for name, data in members.items():
            info = zipfile.ZipInfo(name.rstrip("\0"))
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return made.getvalue()


def encrypted(data: bytes) -> bytes:
    """The same zip with the mark of encryption in both of its headers."""
    made = bytearray(data)
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = made.index(magic) + at
        made[place:place + 2] = struct.pack("<H", 1)
    return bytes(made)


HOSTILE = {
    "slip.zip": (packed({"../../outside.csv": b"x"}), "points outside"),
    "root.zip": (packed({"/tmp/outside.csv": b"x"}), "points outside"),
    "drive.zip": (packed({"C:\\outside.csv": b"x"}), "points outside"),
    "link.zip": (packed({"r.ncu-rep": b"/etc/hostname"}, stat.S_IFLNK | 0o777), "a link or a device"),
    "bomb.zip": (packed({"r.csv": bytes(40 << 20)}), "far more than a bundle holds"),
    "many.zip": (packed({f"{i}.csv": b"" for i in range(300)}), "holds 300 files"),
    "nested.zip": (packed({"inner.csv": packed({"r.csv": b"x"})}), "another archive"),
    "locked.zip": (encrypted(packed({"r.csv": b"x"})), "is encrypted"),
    "twice.zip": (packed({"profile.json": b"{}", "profile.json\0": b"{}"}), "twice; nothing was unpacked"),
    "cut.zip": (packed({"r.ncu-rep": GOOD.read_bytes()})[:700], "cannot be unpacked"),
    "foreign.zip": (packed({"notes.docx": b"x"}), "without a bundle or a report"),
}


SLOW = ("root.zip", "drive.zip", "many.zip", "cut.zip", "foreign.zip")  # refused by the same lines as one of the rest


@pytest.mark.parametrize("name", HOSTILE)
def test_each_is_refused_by_name(name, tmp_path):
    data, words = HOSTILE[name]
    (tmp_path / name).write_bytes(data)
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    if name == "nested.zip":
        assert sniff.form(data[:4096], len(data), name) == sniff.ARCHIVE  # refused where the member is read, see below
        return
    with pytest.raises(FlashScopeError, match=words) as caught:
        archive.unpack(tmp_path / name, folder, name)
    assert name in caught.value.what and caught.value.remedy
    assert set(tmp_path.rglob("*")) == before


def test_hostile_zips_among_good_files(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    hostile = {name: words for name, (_, words) in HOSTILE.items() if name not in SLOW}
    for name in hostile:
        (tmp_path / name).write_bytes(HOSTILE[name][0])
    (tmp_path / "good.zip").write_bytes(packed({"a/r.ncu-rep": GOOD.read_bytes()}))
    before = set(tmp_path.rglob("*"))
    app = upload(visit("launches"), *(tmp_path / name for name in hostile), tmp_path / "good.zip")
    assert not app.exception
    said = [error.value for error in app.error]
    assert len(said) == len(hostile)
    for name, words in hostile.items():
        assert any(name.removesuffix(".zip") in one and words in one for one in said), (name, words, said)
    shelf = store.shelves().items(link_of(app, "uploads"))
    assert [source.label for source in shelf.values()] == ["good.zip"]
    assert set(tmp_path.rglob("*")) == before, "nothing is written beside, and nothing left in temporary folders"


def test_a_link_with_a_foreign_token_shows_nothing_of_anybody():
    app = upload(visit("launches"), GOOD)
    key = link_of(app, "source")
    for token in ("A" * 22, "../../etc/passwd", "<script>", "0" * 400, "%00", "é" * 22):
        stranger = visit("launches", uploads=token, source=key)
        assert not stranger.exception and not stranger.error
        assert link_of(stranger, "source") != key and not link_of(stranger, "uploads")
        assert not store.shelves().items(token)
