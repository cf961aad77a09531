"""`python -m kernels check`: what it finds in kernels with a known fault, and what it says of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import check, registry
from kernels.__main__ import main


def blocks_without_a_tail_mask(name, q, k, v, **options):
    """Right for whole blocks of 64 keys; of the last, broken one it also counts keys of zeros, 64 at a time."""
    missing = -k.shape[2] % 64
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (k, v))
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    if options["causal"]:
        hidden = torch.ones_like(hidden).triu(k.shape[2] - missing - q.shape[2] + 1)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def one_wrong_element(name, q, k, v, **options):
    out = registry.call("naive", q, k, v, causal=options["causal"])
    if q.shape[0] > 1:
        out = out.clone()
        out[1, 2, 7, 5] += 0.5
    return out


def not_a_number(name, q, k, v, **options):
    out = registry.call("naive", q, k, v, causal=options["causal"]).clone()
    out[0, 0, 3, 1] = float("nan")
    return out


def findings(call, name="naive", lengths=(64, 65)):
    return list(check.check(name, check.ladder(lengths), dtype=torch.float32, device="cpu", head_dim=16, call=call))


def test_a_missing_tail_mask_shows_at_65_and_not_at_64():
    found = findings(blocks_without_a_tail_mask)
    assert all(finding.ok for finding in found if finding.step.startswith("N 64"))
    assert {finding.step for finding in found} == {"N 64, full", "N 64, causal", "N 65, full"}
    assert "naive: first wrong at N 65, full: out is off by" in check.summary(found)


def test_the_place_of_the_largest_error_is_named():
    found = findings(one_wrong_element)
    wrong = [finding for finding in found if not finding.ok]
    assert wrong[0].step == "batch 2, heads 4/2, 55 x 65, full" and wrong[0].tensor == "out"
    assert wrong[0].where == "batch 1, head 2, query 7, column 5"
    assert wrong[0].error == pytest.approx(0.5, abs=1e-3)


def test_what_is_not_a_number_is_wrong():
    found = findings(not_a_number)
    assert {finding.step for finding in found} == {"N 64, full"}
    assert "out is off by nan" in check.summary(found) and "query 3, column 1" in check.summary(found)


def test_the_ladder_of_a_gpu():
    names = [step.name for step in check.ladder(check.LENGTHS)]
    assert names[:5] == ["N 64", "N 65", "N 113", "N 512", "N 2048"] and "heads 4/2" in names[5]


def test_our_kernels_are_right(device, capsys):
    assert main(["check", "--lengths", "33,65", "--head-dim", "16", "--dtype", "float32"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[1:]] == [
        "naive", "naive_folded", "flash1", "flash2", "hopper", "flash_varlen", "flash_sparse"]
    assert [line for line in said[1:] if "right in 6 steps" not in line] == [line for line in said if "hopper:" in line]


def test_what_another_gpu_takes_is_said_and_fails_only_where_it_is_asked_for(device, capsys):
    arguments = ["check", "--lengths", "33", "--head-dim", "16", "--dtype", "float32"]
    assert main([*arguments, "--implementation", "hopper"]) == 1
    assert "hopper: refused at N 33" in capsys.readouterr().out


def test_a_refusal_is_said_and_is_not_a_success(device, capsys):
    assert main(["check", "--implementation", "flash2", "--lengths", "64", "--head-dim", "300"]) == 1
    assert "refused at N 64, full: q: expected head_dim 1 to 256, got 300" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, message", [
    (["--lengths", "64,x"], "--lengths: expected whole numbers"), (["--lengths", "5"], "at least 11"),
    (["--implementation", "flash9"], "'flash9'")])
def test_what_makes_no_sense_is_exit_2(arguments, message, capsys, device):
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_from_the_command_line():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "kernels", "check", "--implementation", "flash2", "--lengths", "33",
                           "--head-dim", "16"], capture_output=True, text=True, cwd=Path(__file__).parents[2],
                          env=environment)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "flash2: right in 4 steps" in done.stdout
