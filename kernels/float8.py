"""flash_attention on float8 (e4m3) tensors: its checks, and kernels.hopper_fp8 as a PyTorch operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels import hopper_fp8_plan as plan
from kernels.checks import check_flag, check_inputs, resolve_scale
from kernels.errors import UnsupportedCall

NAME, DTYPE = "hopper_fp8", torch.float8_e4m3fn
TAKES = ("causal", "scale", "q_scale", "k_scale", "v_scale", "deterministic", "return_lse", "implementation")
ELSEWHERE = "Multiply out, q.to(torch.bfloat16) * q_scale, and call it in bfloat16."


def asked(q: Any, implementation: str) -> bool:
    """Whether a call of flash_attention is one in float8."""
    return implementation == NAME or (isinstance(q, torch.Tensor) and q.dtype == DTYPE)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Mapping[str, Any]) -> float:
    """The scale of the scores of a call, or UnsupportedCall by name; what depends on the device is asked later.

    given: the options of flash_attention that are not at their default."""
    implementation = given.get("implementation", "auto")
    if implementation not in ("auto", NAME):
        raise UnsupportedCall("implementation", f"'auto' or '{NAME}' for {DTYPE}", repr(implementation), ELSEWHERE)
    check_inputs(q, k, v, dtypes=(DTYPE,), head_dims=range(1, 257), unit_stride=True)
    for name in ("causal", "deterministic", "return_lse"):
        check_flag(name, given.get(name, False))
    for name, value in given.items():
        if name not in TAKES:
            raise UnsupportedCall(name, f"its default ({NAME} takes {', '.join(TAKES[:5])})", f"{name}={value!r:.40}",
                                  ELSEWHERE)
    tensors = [q, k, v, *(given[name] for name in TAKES[2:5] if given.get(name) is not None)]
    if any(not isinstance(x, torch.Tensor) for x in tensors):
        raise UnsupportedCall("q_scale, k_scale, v_scale", "float32 tensors", "something else")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise UnsupportedCall("q, k, v", f"tensors without a gradient: {NAME} has no backward", "requires_grad=True",
                              "Call it under torch.no_grad(), or in bfloat16.")
    return resolve_scale(given.get("scale"), q.shape[3])


def _supported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, **scales: torch.Tensor | None) -> None:
    from kernels.api import capability

    cc = capability(q)
    if cc != (9, 0):
        where = "Triton's interpreter" if cc is None else f"{cc[0]}.{cc[1]}"
        raise UnsupportedCall("q", f"compute capability 9.0 for {DTYPE}", where, ELSEWHERE)
    if (obstacle := plan.supports(q, k, v, scale=scale, **scales)) is not None:
        raise UnsupportedCall("q, k, v", f"a call that {NAME} can take", f"one that it cannot: {obstacle}", ELSEWHERE)


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_scale: torch.Tensor | None,
            k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, causal: bool, scale: float
            ) -> tuple[torch.Tensor, torch.Tensor]:
    _supported(q, k, v, scale, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    out, lse = plan.forward(q, k, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, causal=causal, scale=scale)
    assert lse is not None
    return out, lse


operator = torch.library.custom_op(f"flashscope::{NAME}", _launch, mutates_args=(), schema=(
    "(Tensor q, Tensor k, Tensor v, Tensor? q_scale, Tensor? k_scale, Tensor? v_scale, bool causal, float scale) -> "
    "(Tensor, Tensor)"))


@operator.register_fake
def _(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape, dtype=torch.bfloat16), q.new_empty(q.shape[:3], dtype=torch.float32)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Mapping[str, Any]) -> Any:
    """What flash_attention returns for a call that `asked` says is in float8: out (B, H, Nq, D) in bfloat16."""
    scale = check(q, k, v, given)
    call = operator if torch.compiler.is_compiling() else _launch
    out, lse = call(q, k, v, given.get("q_scale"), given.get("k_scale"), given.get("v_scale"),
                    given.get("causal", False), scale)
    return (out, lse) if given.get("return_lse") else out


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The configuration of a call and why it runs; raises what the call would."""
    scales = {name: given.get(name) for name in TAKES[2:5]}
    _supported(q, k, v, check(q, k, v, given), **scales)
    blocks = any(x is not None and x.ndim == 3 and x.numel() > 1 for x in (scales["k_scale"], scales["v_scale"]))
    config = plan.choose(q, k, causal=given.get("causal", False), block_scales=blocks)
    return {"block_m": 64 * config.consumers, **vars(config)}, f"the kernel for {DTYPE}."
