"""The public face of the fused kernels: checks, the choice of implementation, and what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels import float8
from kernels.checks import check_flag, check_inputs, check_like, resolve_scale
from kernels.errors import UnsupportedCall
from kernels.hopper_plan import choose as choose_hopper
from kernels.hopper_plan import select
from kernels.options import Options, told
from kernels.options import check as check_options
from kernels.plan import choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = range(1, 257)


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
    """softmax(q·kᵀ·scale)·v without S and P in memory, differentiable once.

    q (B, H, Nq, D); k, v (B, Hk, Nk, D), Hk dividing H; float16, bfloat16 or float32; D 1 to 256; any strides with unit
    last stride. causal: query i sees keys j <= i + Nk - Nq. A row that sees no key is 0, its LSE -inf.
    Returns out (B, H, Nq, D), contiguous, and with return_lse also the natural-log LSE, float32 (B, H, Nq).

    Options, off by default, in the order in which they act on a score (kernels.reference writes them down):
    softcap: c > 0 makes x c·tanh(x / c). alibi_slopes: (H,) or (B, H), adds -slope·|i + Nk - Nq - j|.
    attn_bias: float16, bfloat16 or float32, any strides, broadcasts to (B, H, Nq, Nk), added; -inf hides.
    key_padding_mask: (B, Nk) bool, True where a key is seen; what a hidden key and value hold does not matter.
    window: (left, right) keys around a query's own place i + Nk - Nq, inclusive, -1 unlimited; blocks outside are
    skipped. sinks: (H,), a score a head that joins the denominator, and the LSE of rows that see a key.
    block_mask, block_size: which blocks of queries and keys are kept at all (kernels.block_sparse, which takes causal,
    scale and return_lse beside it). implementation: "auto" is flash_sparse with a block mask, else what
    kernels.hopper_plan.select chooses of hopper (compute capability 9.0; causal and window only) and flash2.
    dropout_p, seed: Philox of (seed, b, h, row, column), so that blocks do not matter; kept weights are divided by
    1 - p; LSE is of the weights before. seed: below 2⁶³, or one int64 on the device; None draws one from PyTorch's
    generator there.

    Gradients reach q, k, v and sinks from out and from the LSE (attn_bias and alibi_slopes have none: UnsupportedCall);
    those of k and v are summed over the heads of a group in float32. Under torch.autocast q, k, v are cast to its
    dtype. `deterministic` forbids atomics: without it hopper's backward sums dq in any order; all else is bitwise the
    same from run to run with or without it.
    q_scale, k_scale, v_scale: of float8_e4m3fn tensors (x stands for x * x_scale; kernels.hopper_fp8_plan has the
    shapes), compute capability 9.0, causal or full; out is bfloat16, without gradients.
    tuning: any of block_m, block_n, num_warps, num_stages, tma; the rest comes from the tables in kernels.plan; with
    implementation "hopper" its switches (kernels.hopper_plan.SWITCHES), false to turn one off.
    What is not supported raises UnsupportedCall by name, before anything is launched.
    """
    name = elsewhere(implementation, block_mask)
    in_float8 = float8.asked(q, implementation)
    if name is not None or in_float8:
        from kernels import registry

        given = _given(dict(
            attn_bias=attn_bias, key_padding_mask=key_padding_mask, window=window, softcap=softcap,
            alibi_slopes=alibi_slopes, sinks=sinks, block_mask=block_mask, block_size=block_size, dropout_p=dropout_p,
            seed=seed, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse, tuning=tuning))
        if in_float8:
            return float8.attention(q, k, v, {**given, "causal": causal, "scale": scale, "deterministic": deterministic,
                                              "implementation": implementation})
        assert name is not None
        check_flag("deterministic", deterministic)
        return registry.call(name, q, k, v, causal=causal, scale=scale, **given)
    q, k, v = _autocast(q, k, v)
    _check(q, k, v, causal=causal, implementation=implementation)
    options = check_options(q, k, {
        "attn_bias": attn_bias, "key_padding_mask": key_padding_mask, "window": window, "softcap": softcap,
        "alibi_slopes": alibi_slopes, "sinks": sinks, "block_mask": block_mask, "dropout_p": dropout_p, "seed": seed,
        "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}, causal=causal)
    check_flag("return_lse", return_lse)
    check_flag("deterministic", deterministic)
    scale = resolve_scale(scale, q.shape[3])
    if _traced(q, k, v, *options.tensors):
        from kernels import autograd

        out, lse = autograd.flash2(q, k, v, scale, deterministic, autograd.pack(tuning), *options, implementation)
        return (out, lse) if return_lse else out
    out, lse = forward(q, k, v, scale=scale, options=options, implementation=implementation, tuning=tuning,
                       return_lse=return_lse)
    return (out, lse) if return_lse and lse is not None else out


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, options: Options, implementation: str,
            tuning: Mapping[str, Any] | None, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch what a checked call takes: out, and lse where it is asked for or written anyway."""
    cc = capability(q)
    if select(q, k, v, options, scale, cc, implementation, tuning)[0] == "hopper":
        from kernels import hopper

        return hopper.forward(q, k, v, choose_hopper(q, k, options, tuning), scale=scale, left=options.left,
                              right=options.right)
    from kernels import flash2

    causal = options.right == 0
    plan = choose(q, k, v, causal=causal, cc=cc, tuning=tuning, options=options)
    return flash2.forward(q, k, v, plan, causal=causal, scale=scale, return_lse=return_lse, options=options)


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Explanation:
    """What `flash_attention(q, k, v, **options)` would run, and why; raises what it would. Launches nothing."""
    known = flash_attention.__kwdefaults__ or {}
    for name in options:
        if name not in known:
            raise UnsupportedCall(name, f"an option of flash_attention ({', '.join(known)})", "an unknown name")
    settings = {**known, **options}
    if float8.asked(q, settings["implementation"]):
        found, reason = float8.explain(q, k, v, _given(settings))
        return Explanation(float8.NAME, "tma", found, (f"implementation={settings['implementation']!r}: {reason}",))
    if (other := elsewhere(settings["implementation"], settings["block_mask"])) is not None:
        return _explain_elsewhere(other, q, k, v, settings)
    q, k, v = _autocast(q, k, v)
    _check(q, k, v, causal=settings["causal"], implementation=settings["implementation"])
    on = check_options(q, k, settings, causal=settings["causal"], draw=False)
    scale = resolve_scale(settings["scale"], q.shape[3])
    for name in ("return_lse", "deterministic"):
        check_flag(name, settings[name])
    cc = capability(q)
    chosen, reason = select(q, k, v, on, scale, cc, settings["implementation"], settings["tuning"])
    first = f"implementation={settings['implementation']!r}: {reason}"
    if chosen == "hopper":
        return Explanation(chosen, "tma", choose_hopper(q, k, on, settings["tuning"]).parameters, (first, *told(on)))
    plan = choose(q, k, v, causal=settings["causal"], cc=cc, tuning=settings["tuning"], options=on)
    return Explanation("flash2", plan.path, vars(plan.tuning).copy(), (first, *plan.why, *told(on)))


