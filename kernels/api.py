"""The public face of the fused kernels: checks, the choice of implementation, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels import registry
from kernels.checks import check_flag, check_inputs, resolve_scale
from kernels.errors import UnsupportedCall
from kernels.plan import Plan, choose


@dataclass(frozen=True)
class Explanation:
    """What a call runs. path: "tma" or "pointer"; why: one sentence a decision."""

    implementation: str
    path: str
    tuning: Mapping[str, Any]
    why: tuple[str, ...]


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, attn_bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None, causal: bool = False, scale: float | None = None,
    window: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None, block_mask: torch.Tensor | None = None, block_size: int = 128,
    dropout_p: float = 0.0, seed: int | None = None, q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None, deterministic: bool = False,
    return_lse: bool = False, implementation: str = "auto", tuning: Mapping[str, Any] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v without S and P in memory, forward.

    q (B, H, Nq, D); k, v (B, Hk, Nk, D), Hk dividing H; float16, bfloat16 or float32; D 1 to 256; any strides with unit
    last stride. causal: query i sees keys j <= i + Nk - Nq. A row that sees no key is 0, its LSE -inf.
    Returns out (B, H, Nq, D), contiguous, and with return_lse also the natural-log LSE, float32 (B, H, Nq).
    tuning: any of block_m, block_n, num_warps, num_stages, tma; the rest comes from the table in kernels.plan.
    Options at their default are off; one that is not supported yet raises UnsupportedCall by name.
    The forward uses no atomics: its result is bitwise the same from run to run with or without `deterministic`.
    """
    _refuse(locals())
    plan = _plan(q, k, v, causal=causal, implementation=implementation, tuning=tuning)
    scale = resolve_scale(scale, q.shape[3])
    check_flag("return_lse", return_lse)
    from kernels import flash2

    out, lse = flash2.forward(q, k, v, plan, causal=causal, scale=scale, return_lse=return_lse)
    return (out, lse) if lse is not None else out


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Explanation:
    """What `flash_attention(q, k, v, **options)` would run, and why; raises what it would. Launches nothing."""
    known = flash_attention.__kwdefaults__
    for name in options:
        if name not in known:
            raise UnsupportedCall(name, f"an option of flash_attention ({', '.join(known)})", "an unknown name")
    settings = {**known, **options}
    _refuse(settings)
    resolve_scale(settings["scale"], q.shape[-1])
    check_flag("return_lse", settings["return_lse"])
    plan = _plan(q, k, v, **{name: settings[name] for name in ("causal", "implementation", "tuning")})
    return Explanation("flash2", plan.path, vars(plan.tuning).copy(), plan.why)


def _refuse(settings: Mapping[str, Any]) -> None:
    """Options of the interface that no implementation carries out yet must keep the value that means off."""
    off = {"attn_bias": None, "key_padding_mask": None, "softcap": 0.0, "alibi_slopes": None, "sinks": None,
           "block_mask": None, "dropout_p": 0.0, "q_scale": None, "k_scale": None, "v_scale": None}
    for name, value in off.items():
        given = settings[name]
        if given is not None and (value is None or given != value):
            raise UnsupportedCall(name, f"{value!r} (flash2 does not support this option)",
                                  f"a {type(given).__name__}" if value is None else repr(given),
                                  "kernels.reference and naive_attention are the places to write such a variant down.")
    if tuple(settings["window"]) != (-1, -1):
        raise UnsupportedCall("window", "(-1, -1) (flash2 does not support a window)", repr(settings["window"]),
                              "kernels.reference_attention takes window=(left, right).")


def _plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, implementation: str,
          tuning: Mapping[str, Any] | None) -> Plan:
    if implementation not in ("auto", "flash2"):
        raise UnsupportedCall("implementation", "'auto' or 'flash2'", repr(implementation))
    info = registry.get("flash2")
    check_inputs(q, k, v, dtypes=tuple(getattr(torch, name) for name in info.dtypes), head_dims=info.head_dims,
                 unit_stride=True)
    check_flag("causal", causal)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UnsupportedCall(name, "a tensor that needs no gradient (flash2 is forward only)",
                                  "requires_grad=True", "Use torch.no_grad(), or naive_attention, which has one.")
    return choose(q, k, v, causal=causal, cc=_capability(q), tuning=tuning)


def _capability(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The compute capability that will run the call, None for Triton's interpreter."""
    from kernels.flash2 import INTERPRETED

    if INTERPRETED:
        if tensor.dtype == torch.bfloat16:
            raise UnsupportedCall("q", "float16 or float32 in Triton's interpreter", "torch.bfloat16",
                                  "Its dot product is wrong for bfloat16.")
        return None
    if not tensor.is_cuda:
        raise UnsupportedCall("q", "a CUDA tensor", f"one on {tensor.device}",
                              "Set TRITON_INTERPRET=1 before Triton is imported, or use naive_attention.")
    cc = torch.cuda.get_device_capability(tensor.device)
    if cc < (8, 0):
        raise UnsupportedCall("q", "a GPU of compute capability 8.0 or later", f"{cc[0]}.{cc[1]}")
    return cc
