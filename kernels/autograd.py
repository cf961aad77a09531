"""FlashAttention-2 as PyTorch operators: differentiable, and opaque to torch.compile and fake tensors.

`flash_attention` calls them where a gradient is asked for or where PyTorch traces; a plain call launches directly, and
spares the dispatcher. The operators own their checks of device and blocks, since a traced tensor has no address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.plan import INTERPRETER, Tuning, check_tuning, choose, override

NAME = "flashscope::flash2"


def pack(tuning: Mapping[str, Any] | None) -> list[int]:
    """A caller's tuning, checked, as an operator takes it: a number a field of plan.Tuning, -1: not given."""
    if not tuning:
        return []
    check_tuning(override(INTERPRETER, tuning), None, None)
    return [int(tuning.get(name, -1)) for name in Tuning.__dataclass_fields__]


def _unpack(numbers: list[int]) -> dict[str, Any]:
    fields = Tuning.__dataclass_fields__
    return {name: bool(n) if name == "tma" else n for name, n in zip(fields, numbers) if n >= 0}


@torch.library.custom_op(NAME, mutates_args=(), schema=(
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale, bool deterministic, int[] tuning) -> (Tensor, Tensor)"))
def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, deterministic: bool,
           tuning: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """out (B, H, Nq, D) contiguous and lse (B, H, Nq) float32; deterministic is for the backward."""
    from kernels.api import capability
    from kernels.flash2 import forward

    plan = choose(q, k, v, causal=causal, cc=capability(q), tuning=_unpack(tuning))
    out, lse = forward(q, k, v, plan, causal=causal, scale=scale, return_lse=True)
    assert lse is not None
    return out, lse


@flash2.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, deterministic: bool,
      tuning: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(f"{NAME}_backward", mutates_args=(), schema=(
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, bool causal, float scale, "
    "bool deterministic) -> (Tensor, Tensor, Tensor)"))
def flash2_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    lse: torch.Tensor, dlse: torch.Tensor | None, causal: bool, scale: float, deterministic: bool
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous."""
    from kernels.flash2_backward import flash2_backward as launch

    return launch(dout, q, k, v, out, lse, causal=causal, scale=scale, dlse=dlse, deterministic=deterministic)


@flash2_backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
      dlse: torch.Tensor | None, causal: bool, scale: float, deterministic: bool
      ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.causal, ctx.scale, ctx.deterministic, _ = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)  # an LSE that nobody uses has gradient None, not a tensor of zeros


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    if dout is None and dlse is None:
        return (None,) * 7
    if dout is None:
        dout = torch.zeros_like(out)
    grads = flash2_backward(dout, q, k, v, out, lse, dlse, ctx.causal, ctx.scale, ctx.deterministic)
    return (*grads, None, None, None, None)


flash2.register_autograd(_gradients, setup_context=_save)
