"""Damaged, foreign and hostile files: each refused by name, nothing left behind, this process alive."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import stat
import struct
import sys
import tempfile
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from profiler import bundle as bundles
from profiler import parse
from profiler.errors import BadInput, DamagedFile, FlashScopeError, NewerSchema, UnsupportedFile
from profiler.parse import Limits, archive, blocks, child
from tests import synthetic
from tests.parse import mutate
from tests.parse.conftest import REPORTS, column, read


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """Everything temporary goes to a folder of the test's own, which must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def refused(data: bytes, name: str = "r.ncu-rep", error: type[FlashScopeError] = BadInput, **limits) -> FlashScopeError:
    with pytest.raises(error) as caught:
        parse.load_bytes(name, data, limits=Limits(**limits) if limits else None)
    assert caught.value.what and caught.value.remedy
    return caught.value


def test_a_report_under_any_name_and_packing(small_report):
    import pyarrow

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("folder/r.ncu-rep", small_report)
    for name, data in (("r.ncu-rep", small_report), ("r.csv", small_report), ("r.nsight-cuprof-report", small_report),
                       ("r.ncu-repz", small_report), ("r.ncu-rep.gz", gzip.compress(small_report)),
                       ("r.zip", zipped.getvalue()),
                       ("r.ncu-repz", pyarrow.compress(small_report, "zstd", asbytes=True))):
        assert column(parse.load_bytes(name, data), "duration_ns") == [3232], name


def test_empty():
    assert "empty" in refused(b"", error=UnsupportedFile).what


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_cut_short(small_report, part):
    assert "cut short" in refused(small_report[:int(len(small_report) * part)], error=DamagedFile).what


def test_wrong_magic(small_report):
    assert "4e 56 58 00" in refused(b"NVX\x00" + small_report[4:], error=UnsupportedFile).what


def test_junk_appended(small_report):
    refused(small_report + random.Random(1).randbytes(1000), error=DamagedFile)


@pytest.mark.parametrize("at", [15, 17])
@pytest.mark.parametrize("bit", [0, 3, 6, 7])
def test_a_flipped_bit_in_the_first_block(small_report, at, bit):
    """These end NVIDIA's reader with SIGABRT, or its loading with nothing found."""
    data = bytearray(small_report)
    data[at] ^= 1 << bit
    try:
        assert column(parse.load_bytes("r.ncu-rep", bytes(data)), "duration_ns") == [3232]
    except FlashScopeError as error:
        assert isinstance(error, DamagedFile) and error.what and error.remedy


