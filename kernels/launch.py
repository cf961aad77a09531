"""What kernels that read through pointers share: a configuration from a table, and a launch on the tensors' device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from kernels.errors import UnsupportedCall
from kernels.plan import INTERPRETER, Tuning, check_tuning, override, padded


def pointer_tuning(table: Mapping[tuple[int, bool], Tuning], q: torch.Tensor, cc: tuple[int, int] | None,
                   tuning: Mapping[str, Any] | None) -> Tuning:
    """The row of ``table`` for (padded head size of q, at least 64; whether q is float32), with what the caller gives
    in its place. cc: compute capability, None in Triton's interpreter. Raises UnsupportedCall by name."""
    base = INTERPRETER if cc is None else table[max(64, padded(q.shape[-1])), q.dtype == torch.float32]
    if tuning:
        base = override(base, tuning)
        check_tuning(base, "a kernel that reads through pointers", cc)
    return base


def parameters(tuning: Tuning) -> dict[str, int]:
    """A configuration by flat names."""
    return {name: value for name, value in vars(tuning).items() if name != "tma"}


@contextlib.contextmanager
def on_device(tensor: torch.Tensor, tuning: Any) -> Iterator[None]:
    """Launch here; blocks that do not fit the device become UnsupportedCall."""
    try:
        with torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext():
            yield
    except OutOfResources as error:
        raise UnsupportedCall("tuning", "blocks that fit the device", f"{tuning} ({error})",
                              "Use smaller blocks or fewer stages.") from error


def no_gradient(what: str, **tensors: torch.Tensor) -> None:
    """Refuse, by name, a tensor whose gradient is asked for."""
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise UnsupportedCall(name, f"no gradient to be asked for: {what} has none", "requires_grad=True",
                                  f"Pass {name}.detach(), or use flash2.")


def backward_tuning(q: torch.Tensor, k: torch.Tensor, cc: tuple[int, int] | None, *, scored: bool) -> Any:
    """A backward_plan.Tuning of two passes through pointers, for heads in dimension 1 and the head size in the last.
    scored: any option of kernels.scores."""
    from kernels import backward_plan as plan

    row = max(64, padded(q.shape[-1]))
    if cc is None:
        return plan.INTERPRETER
    if q.dtype == torch.float32:
        return plan.FLOAT32[row]
    base = plan.POINTER[row]
    if scored or (cc[0] == 10 and row == 128):
        keys, queries = plan.SCORED[256 if cc[0] == 10 and row == 128 else row, False]  # larger ones spill on sm_100
        return replace(base, keys=keys, queries=queries)
    if q.shape[1] != k.shape[1]:
        return replace(base, keys=plan.GROUPED_KEYS.get((row, False), base.keys))
    return base