def elsewhere(implementation: str, block_mask: Any) -> str | None:
    """The implementation of the registry that a call of flash_attention goes to, None for hopper and flash2."""
    if implementation == "auto":
        return None if block_mask is None else "flash_sparse"
    return implementation if implementation in ("flash1", "flash_sparse") else None


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their default."""
    defaults = flash_attention.__kwdefaults__ or {}
    return {name: value for name, value in settings.items() if value is not defaults[name]
            and not (isinstance(value, (bool, int, float, tuple)) and value == defaults[name])}


def _explain_elsewhere(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: Mapping[str, Any]
                       ) -> Explanation:
    from kernels import registry

    given = _given({option: value for option, value in settings.items()
                    if option not in ("implementation", "causal", "scale", "deterministic")})
    given.pop("return_lse", None)
    tuning = registry.parameters(name, q, k, v, causal=settings["causal"], **given)
    asked = settings["implementation"]
    why = f"a block mask is given: {name} skips blocks." if asked == "auto" else "the caller's choice."
    return Explanation(name, "pointer", tuning, (f"implementation={asked!r}: {why}",))


def prepare_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *, causal: bool,
                     scale: float | None, tuning: Mapping[str, Any] | None, **options: Any
                     ) -> tuple[Callable[[Any], tuple[torch.Tensor, ...]], dict[str, Any]]:
    """Run the forward; the backward alone as a call that takes a stage, and its parameters (see kernels.registry).

    options: of flash_attention; with sinks the call's last result is their gradient."""
    from kernels import backward_plan
    from kernels.flash2_backward import flash2_backward

    q, k, v = (x.detach() if isinstance(x, torch.Tensor) else x for x in (q, k, v))
    _check(q, k, v, causal=causal, implementation="flash2")
    on = check_options(q, k, {**(flash_attention.__kwdefaults__ or {}), **options}, causal=causal)
    if on.rng is not None:
        options = {**options, "seed": on.rng}
    with torch.no_grad():
        out, lse = flash_attention(q, k, v, causal=causal, scale=scale, return_lse=True, **options)
    check_like("dout", dout, q)
    dout = dout if dout.stride(3) == 1 else dout.contiguous()
    chosen = backward_plan.choose((q, k, v, dout), masked=on.left >= 0 or on.right >= 0, cc=capability(q),
                                  tuning=tuning, scored=on.scored, left=on.left >= 0)

    def run(stage: Any = None) -> tuple[torch.Tensor, ...]:
        dsinks = None if on.sinks is None else torch.empty_like(on.sinks)
        grads = flash2_backward(dout, q, k, v, out, lse, scale=scale, tuning=chosen, stage=stage, options=on,
                                dsinks=dsinks)
        return grads if dsinks is None else (*grads, dsinks)

    return run, backward_plan.parameters(chosen)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, implementation: str) -> None:
    if implementation not in ("auto", "hopper", "flash2"):
        raise UnsupportedCall("implementation", "'auto', 'hopper', 'hopper_fp8', 'flash2', 'flash1' or 'flash_sparse'",
                              repr(implementation))
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    check_flag("causal", causal)


def _autocast(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """The three in autocast's dtype where it is on for their device and they are floating point."""
    if not isinstance(q, torch.Tensor) or not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    floating = (torch.float16, torch.bfloat16, torch.float32)
    q, k, v = (x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in floating else x for x in (q, k, v))
    return q, k, v


def _traced(*tensors: torch.Tensor) -> bool:
    """Whether the call must go through PyTorch's dispatcher: a gradient is wanted, or something traces it."""
    if torch.compiler.is_compiling():
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in tensors)


def capability(tensor: torch.Tensor) -> tuple[int, int] | None:
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
