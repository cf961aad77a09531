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
from profiler.workload.implementations import Refused, bind, no_stage

ROOT = Path(__file__).parents[2]
SHAPE = AttentionShape(2, 1, 3, 4, 16, dtype="fp32", mask="causal")


def test_lengths_hide_what_is_behind_them_by_hand():
    """Sequence 0: 2 queries, 1 key, so only the last query sees it. Sequence 1: 3 queries, 4 keys."""
    config = RunConfig("flash_varlen", SHAPE, parameters={"q_lengths": [2, 3], "k_lengths": [1, 4]})
    seen = (~patterns.hidden(config, "cpu")).int()[:, 0].tolist()
    assert seen == [[[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]
    assert patterns.hidden(RunConfig("flash2", SHAPE, parameters={"block_m": 16}), "cpu") is None


@pytest.mark.parametrize("wrong", [[3], [3, 4], [3, -1], [3, 1.0], 3, []])
def test_lengths_that_the_shape_cannot_have_are_refused_at_once(wrong):
    with pytest.raises(BadInput, match="q_lengths: expected 2 whole numbers from 0 to 3, got"):
        RunConfig("flash_varlen", SHAPE, parameters={"q_lengths": wrong})


def test_a_window_hides_what_is_outside_it_by_hand():
    """3 queries at the end of 4 keys, one key before and one after its own: 0 1 2, 1 2 3, 2 3."""
    config = RunConfig("flash2", AttentionShape(2, 1, 3, 4, 16, dtype="fp32", mask="window:1,1"))
    assert (~patterns.hidden(config, "cpu")).int().tolist() == [[[[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]]]


def test_a_window_reaches_the_kernel_as_one(monkeypatch):
    """The Hopper kernel cannot run here: what the registry is asked for."""
    import kernels

    asked = {}
    monkeypatch.setattr(kernels.registry, "prepare_forward", lambda name, *qkv, **given: asked.update(
        name=name, **given) or kernels.registry.Prepared(lambda stage: "O", ("attention",), {"consumers": 2}))
    config = RunConfig("hopper", AttentionShape(1, 1, 8, 8, 16, mask="window:5,0"))
    bound = bind(config, *inputs.make(config.shape, "cpu", 0))
    assert bound.call(no_stage) == "O" and bound.parameters == {"consumers": 2}
    assert (asked["name"], asked["causal"], asked["window"]) == ("hopper", False, (5, 0))


def test_what_is_not_plain_is_timed_beside_the_plain_calls_of_as_many_tokens():
    def shape(batch, n, mask="full", kv_heads=4, head_dim=16):
        return AttentionShape(batch, 4, n, n, head_dim, kv_heads=kv_heads, mask=mask)

    short, long, window = (RunConfig("hopper", shape(*given)) for given in ((4, 8), (1, 32), (1, 32, "window:3,0")))
    grouped = RunConfig("hopper", shape(4, 8, kv_heads=2))
    packed = RunConfig("flash_varlen", shape(2, 24), parameters={"q_lengths": [24, 8], "k_lengths": [24, 8]})
    other, alone = RunConfig("hopper", shape(1, 32, head_dim=32)), RunConfig("naive", shape(2, 24))  # 48 tokens
    groups = list(timing.together([alone, window, short, other, packed, long, grouped]))
    assert sorted(map(len, groups)) == [1, 1, 5]
    assert [alone] in groups and [other] in groups
    assert all(len(group) == 1 for group in timing.together([short, long, other, alone]))  # plain ones, each by itself


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
from dataclasses import replace
from profiler.model import predict
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, gradients, inputs, patterns
from profiler.workload.implementations import bind
shape = AttentionShape(2, 2, 40, 48, 16, kv_heads=1, dtype="fp32", mask="causal")
window = replace(shape, mask="window:9,3")
lengths = {"q_lengths": [40, 7], "k_lengths": [20, 48]}
kept = {"block_mask": [[1, 0, 0], [1, 1, 0], [0, 1, 1]], "block_size": 16}
for name, given, shape in (("flash1", {}, shape), ("flash2", {}, window), ("flash_varlen", lengths, shape),
                           ("flash_varlen", lengths, window), ("flash_sparse", kept, shape)):
    for direction in ("forward", "backward")[:1 if name == "flash1" else 2]:
        config, seen = RunConfig(name, shape, direction, given), []
        tensors = inputs.of(config, "cpu", 0)
        bound = bind(config, *tensors)
        judge = accuracy if direction == "forward" else gradients
        expected = judge.expect(*tensors, patterns.causal(config), patterns.hidden(config, "cpu"))
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
        "flash1 forward", "flash2 forward", "flash2 backward", *["flash_varlen forward", "flash_varlen backward"] * 2,
        "flash_sparse forward", "flash_sparse backward")]
