"""ncu's command line: the arguments, the version, the places, and what provenance keeps of it."""

import itertools
from pathlib import Path

import pytest

from profiler.collect import ncu, watch
from profiler.errors import NcuFailed, NcuMissing


def test_command_selects_our_ranges_and_leaves_the_clocks_alone():
    made = ncu.command("/opt/ncu", ["python", "-m", "work"], export=Path("report.ncu-rep"), metrics=["a.sum", "b.sum"])
    assert made[0] == "/opt/ncu" and made[-3:] == ["python", "-m", "work"]
    options = dict(itertools.pairwise(made))
    assert options["--nvtx-include"] == "regex:flashscope@.*/"
    assert options["--metrics"] == "a.sum,b.sum"
    assert (options["--cache-control"], options["--clock-control"], options["--replay-mode"]) == (
        "all",
        "none",
        "kernel",
    )
    assert "--graph-profiling" not in made  # an old ncu has no such option
    newer = ncu.command("ncu", [], export=Path("r"), metrics=[], version="2025.3.1")
    assert dict(itertools.pairwise(newer))["--graph-profiling"] == "node"
    assert options["--target-processes"] == "all" and "--nvtx" in made and "--set" not in made


def test_public_command_keeps_file_names_only():
    text = ncu.public_command(
        ["/home/someone/cuda/bin/ncu", "--export", "/tmp/x/report.ncu-rep", "C:\\Users\\me\\python.exe", "a.sum"]
    )
    assert text.startswith("ncu --export report.ncu-rep ") and "someone" not in text and "/tmp" not in text


def test_version_is_read_without_the_build_number(stub):
    assert ncu.find() == ncu.Ncu(str(stub.path), "2025.3.1")


def test_a_program_that_is_not_ncu_is_refused(stub):
    stub.write("sys.exit(0)", version="something else 1.2")
    with pytest.raises(NcuFailed, match="no version"):
        ncu.find()


def test_a_broken_ncu_on_path_does_not_hide_a_working_one(stub, tmp_path, monkeypatch):
    good = tmp_path / "good"
    stub.folder, stub.path = good, good / "ncu"
    stub.write("sys.exit(0)")
    broken = tmp_path / "bin" / "ncu"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(ncu, "candidates", lambda: [str(broken), str(good / "ncu")])
    assert ncu.find().path == str(good / "ncu")


def test_the_named_program_must_exist():
    with pytest.raises(NcuMissing, match="--ncu"):
        ncu.find("/nowhere/ncu")


def test_newest_installed_comes_first(tmp_path, monkeypatch):
    for version in ("2023.3.0", "2025.10.0", "2025.3.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").touch()
    monkeypatch.setenv("PATH", "")
    found = ncu.candidates([f"{tmp_path}/*/ncu"])
    assert [Path(p).parent.name for p in found] == ["2025.10.0", "2025.3.1", "2023.3.0"]


def test_passes_and_launches_are_read_from_the_output():
    seen = watch.Seen()
    for line in (
        '==PROF== Profiling "nvjet_tst_128x256" - 0: 0%....50%....100% - 7 passes',
        '==PROF== Profiling "softmax" - 1: 0%....50%....100% - 9 passes',
        '==PROF== Profiling "copy": 0%....50%....100% - 1 pass',
    ):
        watch._take(line, seen)
    assert (seen.kernel, seen.launches, seen.passes) == ("copy", 3, 9)
