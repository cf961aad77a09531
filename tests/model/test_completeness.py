"""Everything that can be profiled has a model."""

import pytest

from kernels.registry import KERNELS
from profiler.model import knows, predict
from profiler.spec import AttentionShape, RunConfig


@pytest.mark.parametrize("info", KERNELS, ids=lambda info: info.name)
def test_every_kernel_of_the_registry(info):
    for direction in info.directions:
        assert knows(info.name, direction), f"{info.name} {direction} has no formula in profiler/model"
    for mask in ("window:16,0" if mask == "window" else mask for mask in info.masks):
        shape = AttentionShape(1, 2, 64, 64, 16, mask=mask)
        stages = [stage.stage for stage in predict(RunConfig(info.name, shape)).stages]
        assert stages == list(info.stages_for(mask == "causal"))
