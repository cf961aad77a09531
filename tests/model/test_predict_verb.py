"""python -m profiler predict: every implementation, plain text and JSON; nonsense refused in one sentence."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from profiler.__main__ import app
from profiler.errors import BadInput
from profiler.model.implementations import BUILDERS


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["predict", *arguments])
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize(("name", "direction"), BUILDERS)
def test_every_implementation_and_direction(name, direction):
    found = json.loads(call("-i", name, "--direction", direction, "--n", "16", "--nk", "512", "--json",
                            "--device", "NVIDIA H200"))
    assert found["kind"] == "predicted"
    assert found["bounds_ns"][found["binding"]] == max(found["bounds_ns"].values()) > 0
    assert found["dram_bytes"] >= found["compulsory_total_bytes"] > 0


def test_text_says_predicted_and_what_is_not():
    told = call("-i", "sdpa_cudnn", "--n", "4096")
    assert told.splitlines()[0] == "sdpa_cudnn forward on B1 H16 N4096 D64 bf16 full: predicted, not measured"
    assert "HBM                       33,554,432 B" in told and "L2 to SM                  not predicted" in told
    blocks = call("--mask", "causal", "--n", "4096")  # 32 query blocks: 2·(1 + … + 32) key blocks, two cross each
    assert "992 full, 64 crossing, 992 skipped" in blocks


def test_options_and_lengths():
    found = json.loads(call("-i", "decode", "--n", "1", "--nk", "4096", "--batch", "2", "--heads", "2", "--json",
                            "--with", "k_lengths=[96, 4096]", "--with", "n_new=1"))
    assert [stage["stage"] for stage in found["stages"]] == ["append", "attention"]
    assert found["compulsory_bytes"]["K"] == 2 * (96 + 4096) * 64 * 2
    biased = json.loads(call("--n", "512", "--with", "attn_bias=1", "--json"))
    assert biased["stages"][0]["reads"]["bias"] == 512 * 512 * 2


@pytest.mark.parametrize(("arguments", "said"), [
    (["--n", "0"], "--n: expected a positive whole number, got 0"),
    (["--nk", "0"], "--nk: expected a positive whole number, got 0"),
    (["--heads", "-1"], "--heads: expected a positive whole number, got -1"),
    (["--block-n", "0"], "--block-n: expected a positive whole number, got 0"),
    (["--page-size", "-1"], "--page-size: expected a whole number of at least 0"),
    (["--kv-heads", "3"], "kv_heads: expected a divisor of heads = 16, got 3"),
    (["-i", "flash9"], "--implementation: expected one of decode, fa2"),
    (["-i", "decode", "--n", "17"], "--n: decode takes 1 to 16 queries, got 17"),
    (["-i", "decode", "--direction", "backward", "--n", "1"], "no model of decode backward"),
    (["--mask", "diagonal"], "mask: expected 'full', 'causal'"),
    (["--with", "softcap"], "--with: expected NAME=VALUE"), (["--with", "soft=1"], "got 'soft=1'"),
    (["-i", "naive", "--with", "softcap=1"], "softcap: naive has no such option"),
    (["--with", "softcap=NaN"], "--with softcap: expected a number from 0 to 1e+30, got 'NaN'"),
    (["--with", "dropout_p=5"], "--with dropout_p: expected a number from 0 to 1, got '5'"),
    (["--with", "block_mask=5"], "--with block_mask: expected a list, got '5'"),
    (["-i", "decode", "--n", "1", "--nk", "100", "--splits", "101"], "--splits: expected at most as many as keys, 100"),
    (["--device", "GTX 1"], "--device: no data sheet of 'GTX 1' is known")])
def test_nonsense_is_refused_by_name(arguments, said):
    with pytest.raises(BadInput) as caught:
        call(*arguments)
    assert said in str(caught.value)


def test_a_refusal_is_one_line_and_exit_code_2():
    ended = subprocess.run([sys.executable, "-m", "profiler", "predict", "--n", "0"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.strip() == "--n: expected a positive whole number, got 0."
