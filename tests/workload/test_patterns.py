"""Lengths and block masks by the model's names: what the workload runs, what it compares with, what the model reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiler.errors import BadInput
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import inputs, patterns, timing
from profiler.workload.implementations import Refused, bind

ROOT = Path(__file__).parents[2]
SHAPE = AttentionShape(2, 1, 3, 4, 16, dtype="fp32", mask="causal")


def test_lengths_hide_what_is_behind_them_by_hand():
    """Sequence 0: 2 queries, 1 key, so only the last query sees it. Sequence 1: 3 queries, 4 keys."""
    config = RunConfig("flash_varlen", SHAPE, parameters={"q_lengths": [2, 3], "k_lengths": [1, 4]})
    seen = (~patterns.hidden(config, "cpu")).int()[:, 0].tolist()
    assert seen == [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]
    assert patterns.hidden(RunConfig("flash2", SHAPE, parameters={"block_m": 16}), "cpu") is None


def test_block_masks_as_rows_and_as_counts_by_hand():
    shape = AttentionShape(1, 1, 32, 60, 16, dtype="fp32")
    rows = RunConfig("flash_sparse", shape, parameters={"block_mask": [[1, 0, 0, 1], [0, 0, 0, 0]], "block_size": 16})
    seen = ~patterns.hidden(rows, "cpu")[0, 0]
    assert seen[:16].sum() == 16 * (16 + 12) and seen[0, :16].all() and seen[15, 48:].all() and not seen[16:].any()
    counts = RunConfig("flash_sparse", shape, parameters={"block_mask": [2, 4], "block_size": 16})
    assert patterns.block_mask(counts, "cpu")[0, 0].int().tolist() == [[0, 1, 0, 1], [1, 1, 1, 1]]
    for wrong in ([[1, 0]] * 2, [5, 0], [1]):
        with pytest.raises(BadInput, match="block_mask: expected"):
            given = {"block_mask": wrong, "block_size": 16}
            patterns.block_mask(RunConfig("flash_sparse", shape, parameters=given), "cpu")


def test_patterns_are_compared_with_their_own_reference():
    plain, long = RunConfig("naive", SHAPE), RunConfig("flash_varlen", SHAPE, parameters={"q_lengths": [3, 3]})
    groups = timing.by_shape([long, plain, plain])
    assert sorted([c.implementation for c in group] for group in groups) == [["flash_varlen"], ["naive", "naive"]]
    q, k, v = inputs.make(SHAPE, "cpu", 0)
    for name, error in (("naive", "q_lengths: expected no such option"), ("sdpa_math", "no tuning parameters"),
                        ("decode", "caches of one length")):
        config = RunConfig(name, SHAPE, parameters={"q_lengths": [3, 3]})
        if name == "sdpa_math":
            config = RunConfig(name, AttentionShape(2, 1, 3, 3, 16, dtype="fp32"), parameters={"q_lengths": [3, 3]})
        with pytest.raises((Refused, ValueError), match=error):
            bind(config, *(torch.zeros(2, 1, 3, 16) for _ in range(3)) if name == "sdpa_math" else (q, k, v))


INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import contextlib
from profiler.model import predict
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, gradients, inputs, patterns
from profiler.workload.implementations import bind, is_causal
shape = AttentionShape(2, 2, 40, 48, 16, kv_heads=1, dtype="fp32", mask="causal")
for name, given in (("flash1", {}), ("flash_varlen", {"q_lengths": [40, 7], "k_lengths": [20, 48]}),
                    ("flash_sparse", {"block_mask": [[1, 0, 0], [1, 1, 0], [0, 1, 1]], "block_size": 16})):
    for direction in ("forward", "backward")[:1 if name == "flash1" else 2]:
        config, seen = RunConfig(name, shape, direction, given), []
        tensors = inputs.of(config, "cpu", 0)
        bound = bind(config, *tensors)
        judge = accuracy if direction == "forward" else gradients
        expected = judge.expect(*tensors, is_causal(config), patterns.hidden(config, "cpu"))
        found = expected.compare(bound.unpack(bound.call(lambda stage: seen.append(stage) or contextlib.nullcontext())))
        right = found["error_relative"] < 1e-6
        if bound.training:
            right = right and expected.compare(bound.training())["error_relative"] < 1e-6
        model = predict(RunConfig(name, shape, direction, bound.parameters))
        print(name, direction, right, seen == [stage.stage for stage in model.stages],
              all(stage.flops_computed or stage.stage == "prepare" for stage in model.stages))
"""


def test_each_runs_right_with_the_stages_and_parameters_of_the_model():
    done = subprocess.run([sys.executable, "-c", INTERPRETED], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{name} True True True" for name in (
        "flash1 forward", "flash_varlen forward", "flash_varlen backward", "flash_sparse forward",
        "flash_sparse backward")]
