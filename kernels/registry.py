"""Every attention implementation there is here, and what each supports. Standard library only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.errors import UnsupportedCall


@dataclass(frozen=True)
class KernelInfo:
    """One implementation. path: "module:function"; options: keyword arguments that make this form of it;
    stages: the steps it runs one launch each, in order ("mask" only when causal); tunable: takes ``tuning``."""

    name: str
    path: str
    label: str
    stages: tuple[str, ...]
    directions: tuple[str, ...]
    dtypes: tuple[str, ...]
    head_dims: range
    masks: tuple[str, ...]
    architectures: str
    interpreter: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tunable: bool = False

    def stages_for(self, causal: bool) -> tuple[str, ...]:
        return tuple(stage for stage in self.stages if causal or stage != "mask")


KERNELS: tuple[KernelInfo, ...] = (
    KernelInfo(
        name="naive", path="kernels.naive:naive_attention", label="naive, as written",
        stages=("scores", "scale", "mask", "softmax", "values"), directions=("forward", "backward"),
        dtypes=("float16", "bfloat16", "float32", "float64"), head_dims=range(1, 1 << 16), masks=("full", "causal"),
        architectures="any PyTorch device", interpreter="not needed: PyTorch only"),
    KernelInfo(
        name="naive_folded", path="kernels.naive:naive_attention", label="naive, best unfused",
        stages=("scores", "softmax", "values"), directions=("forward",),
        dtypes=("float16", "bfloat16", "float32"), head_dims=range(1, 1 << 16), masks=("full", "causal"),
        architectures="any PyTorch device; causal: compute capability 8.0 or later",
        interpreter="causal: float16, float32", options={"fold_scale": True}),
    KernelInfo(
        name="flash2", path="kernels.api:flash_attention", label="FlashAttention-2, Triton",
        stages=("attention",), directions=("forward",), dtypes=("float16", "bfloat16", "float32"),
        head_dims=range(1, 257), masks=("full", "causal"), architectures="compute capability 8.0 or later",
        interpreter="float16, float32", options={"implementation": "flash2"}, tunable=True),
)


def get(name: str) -> KernelInfo:
    for info in KERNELS:
        if info.name == name:
            return info
    raise UnsupportedCall("name", f"one of {', '.join(info.name for info in KERNELS)}", repr(name))


def call(name: str, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, stage: Any = None,
         tuning: Mapping[str, Any] | None = None, return_lse: bool = False) -> Any:
    """Run one implementation on (B, H, N, D) tensors; every one takes these arguments or refuses them by name.

    stage: context-manager factory called with each step's name (KernelInfo.stages_for). Returns out, or (out, lse).
    """
    info = get(name)
    options: dict[str, Any] = dict(info.options)
    if tuning:
        if not info.tunable:
            raise UnsupportedCall("tuning", f"nothing ({name} has no tuning parameters)", repr(dict(tuning)))
        options["tuning"] = tuning
    if return_lse:
        if name != "flash2":
            raise UnsupportedCall("return_lse", f"False ({name} returns no LSE)", "True", "Use flash2.")
        options["return_lse"] = True
    module, function = info.path.split(":")
    attention = getattr(importlib.import_module(module), function)
    if info.stages == ("attention",):
        if stage is None:
            return attention(q, k, v, causal=causal, scale=scale, **options)
        with stage("attention"):
            return attention(q, k, v, causal=causal, scale=scale, **options)
    return attention(q, k, v, causal=causal, scale=scale, stage=stage, **options)
