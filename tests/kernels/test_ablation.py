"""The switches of the ablation, and the options that are priced: each right against float64."""

import json

import pytest
import torch

from profiler.collect import suites
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, inputs, timing
from profiler.workload.clock import HostClock
from profiler.workload.device import Sensors
from profiler.workload.implementations import bind, no_stage


@pytest.fixture
def row_of(device):
    def row(config):
        return next(iter(timing.measure([config], HostClock(), Sensors("cpu"), device=device, seed=0,
                                        starting=lambda config: None)))

    return row


def shape(mask="causal", n=72, **other):
    return AttentionShape(1, 2, n, n, 16, dtype="fp16", mask=mask, **other)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("off", [{}, {"folded": False}, {"edge_only": False}, {"staged": False}, {"ordered": False},
                                 {"tma": True}, {"staged": False, "edge_only": False, "folded": False}], ids=str)
def test_each_switch_is_right_and_named_in_its_parameters(device, mask, off):
    config = RunConfig("ablation", shape(mask), parameters=off)
    q, k, v = inputs.of(config, device, 0)
    bound = bind(config, q, k, v)
    found = accuracy.expect(q, k, v, mask == "causal").compare(bound.call(no_stage))
    assert found["finite"] and found["error_relative"] <= 2 * found["error_eager_relative"]
    assert {name: bound.parameters[name] for name in off} == off
    assert {"block_m", "num_warps", "tma", "folded"} <= set(bound.parameters)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_all_on_it_is_flash2_bit_for_bit(device, mask):
    tensors = inputs.of(RunConfig("flash2", shape(mask)), device, 0)
    mine, flash2 = (bind(RunConfig(name, shape(mask)), *tensors).call(no_stage) for name in ("ablation", "flash2"))
    assert torch.equal(mine, flash2)


def test_the_ablation_refuses_what_it_has_no_switch_for(row_of):
    for config, said in (
        (RunConfig("ablation", shape(), parameters={"folded": 2}), "are true or false"),
        (RunConfig("ablation", shape(), parameters={"sorted": True}), "keys among block_m"),
        (RunConfig("ablation", shape(kv_heads=1)), "a key head a query head"),
        (RunConfig("ablation", shape(), "backward"), "of the forward"),
    ):
        assert row_of(config)["status"].startswith("refused: ") and said in row_of(config)["status"]


@pytest.mark.parametrize("on", [{"dropout_p": 0.3}, {"attn_bias": 1}, {"attn_bias": True},
                                {"attn_bias": True, "dropout_p": 0.3}], ids=str)
def test_an_option_is_compared_with_what_it_asks_for(device, on):
    config = RunConfig("flash2", shape(), parameters=on)
    q, k, v = inputs.of(config, device, 0)
    bound = bind(config, q, k, v)
    out = bound.call(no_stage)
    found = bound.expected().compare(out)
    assert found["error_relative"] <= 2 * found["error_eager_relative"]
    assert {name: bound.parameters[name] for name in on} == on
    # Without the option the output is another one: the option acts, and is not merely recorded.
    assert accuracy.expect(q, k, v, True).compare(out)["error_relative"] > 0.1


def test_a_training_step_gives_the_gradients_and_no_time(row_of):
    row = row_of(RunConfig("flash2", shape(n=40), "backward", {"training": True}))
    assert row["status"] == "ok" and row["error_relative"] <= 3 * row["error_eager_relative"]
    assert "median_ns" not in row and "forward and backward as one call, for its memory" in row["note"]
    assert json.loads(row["parameters"])["training"] is True


def test_the_memory_suite_is_one_training_step_a_length():
    assert {(c.direction, c.parameters["training"]) for c in suites.memory()} == {("backward", True)}
    assert {config.shape.nq for config in suites.memory()} == {1 << n for n in range(12, 17)}
