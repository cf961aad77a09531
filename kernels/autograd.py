"""FlashAttention-2 as PyTorch operators: differentiable, and opaque to torch.compile and fake tensors.

`flash_attention` calls them where a gradient is asked for or where PyTorch traces; a plain call launches directly, and
spares the dispatcher. The operators own their checks of device and blocks, since a traced tensor has no address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.options import Options
from kernels.plan import INTERPRETER, Tuning, check_tuning, choose, override

NAME = "flashscope::flash2"
OPTIONS = ("int left=-1, int right=-1, float softcap=0.0, float dropout_p=0.0, Tensor? rng=None, Tensor? bias=None, "
           "Tensor? padding=None, Tensor? slopes=None, Tensor? sinks=None")  # the fields of Options, in their order


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
    f"(Tensor q, Tensor k, Tensor v, float scale, bool deterministic, int[] tuning, {OPTIONS}) -> (Tensor, Tensor)"))
def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, deterministic: bool, tuning: list[int],
           *options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out (B, H, Nq, D) contiguous and lse (B, H, Nq) float32; deterministic is for the backward, options are the
    fields of kernels.options.Options."""
    from kernels.api import capability
    from kernels.flash2 import forward

    on = Options(*options)
    plan = choose(q, k, v, causal=on.right == 0, cc=capability(q), tuning=_unpack(tuning), options=on)
    out, lse = forward(q, k, v, plan, causal=on.right == 0, scale=scale, return_lse=True, options=on)
    assert lse is not None
    return out, lse


@flash2.register_fake
def _(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(f"{NAME}_backward", mutates_args=(), schema=(
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, float scale, "
    f"bool deterministic, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"))
def flash2_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    lse: torch.Tensor, dlse: torch.Tensor | None, scale: float, deterministic: bool, *options: Any
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous, and dsinks (H,) float32, of no element without sinks."""
    from kernels.flash2_backward import flash2_backward as launch

    on = Options(*options)
    dsinks = q.new_empty(0 if on.sinks is None else q.shape[1], dtype=torch.float32)
    grads = launch(dout, q, k, v, out, lse, scale=scale, dlse=dlse, deterministic=deterministic, options=on,
                   dsinks=None if on.sinks is None else dsinks)
    return (*grads, dsinks)


@flash2_backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
      dlse: torch.Tensor | None, scale: float, deterministic: bool, *options: Any) -> tuple[torch.Tensor, ...]:
    sinks = q.new_empty(0 if Options(*options).sinks is None else q.shape[1], dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.scale, ctx.deterministic, _, *options = inputs
    on = Options(*options)
    ctx.options = on._replace(rng=None, bias=None, padding=None, slopes=None, sinks=None)  # tensors: saved, not kept
    ctx.save_for_backward(q, k, v, *output, on.rng, on.bias, on.padding, on.slopes, on.sinks)
    ctx.set_materialize_grads(False)  # an LSE that nobody uses has gradient None, not a tensor of zeros


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    options = (*ctx.options[:-len(tensors)], *tensors)
    nothing = (None,) * (3 + len(options) - 1)
    if dout is None and dlse is None:
        return (None, None, None, *nothing, None)
    if dout is None:
        dout = torch.zeros_like(out)
    *grads, dsinks = flash2_backward(dout, q, k, v, out, lse, dlse, ctx.scale, ctx.deterministic, *options)
    return (*grads, *nothing, None if tensors[-1] is None else dsinks)


flash2.register_autograd(_gradients, setup_context=_save)
