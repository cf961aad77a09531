"""Everything that can be profiled has a model."""

import pytest

from kernels.registry import KERNELS
from profiler.model import knows, predict
from profiler.model.implementations import FOREIGN
from profiler.spec import AttentionShape, RunConfig


@pytest.mark.parametrize("info", KERNELS, ids=lambda info: info.name)
def test_every_kernel_of_the_registry(info):
    for direction in info.directions:
        assert knows(info.name, direction), f"{info.name} {direction} has no formula in profiler/model"
    for mask in ("window:16,0" if mask == "window" else mask for mask in info.masks):
        shape = AttentionShape(1, 2, 64, 64, 16, mask=mask)
        stages = [stage.stage for stage in predict(RunConfig(info.name, shape)).stages]
        assert stages == list(info.stages_for(mask == "causal"))


BACKWARDS = [(info, mask, one_pass) for info in KERNELS if "backward" in info.directions for mask in ("full", "causal")
             for one_pass in ((False, True) if "finish" in info.backward_stages else (False,))]


@pytest.mark.parametrize(("info", "mask", "one_pass"), BACKWARDS, ids=lambda value: getattr(value, "name", str(value)))
def test_every_stage_of_a_backward(info, mask, one_pass):
    config = RunConfig(info.name, AttentionShape(1, 2, 64, 64, 16, mask=mask), "backward", {"one_pass": one_pass})
    stages = [stage.stage for stage in predict(config).stages]
    assert stages == list(info.stages_for(mask == "causal", "backward", one_pass=one_pass))


@pytest.mark.parametrize(("splits", "new"), [(1, 0), (4, 0), (1, 2), (4, 2)])
def test_every_stage_of_a_decode(splits, new):
    info = next(info for info in KERNELS if info.kind == "decode")
    config = RunConfig(info.name, AttentionShape(1, 2, 1, 64, 16), parameters={"num_splits": splits, "n_new": new})
    assert [stage.stage for stage in predict(config).stages] == list(
        info.stages_for(True, splits=splits, append=bool(new)))


@pytest.mark.parametrize("name", FOREIGN)
def test_what_any_fused_kernel_must_move_is_predicted_of_others_and_no_more(name):
    """1·2·64·16 elements of 2 bytes: 4,096 B a tensor, and tiles that a report may hold change nothing."""
    shape = AttentionShape(1, 2, 64, 64, 16)
    for parameters in ({}, {"block_m": 16, "block_n": 16}):
        found = predict(RunConfig(name, shape, parameters=parameters))
        assert found.dram_bytes == found.compulsory_bytes == 4 * 4096 and "dram" in found.stages[0].at_least
        assert found.level_bytes("l2_to_sm") is found.flops_computed is found.peak_memory_bytes is None
