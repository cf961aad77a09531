"""ncu's command line: the arguments, the version, the places, and what provenance keeps of it."""

import itertools
from pathlib import Path

import pytest

from profiler.collect import ncu, watch
from profiler.errors import NcuFailed, NcuMissing, NcuTooOld


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


def installed(folder, name, version):
    """An ncu that answers with a version, in a folder of its own."""
    path = folder / name / "ncu"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho 'Version {version}.0 (build 1)'\n")
    path.chmod(0o755)
    return str(path)


def test_an_ncu_that_is_too_old_is_passed_over_or_named(tmp_path, monkeypatch):
    old = installed(tmp_path, "old", "2021.3.1")
    new = installed(tmp_path, "new", "2025.3.1")
    monkeypatch.setattr(ncu, "candidates", lambda: [old, new])
    assert ncu.find().path == new
    with pytest.raises(NcuTooOld, match=r"ncu 2021\.3\.1 is too old: expected 2022\.1 or later") as caught:
        ncu.find(old)
    assert f"{new} (2025.3.1)" in caught.value.remedy and "--ncu PATH" in caught.value.remedy
    monkeypatch.setattr(ncu, "candidates", lambda: [old])
    with pytest.raises(NcuTooOld) as caught:
        ncu.find()
    assert caught.value.remedy == ncu.GET_NCU


def test_a_wrong_path_is_answered_with_the_ncu_that_there_is(tmp_path, monkeypatch):
    here = installed(tmp_path, "here", "2025.3.1")
    monkeypatch.setattr(ncu, "candidates", lambda: [here])
    with pytest.raises(NcuMissing) as caught:
        ncu.find("/nowhere/ncu")
    assert caught.value.remedy == f"Found elsewhere: {here} (2025.3.1). Name it with --ncu PATH."


def test_passes_and_launches_are_read_from_the_output():
    seen = watch.Seen()
    for line in (
        '==PROF== Profiling "nvjet_tst_128x256" - 0: 0%....50%....100% - 7 passes',
        '==PROF== Profiling "softmax" - 1: 0%....50%....100% - 9 passes',
        '==PROF== Profiling "copy": 0%....50%....100% - 1 pass',
    ):
        watch._take(line, seen)
    assert (seen.kernel, seen.launches, seen.passes) == ("copy", 3, 9)