def test_a_reader_that_aborts_is_a_named_error(tmp_path, monkeypatch, small_report):
    """Whatever ends the process that reads, the app lives and says so."""
    (tmp_path / "ncu_report.py").write_text("import os\ndef load_report(path):\n    os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = refused(small_report, error=DamagedFile)
    assert "SIGABRT" in error.what if os.name == "posix" else "ended with" in error.what


def test_a_reader_without_end_is_given_up(tmp_path, monkeypatch, small_report):
    (tmp_path / "ncu_report.py").write_text("def load_report(path):\n    while True:\n        pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "given up" in refused(small_report, error=DamagedFile, seconds=4).what


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the memory of one process")
def test_a_reader_that_takes_all_memory_is_given_up(tmp_path, monkeypatch, small_report):
    code = "def load_report(path):\n    return [bytearray(1 << 28) for _ in range(1000)]\n"
    (tmp_path / "ncu_report.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "memory" in refused(small_report, error=DamagedFile, memory_bytes=3 << 30).what


def test_random_damage_ends_in_a_bundle_or_a_named_error():
    """A short run of tests/parse/mutate.py, where 10,000 are made by hand; any other exception would come through
    here."""
    outcomes = mutate.run(60, seed=20260101, small=True)
    assert sum(outcomes.values()) == 60
    assert {outcome for _, _, outcome in outcomes} > {"same", "DamagedFile"}
    assert all(outcome == "DamagedFile" for form, kind, outcome in outcomes if form == "report"
               and kind in ("cut", "append"))


def test_random_damage_to_exports_ends_in_rows_or_a_named_error():
    """240 more, of the text forms only, without a process for each."""
    files = [path for path in mutate.sample_files(small=True) if path.suffix != ".ncu-rep"]
    outcomes = Counter()
    for number in range(240):
        _, _, data = mutate.damaged(20260102, number, files)
        try:
            outcomes[len(read(data).launches) > 0] += 1
        except FlashScopeError as error:
            outcomes[type(error).__name__] += 1
            assert error.what and error.remedy
    assert outcomes[True] > 100 and outcomes[False] == 0 and outcomes["UnsupportedFile"] > 0


@pytest.mark.parametrize("report", REPORTS, ids=lambda p: p.name)
def test_the_frame_of_each_sample(report):
    frame = blocks.read(report, report.name)
    assert frame.results in (1, 3, 5) and frame.session["ncu"][:2] == "20" and frame.session["created"][:2] == "20"


def test_a_frame_that_lies_about_its_length(tmp_path):
    path = tmp_path / "r"
    for length in (0xFFFFFFFF, 1000):
        path.write_bytes(blocks.MAGIC + struct.pack("<I", 2) + b"\x08\x07" + struct.pack("<I", length) + b"x")
        with pytest.raises(DamagedFile):
            blocks.read(path, "r")


@pytest.mark.parametrize("name, data, word", [
    ("trace.nsys-rep", b"\x00\x01\x02 something", "Nsight Systems report"),
    ("trace.sqlite", b"SQLite format 3\x00 rest", "SQLite"),
    ("trace.json", b'{"traceEvents": [{"ph": "X"}]}', "Perfetto"),
    ("trace.json.gz", gzip.compress(b'{"schemaVersion": 1, "traceEvents": []}'), "Perfetto"),
    ("memory.pickle", pickle.dumps({"a": 1}), "pickle"), ("memory.ncu-rep", pickle.dumps({"a": 1}), "pickle"),
    ("launches.parquet", b"PAR1 rest", "parquet"), ("kernel.cubin", b"\x7fELF rest", "ELF"),
    ("a.ncu-rep", b"%PDF-1.7", "PDF"),
    ("a.csv", b"<!DOCTYPE html><html>", "web page"), ("a.bin", bytes(range(256)), "unknown kind"),
    ("a.7z", b"7z\xbc\xaf\x27\x1c", "7z"),
])
def test_foreign_files_are_called_by_name(name, data, word):
    error = refused(data, name, UnsupportedFile)
    assert word in error.what
    if name.startswith("trace"):
        assert "ncu --set full" in error.remedy


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "opened",)

    refused(pickle.dumps(Trap()), "r.pkl", UnsupportedFile)
    assert not (tmp_path / "opened").exists()


def packed(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in members.items():
            z.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("member", ["../profile.json", "/etc/profile.json", "a/../../profile.json", "C:\\profile.json",
                                    "..\\profile.json"])
def test_a_member_that_points_outside(member, tmp_path):
    error = refused(packed(**{member: b"{}", "launches.parquet": b"PAR1"}), "b.zip", UnsupportedFile)
    assert "points outside" in error.what


def test_a_link_in_a_zip():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("profile.json", b"{}")
        link = zipfile.ZipInfo("launches.parquet")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        z.writestr(link, "/etc/passwd")
    assert "link" in refused(out.getvalue(), "b.zip", UnsupportedFile).what


def test_bombs(monkeypatch):
    zeros = bytes(64 << 20)
    assert "far more" in refused(packed(**{"profile.json": b"{}", "launches.parquet": zeros}), "b.zip",
                                 UnsupportedFile).what
    many = packed(**{f"{i}.csv": b"" for i in range(archive.MOST_FILES + 1)})
    assert "files" in refused(many, "b.zip", UnsupportedFile).what


def test_an_encrypted_member():
    data = bytearray(packed(**{"profile.json": b"{}"}))
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= 1
    assert "encrypted" in refused(bytes(data), "b.zip", UnsupportedFile).what


def test_a_zip_of_nothing_of_ours():
    assert "holiday.jpg" in refused(packed(**{"holiday.jpg": b"x"}), "b.zip", UnsupportedFile).what
    refused(packed(**{"inner.csv": packed(a=b"x")}), "b.zip", UnsupportedFile)
    refused(packed(**{"profile.json": b"{}"})[:-30], "b.zip", DamagedFile)


def bundle_zip(tmp_path: Path, edit=lambda folder: None) -> bytes:
    folder = bundles.write(synthetic.bundle(lengths=(512,), masks=("full",), head_dims=(64,)), tmp_path / "mine")
    edit(folder)
    return packed(**{f"mine/{p.name}": p.read_bytes() for p in folder.iterdir()})


def test_a_zipped_bundle(tmp_path):
    loaded = parse.load_bytes("mine.zip", bundle_zip(tmp_path))
    assert loaded.name == "mine" and loaded.profile["kind"] == "profile" and set(loaded.launches["source"]) == {"mine"}
    assert set(loaded.launches["stage"]) >= {"scores", "softmax", "values", "attention"} and len(loaded.timings) == 4
    folder = parse.load(tmp_path / "mine")
    assert folder.launches.drop(columns="source").equals(loaded.launches.drop(columns="source"))


def test_a_damaged_bundle(tmp_path):
    def garble(folder):
        (folder / "launches.parquet").write_bytes(b"PAR1 garbage PAR1")

    refused(bundle_zip(tmp_path, garble), "mine.zip", DamagedFile)


def test_a_bundle_of_tomorrow(tmp_path):
    def newer(folder):
        text = (folder / "profile.json").read_text()
        (folder / "profile.json").write_text(text.replace('"schema_version": 1', '"schema_version": 99'))

    refused(bundle_zip(tmp_path, newer), "mine.zip", NewerSchema)


def test_a_very_large_table_stays_on_disk_and_is_read_launch_by_launch(tmp_path, monkeypatch):
    made = synthetic.bundle(lengths=(512,), masks=("full",), head_dims=(64,))
    unused = made.metrics.assign(metric="sm__other.sum", used_for=None)
    both = pd.concat([made.metrics, unused]).sort_values("launch", kind="stable", ignore_index=True)
    folder = bundles.write(replace(made, metrics=both), tmp_path / "large")
    assert len(bundles.read(folder).metrics) == bundles.read(folder).metric_count == 2 * len(made.metrics)
    monkeypatch.setattr(bundles, "MOST_METRICS", len(made.metrics))
    large = bundles.read(folder)
    assert large.metrics.empty and large.metric_count == 2 * len(made.metrics)
    assert large.raw(1)["metric"].tolist() == ["dram__bytes_read.sum", "sm__other.sum"]
    assert large.raw(1)["value"].tolist() == [made.metrics["value"][1]] * 2
    again = bundles.read(bundles.write(large, tmp_path / "copy"))
    assert again.metric_count == large.metric_count and len(again.raw(1)) == 2
    (folder / "metrics.parquet").write_bytes(b"PAR1 garbage PAR1")
    with pytest.raises(DamagedFile, match=r"metrics\.parquet"):
        large.raw(1)


def test_a_zip_of_several_reports(tmp_path, small_report):
    path = tmp_path / "two.zip"
    path.write_bytes(packed(**{"a/r.ncu-rep": small_report, "b/r.ncu-rep": small_report}))
    assert "2 reports" in refused(path.read_bytes(), "two.zip").what
    first, second = parse.load_many([path])
    assert (first.name, second.name) == ("two: r.ncu-rep", "two: r.ncu-rep (2)")


@pytest.mark.parametrize("name",
                         ["../../etc/x.ncu-rep", "a\x00b\n.ncu-rep", "C:\\temp\\x.ncu-rep", "x" * 5000, "-o", ""])
def test_a_hostile_name_is_only_a_name(name, small_report):
    loaded = parse.load_bytes(name, small_report)
    assert loaded.name.isprintable() and not {"/", "\\"} & set(loaded.name) and 0 < len(loaded.name) <= 160


def test_a_missing_file(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        parse.load(tmp_path / "nothing.ncu-rep")


def test_the_child_says_only_what_errors_it_knows():
    assert type(child._error({"class": "SystemExit", "what": "x"})) is DamagedFile
    assert type(child._error({"class": "NewerSchema", "what": "x", "remedy": "y"})) is NewerSchema
