"""Files and paths that are no reports at all, and what messages say of them: the user's file, never ours."""

from __future__ import annotations

import gzip
import io
import os
import socket
import tarfile
import zipfile
from pathlib import Path

import pytest

from profiler import parse
from profiler.errors import BadInput, DamagedFile, FlashScopeError, UnsupportedFile
from profiler.parse import archive, compressed, sniff, worker
from tests.parse.conftest import DATA


def refused(call, error: type[FlashScopeError], *words: str) -> FlashScopeError:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.remedy and all(word in caught.value.what for word in words), caught.value.what
    return caught.value


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are files on POSIX only")
def test_what_is_no_file(tmp_path):
    """None of these is opened: a pipe would wait for ever, a device give without end."""
    os.mkfifo(tmp_path / "pipe.ncu-rep")
    refused(lambda: parse.load(tmp_path / "pipe.ncu-rep"), BadInput, "pipe.ncu-rep", "a pipe")
    refused(lambda: parse.load("/dev/zero"), BadInput, "zero", "device")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        refused(lambda: parse.load(tmp_path / "s"), BadInput, "socket")
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    refused(lambda: parse.load(tmp_path / "gone.csv"), BadInput, "gone.csv", "no such file")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    refused(lambda: parse.load(tmp_path / "round"), BadInput, "round")


def test_paths_that_cannot_be(tmp_path):
    refused(lambda: parse.load(tmp_path / ("x" * 5000)), BadInput)
    refused(lambda: parse.load("a\0b"), BadInput)
    refused(lambda: parse.load(tmp_path), BadInput, "profile.json")
    (tmp_path / "nothing.csv").touch()
    refused(lambda: parse.load(tmp_path / "nothing.csv"), UnsupportedFile, "nothing.csv is empty")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "locked.csv").write_text("x")
    (tmp_path / "locked.csv").chmod(0)
    refused(lambda: parse.load(tmp_path / "locked.csv"), BadInput, "locked.csv", "Permission denied")


def test_other_archives_are_called_by_name():
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(DATA / "exports" / "not_ncu_at_all.csv", "a.csv")
    for data, word in ((made.getvalue(), "tar"), (b"BZh91AY", "bzip2")):
        refused(lambda data=data: sniff.form(data[:4096], len(data), "x"), UnsupportedFile, word)


def test_a_gzip_bomb_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    (tmp_path / "b.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    refused(lambda: compressed.unpack(tmp_path / "b.gz", tmp_path / "out", "b.gz"), UnsupportedFile, "b.gz unpacks to")


def test_members_of_one_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as z:
        z.writestr("profile.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            z.writestr("profile.json", "{}")
    error = refused(lambda: archive.unpack(tmp_path / "twice.zip", tmp_path, "twice.zip"), DamagedFile, "twice.zip")
    assert str(tmp_path) not in str(error)


@pytest.mark.parametrize("member, data, word", [
    ("profile.json", b"{", "profile"), ("profile.json", b'{"schema_version": "x"}', "schema_version"),
    ("launches.parquet", b"PAR1 garbage PAR1", "launches.parquet")])
def test_a_damaged_bundle_is_called_by_the_users_name(tmp_path, member, data, word):
    """Through the process, as a user has it: the unpacked copy's folder is nobody's business."""
    with zipfile.ZipFile(tmp_path / "my run.zip", "w") as z:
        if member != "profile.json":
            z.writestr("b/profile.json", '{"schema_version": 1}')
        z.writestr(f"b/{member}", data)
    error = refused(lambda: parse.load(tmp_path / "my run.zip"), BadInput, "my run", word)
    for secret in ("members", "flashscope-read", "result", str(tmp_path)):
        assert secret not in f"{error} {error.detail}"


def test_temporary_names_become_the_users(tmp_path):
    """Whatever a library says of the files it was given."""
    said = f"cannot open {tmp_path}/members/000/a.csv and {tmp_path}/unpacked; {tmp_path / 'upload'} is odd"
    assert worker._named(said, tmp_path / "upload", tmp_path, "mine.zip") == \
        "cannot open mine.zip/a.csv and mine.zip; mine.zip is odd"


@pytest.mark.parametrize("name", ["trace.nsys-rep", "trace.pftrace", "trace.sqlite"])
def test_timelines_get_the_command_that_would_answer(name):
    head = b"SQLite format 3\0" if name.endswith("sqlite") else b"\x0a\x07binary\x00\x01"
    error = refused(lambda: sniff.form(head, 99, name), UnsupportedFile, name)
    assert "ncu --set full --nvtx -o report YOUR_PROGRAM" in error.remedy


@pytest.mark.parametrize("ending", [".ncu-repz", ".nsight-cuprof-report"])
def test_forms_without_a_real_sample_say_so(ending):
    report = (Path(DATA) / "reports" / "rtx3070_one_kernel.ncu-rep").read_bytes()
    bundle = parse.load_bytes(f"r{ending}", report)
    assert any("unverified" in note and ending in note for note in bundle.notes)
