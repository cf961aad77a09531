"""The command line: exit codes, what goes to which stream, help with examples."""

import json
from pathlib import Path

import pytest

from .conftest import REPORTS

VERBS = ("doctor", "run", "bench", "import", "table", "predict", "evidence", "scrub")


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(cli, verb):
    done = cli(verb, "--help")
    assert done.returncode == 0 and f"Example: python -m profiler {verb}" in done.stdout


def test_version(cli):
    from profiler import __version__

    assert cli("--version").stdout.strip() == __version__


def test_table_prints_the_table_and_nothing_else(cli):
    done = cli("table", str(REPORTS / "h100_five_kernels.ncu-rep"), "--format", "json")
    rows = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert [row["duration_ns"] for row in rows] == [3968, 4224, 4192, 3968, 3968]


def test_table_says_on_standard_error_what_a_cut_file_lacks(cli, tmp_path):
    whole = (REPORTS.parent / "exports" / "long_details_with_rules_ragged.csv").read_bytes()
    (tmp_path / "cut.csv").write_bytes(whole[:len(whole) * 3 // 4])
    done = cli("table", str(tmp_path / "cut.csv"), "--format", "json")
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 1
    assert done.stderr.startswith("note: ") and "cut short" in done.stderr


def test_table_as_csv(cli):
    lines = cli("table", str(REPORTS / "h100_five_kernels.ncu-rep")).stdout.splitlines()
    assert lines[0].startswith("source,launch,range,domain,kernel") and len(lines) == 6


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("table", "missing.ncu-rep"), "missing.ncu-rep: no such file."),
        (
            ("table", str(REPORTS / "h100_five_kernels.ncu-rep"), "--format", "xml"),
            "--format: expected csv, json or parquet, got 'xml'.",
        ),
        (("run", "--suite", "everything", "--out", "x"), "--suite: expected one of"),
        (
            ("run", "--suite", "quick", "--n", "64", "--out", "x"),
            "--suite: it has no configuration with these values.",
        ),
        (("predict", "-i", "nothing"), "--implementation: expected one of decode,"),
        (("predict", "--n", "-4"), "--n: expected a positive whole number, got -4."),
        (("bench", "--mask", "diagonal"), "mask: expected 'full', 'causal'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(cli, arguments, first):
    done = cli(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(first) and "Traceback" not in done.stderr


def test_doctor_is_for_the_viewer_unless_strict(cli):
    done = cli("doctor", "--json")
    checks = json.loads(done.stdout)
    assert {check["state"] for check in checks} <= {"ok", "missing", "wrong"}
    assert all(check["remedy"] for check in checks if check["state"] != "ok")
    viewer = all(check["state"] == "ok" for check in checks if check["needed_for"] == "viewer")
    everything = all(check["state"] == "ok" for check in checks)
    assert done.returncode == (0 if viewer else 1)
    assert cli("doctor", "--strict").returncode == (0 if everything else 1)


def test_predict_says_that_nothing_was_measured(cli):
    text = cli("predict", "-i", "naive", "--n", "4096").stdout
    # Six passes over S or P of 16·4096²·2 B, and Q, K, V, O of 16·4096·64·2 B once each, worked out by hand.
    assert "predicted, not measured" in text and f"{6 * 536_870_912 + 4 * 8_388_608:,}" in text


def test_import_makes_a_bundle_that_the_other_verbs_open(cli):
    two = [str(REPORTS / f"{name}.ncu-rep") for name in ("h100_five_kernels", "rtx3070_nvtx_ranges")]
    done = cli("import", *two, "--out", "both")
    assert done.returncode == 0 and done.stdout == "both\n"
    assert done.stderr.startswith("8 launches in 3 NVTX ranges on NVIDIA H100") and "RTX 3070" in done.stderr
    rows = json.loads(cli("table", "both", "--format", "json").stdout)
    assert [row["launch"] for row in rows] == list(range(8))
    assert cli("import", two[0], "--out", "both").returncode == 2


def test_evidence_of_a_foreign_report_cannot_tell(cli):
    claims = json.loads(cli("evidence", str(REPORTS / "h100_five_kernels.ncu-rep"), "--json").stdout)
    assert claims and "holds" not in {claim["verdict"] for claim in claims}


def test_scrub_writes_beside_and_never_over(cli):
    report = cli.folder / "mine.ncu-rep"
    report.write_bytes((REPORTS / "rtx3070_nvtx_ranges.ncu-rep").read_bytes())
    assert cli("scrub", "mine.ncu-rep").returncode == 0
    assert b"hostxxx" not in (cli.folder / "mine-scrubbed.ncu-rep").read_bytes()
    assert cli("scrub", "mine.ncu-rep").returncode == 2


def _raise(error):
    raise error


@pytest.mark.parametrize(("error", "code", "first"), [
    (PermissionError(13, "Permission denied", "out/x"), 1, "Cannot read or write out/x: Permission denied."),
    (OSError(28, "No space left on device"), 1, "Cannot read or write: No space left on device."),
    (KeyboardInterrupt(), 130, "Ended by Ctrl-C."), (MemoryError(), 1, "Not enough memory."),
    (KeyError("x"), 1, "Unexpected KeyError: 'x' (test_cli.py, line "), (BrokenPipeError(), 0, "")], ids=repr)
def test_whatever_is_raised_is_one_sentence(error, code, first, monkeypatch, capfd):
    from profiler.__main__ import main

    monkeypatch.setattr("profiler.__main__._silence", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main(lambda: _raise(error))
    said = capfd.readouterr().err
    assert ended.value.code == code and said.startswith(first) and "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_said(cli):
    with open("/dev/full", "w") as full:
        done = cli("predict", stdout=full)
    assert done.returncode == 1 and done.stderr.startswith("Cannot read or write: No space left")


def test_a_terminal_that_knows_ascii_only(cli):
    """Every character that it lacks is escaped as JSON does it, so that what is printed stays JSON."""
    asked = ("predict", "-i", "naive", "--direction", "backward", "--json")  # dP∘P is one of its tensors
    plain, ascii_only = (cli(*asked, env={"PYTHONIOENCODING": codec}) for codec in ("utf-8", "ascii"))
    assert not plain.stdout.isascii() and ascii_only.stdout.isascii() and ascii_only.stderr == ""
    assert json.loads(plain.stdout) == json.loads(ascii_only.stdout)
