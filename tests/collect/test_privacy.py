"""Private data is found wherever a bundle holds text, and leaves a binary report without changing its values."""

import getpass
import socket
import sys
from pathlib import Path

import pytest

from profiler import privacy, table
from profiler.bundle import Bundle
from profiler.errors import DamagedFile, PrivateData
from profiler.parse import load

from .conftest import REPORTS, ROOT


@pytest.fixture
def person(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "engine7.example.org")
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/people/ada"))


def with_kernel(name):
    return Bundle("b", {}, table.make("launches", [{"launch": 0, "kernel": name}]))


@pytest.mark.parametrize(
    ("bundle", "where"),
    [
        (Bundle("b", {"commands": {"run": "run --out /srv/people/ada/x"}}), "profile.json.commands.run"),
        (Bundle("b", {"notes2": ["fine", "on engine7"]}), r"profile.json.notes2\[1\]"),
        (Bundle("of ada", {}), "name"),
        (Bundle("b", {}, notes=("seen on engine7.example.org",)), "notes"),
        (with_kernel("/home/someone/kernel.py:12"), "launches.kernel"),
        (Bundle("b", {"x": "C:\\Users\\someone\\report"}), "profile.json.x"),
        (Bundle("b", {}, timings=table.make("timings", [{"note": "by ada"}])), "timings.note"),
        (
            Bundle("b", {}, metrics=table.make("metrics", [{"metric": "m", "value": "/Users/someone/a"}])),
            "metrics.value",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_private_text_is_found_and_its_field_named(person, bundle, where):
    with pytest.raises(PrivateData, match=where):
        privacy.check(bundle)


def test_ordinary_text_passes(person):
    privacy.check(with_kernel("void adapter<float>(roadahead, int)"))  # ada only inside other words
    privacy.check(
        Bundle("b", {"gpu": {"name": "NVIDIA H200"}, "commands": {"ncu": "ncu --export report.ncu-rep python3 -m w"}})
    )


@pytest.mark.parametrize("name", ["h100_five_kernels", "a100_cutlass_int8_three_kernels", "rtx3070_nvtx_ranges"])
def test_scrubbed_report_parses_to_the_same_values(name, tmp_path):
    source, out = REPORTS / f"{name}.ncu-rep", tmp_path / "out.ncu-rep"
    assert privacy.scrub_file(source, out) > 0
    before, after = source.read_bytes(), out.read_bytes()
    assert len(before) == len(after)
    assert load(source).metrics.equals(load(out).metrics)
    # The host field follows the machine architecture; in the recordings it was made anonymous as host + xs.
    assert b"hostxxx" in before and b"hostxxx" not in after
    assert (
        b"/home/user/" not in after
        and b"/root/cutlass" not in after
        and b"192.168." not in after
        and b"172.17.0" not in after
    )
    assert [p.name for p in tmp_path.iterdir()] == ["out.ncu-rep"]


@pytest.mark.parametrize("path", sorted((ROOT / "data/reports").glob("*.ncu-rep")), ids=lambda path: path.stem)
def test_published_reports_have_nothing_left_to_scrub(path, person):
    assert privacy.scrub(path.read_bytes()) == path.read_bytes()


def test_public_text_stays():
    text = b'\x1a\x2ahttps://docs.nvidia.com/nsight-compute/a/index.html "\x1f/usr/local/cuda-13/bin/ncu_thing"'
    assert privacy.scrub(text) == text


def test_folders_of_a_compiler_and_a_command_line_are_masked_except_nvidias_own():
    # As a recorded report holds them: folders of line information between NUL bytes, and a command line.
    line = b"\x00/opt/torch/.venv/lib/python3.12/site-packages/triton\x00\x00flash2.py\x00"
    assert privacy.scrub(line) == b"\x00/xxx/xxxxx/xxxxx/xxx/xxxxxxxxxx/xxxxxxxxxxxxx/triton\x00\x00flash2.py\x00"
    command = b"ncu --export r.ncu-rep /opt/torch/.venv/bin/python3 -m profiler.workload plan.json\x00"
    assert privacy.scrub(command) == command.replace(b"/opt/torch/.venv/bin/", b"/xxx/xxxxx/xxxxx/xxx/")
    kept = b"\x00/opt/nvidia/nsight-compute/2025.3.1/ncu\x00/usr/local/cuda/include\x00"
    assert privacy.scrub(kept) == kept


def test_the_folder_of_this_python_is_private_unless_the_system_has_it(person, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/opt/rig/venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    found = privacy.private_strings()
    assert found["/opt/rig/venv"] == "folder of this Python" and "/usr" not in found and "/usr/bin" not in found
    with pytest.raises(PrivateData, match="folder of this Python"):
        privacy.check(Bundle("b", {"x": "see /opt/rig/venv/lib"}))


def test_an_error_that_quotes_a_path_is_kept_without_it(person):
    said = "failed: RuntimeError: /srv/people/ada/venv/lib/x.py, line 3, on engine7 of /home/someone/y"
    assert privacy.redact(said) == "failed: RuntimeError: [private]/venv/lib/x.py, line 3, on [private] of [private]/y"


def test_environment_settings_lose_their_values(person):
    found = privacy.scrub(b"\x0aUSER=ada\x00HOSTNAME=engine7\x00CUDA_HOME=/usr/local/cuda\x00")
    assert b"ada" not in found and b"engine7" not in found and b"CUDA_HOME=/usr/local/cuda" in found


def test_a_scrub_that_changes_values_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy, "scrub", lambda data: (REPORTS / "h100_five_kernels.ncu-rep").read_bytes())
    with pytest.raises(DamagedFile):
        privacy.scrub_file(REPORTS / "rtx3070_one_kernel.ncu-rep", tmp_path / "out.ncu-rep")
    assert list(tmp_path.iterdir()) == []
