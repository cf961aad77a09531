"""The fused kernels as PyTorch operators: differentiable, and opaque to torch.compile and fake tensors.

`flash_attention` calls them where a gradient is asked for or where PyTorch traces; a plain call launches directly, and
spares the dispatcher. The operators own their checks of device and blocks, since a traced tensor has no address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.options import Options
from kernels.plan import INTERPRETER, Tuning, check_tuning, override

NAME = "flashscope::flash2"
OPTIONS = ("int left=-1, int right=-1, float softcap=0.0, float dropout_p=0.0, Tensor? rng=None, Tensor? bias=None, "
           "Tensor? padding=None, Tensor? slopes=None, Tensor? sinks=None")  # the fields of Options, in their order
CHOICE = "str implementation=\"flash2\""


def pack(tuning: Mapping[str, Any] | None) -> list[int]:
    """A caller's tuning, checked, as an operator takes it: a number a field of plan.Tuning, -1: not given."""
    if not tuning:
        return []
    check_tuning(override(INTERPRETER, tuning), None, None)
    return [int(tuning.get(name, -1)) for name in Tuning.__dataclass_fields__]


def _unpack(numbers: list[int]) -> dict[str, Any]:
    fields = Tuning.__dataclass_fields__
    return {name: bool(n) if name == "tma" else n for name, n in zip(fields, numbers) if n >= 0}


def _split(options: tuple[Any, ...]) -> tuple[Options, str]:
    """The operators' last arguments, of which the trailing ones may be left out."""
    *fields, implementation = options if options and isinstance(options[-1], str) else (*options, "flash2")
    return Options(*fields), implementation


@torch.library.custom_op(NAME, mutates_args=(), schema=(
    f"(Tensor q, Tensor k, Tensor v, float scale, bool deterministic, int[] tuning, {OPTIONS}, {CHOICE}) -> "
    "(Tensor, Tensor)"))
def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, deterministic: bool, tuning: list[int],
           *options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out (B, H, Nq, D) contiguous and lse (B, H, Nq) float32; deterministic is for the backward, options are the
    fields of kernels.options.Options and the implementation: "auto", "hopper" or "flash2"."""
    from kernels.api import forward

    on, implementation = _split(options)
    out, lse = forward(q, k, v, scale=scale, options=on, implementation=implementation, tuning=_unpack(tuning),
                       return_lse=True)
    assert lse is not None
    return out, lse


@flash2.register_fake
def _(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(f"{NAME}_backward", mutates_args=(), schema=(
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, float scale, "
    f"bool deterministic, {OPTIONS}, {CHOICE}) -> (Tensor, Tensor, Tensor, Tensor)"))
def flash2_backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    lse: torch.Tensor, dlse: torch.Tensor | None, scale: float, deterministic: bool, *options: Any
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous, and dsinks (H,) float32, of no element without sinks."""
    from kernels import hopper_backward_plan
    from kernels.api import capability
    from kernels.flash2_backward import flash2_backward as launch
    from kernels.hopper_plan import select

    on, implementation = _split(options)
    window = (on.left, on.right)
    if (implementation != "flash2" and select(q, k, v, on, scale, capability(q), implementation, None)[0] == "hopper"
            and hopper_backward_plan.supports(q, k, v, on.right == 0, window, scale) is None):
        grads = hopper_backward_plan.backward(dout, q, k, v, out, lse, scale=scale, causal=on.right == 0,
                                              window=window, dlse=dlse, deterministic=deterministic)
        return (*grads, q.new_empty(0, dtype=torch.float32))
    dsinks = q.new_empty(0 if on.sinks is None else q.shape[1], dtype=torch.float32)
    grads = launch(dout, q, k, v, out, lse, scale=scale, dlse=dlse, deterministic=deterministic, options=on,
                   dsinks=None if on.sinks is None else dsinks)
    return (*grads, dsinks)


@flash2_backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
      dlse: torch.Tensor | None, scale: float, deterministic: bool, *options: Any) -> tuple[torch.Tensor, ...]:
    sinks = q.new_empty(0 if _split(options)[0].sinks is None else q.shape[1], dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.scale, ctx.deterministic, _, *options = inputs
    on, ctx.implementation = _split(tuple(options))
    ctx.options = on._replace(rng=None, bias=None, padding=None, slopes=None, sinks=None)  # tensors: saved, not kept
    ctx.save_for_backward(q, k, v, *output, on.rng, on.bias, on.padding, on.slopes, on.sinks)
    ctx.set_materialize_grads(False)  # an LSE that nobody uses has gradient None, not a tensor of zeros


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    options = (*ctx.options[:-len(tensors)], *tensors)
    nothing = (None,) * (3 + len(options) - 1)  # scale, deterministic, tuning and the options but sinks
    if dout is None and dlse is None:
        return (None, None, None, *nothing, None, None)
    if dout is None:
        dout = torch.zeros_like(out)
    *grads, dsinks = flash2_backward(dout, q, k, v, out, lse, dlse, ctx.scale, ctx.deterministic, *options,
                                     ctx.implementation)
    return (*grads, *nothing, None if tensors[-1] is None else dsinks, None)


flash2.register_autograd(_gradients, setup_context=_save)
