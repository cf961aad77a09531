"""Every attention implementation there is here, what each supports, and one way to run each. Standard library only.

    call(name, q, k, v, ...)                              forward of a kind "attention", now
    prepare_forward(name, q, k, v, ...)                   -> Prepared: the same, packing and lists made beforehand
    prepare_backward(name, q, k, v, dout, ...)            -> Prepared: the backward alone, forward done beforehand
    prepare_decode(q, k_cache, v_cache, ...)              -> Prepared: kind "decode"

Each takes ``stage``, a context-manager factory called with a step's name around that step's launch, from the calling
thread, so that a profiler's ranges hold.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.errors import UnsupportedCall


@dataclass(frozen=True)
class KernelInfo:
    """One implementation. path: "module:function"; kind: "attention" on (B, H, N, D), or "decode" on a cache;
    options: keyword arguments that make this form of it; tunable: takes ``tuning`` (hopper: its switches); directions:
    "backward" where gradients flow through it and `prepare_backward` takes it. supports: keyword arguments of a call
    that it takes beside causal and scale; gradients: the tensors that get one, where it has a backward.

    stages: the steps of a forward, one launch each, in order; backward_stages: those of a backward. Use `stages_for`.
    """

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
    kind: str = "attention"
    backward_stages: tuple[str, ...] = ()
    supports: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ("q", "k", "v")

    def stages_for(self, causal: bool, direction: str = "forward", *, one_pass: bool = False, splits: int = 1,
                   append: bool = False) -> tuple[str, ...]:
        """The steps that a call runs. "mask" and "d_mask" exist only when causal; one_pass: of a backward of flash2 or
        hopper, whose last step then is "finish"; splits, append: of a decode, "merge" for more than one part, "append"
        for new keys.
        """
        stages = self.stages if direction == "forward" else self.backward_stages
        absent = {"queries" if one_pass else "finish", *(() if causal else ("mask", "d_mask")),
                  *(() if splits > 1 else ("merge",)), *(() if append else ("append",))}
        return tuple(stage for stage in stages if stage not in absent)


def _as_it_is(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Prepared:
    """One call with everything that it needs made beforehand: prepared(stage) launches it and returns its tensors.

    stages: the steps it runs, in order. parameters: every tuning parameter that it runs with, the kernel's own choices
    included, by flat names: numbers and bools. unpack: makes of its results what they are on (B, H, N, D).
    """

    run: Callable[[Any], Any]
    stages: tuple[str, ...]
    parameters: Mapping[str, Any]
    unpack: Callable[[Any], Any] = _as_it_is

    def __call__(self, stage: Any = None) -> Any:
        return self.run(stage)


KERNELS: tuple[KernelInfo, ...] = (
    KernelInfo(
        name="naive", path="kernels.naive:naive_attention", label="naive, as written",
        stages=("scores", "scale", "mask", "softmax", "values"), directions=("forward", "backward"),
        dtypes=("float16", "bfloat16", "float32", "float64"), head_dims=range(1, 1 << 16), masks=("full", "causal"),
        architectures="any PyTorch device", interpreter="not needed: PyTorch only",
        backward_stages=("d_values", "d_weights", "d_softmax", "d_mask", "d_scale", "d_queries", "d_keys")),
    KernelInfo(
        name="naive_folded", path="kernels.naive:naive_attention", label="naive, best unfused",
        stages=("scores", "softmax", "values"), directions=("forward", "backward"),
        dtypes=("float16", "bfloat16", "float32"), head_dims=range(1, 1 << 16), masks=("full", "causal"),
        architectures="any PyTorch device; causal: compute capability 8.0 or later",
        interpreter="causal: float16, float32", options={"fold_scale": True},
        backward_stages=("d_values", "d_weights", "d_softmax", "d_queries", "d_keys")),
    KernelInfo(
        name="flash1", path="kernels.flash1:flash1_attention", label="FlashAttention-1 schedule, Triton",
        stages=("attention",), directions=("forward",), dtypes=("float16", "bfloat16", "float32"),
        head_dims=range(1, 257), masks=("full", "causal"), architectures="compute capability 8.0 or later",
        interpreter="float16, float32", tunable=True, supports=("return_lse",), gradients=()),
    KernelInfo(
        name="flash2", path="kernels.api:flash_attention", label="FlashAttention-2, Triton",
        stages=("attention",), directions=("forward", "backward"), dtypes=("float16", "bfloat16", "float32"),
        head_dims=range(1, 257), masks=("full", "causal"), architectures="compute capability 8.0 or later",
        interpreter="float16, float32", options={"implementation": "flash2"}, tunable=True,
        backward_stages=("prepare", "keys", "queries", "finish"),
        supports=("window", "softcap", "alibi_slopes", "attn_bias", "key_padding_mask", "sinks", "dropout_p", "seed",
                  "deterministic", "return_lse"),
        gradients=("q", "k", "v", "sinks")),
    KernelInfo(
        name="hopper", path="kernels.api:flash_attention", label="Hopper, Gluon (FA3-class)",
        stages=("attention",), directions=("forward", "backward"), dtypes=("float16", "bfloat16"),
        head_dims=range(8, 257, 8), masks=("full", "causal"), architectures="compute capability 9.0",
        interpreter="none: Gluon", options={"implementation": "hopper"}, tunable=True,
        backward_stages=("prepare", "keys", "queries", "finish"), supports=("window", "deterministic", "return_lse")),
    KernelInfo(
        name="hopper_fp8", path="kernels.api:flash_attention", label="Hopper in float8, Gluon",
        stages=("attention",), directions=("forward",), dtypes=("float8_e4m3fn",), head_dims=range(64, 257, 64),
        masks=("full", "causal"), architectures="compute capability 9.0; head sizes 64, 128 and 256",
        interpreter="none: Gluon", options={"implementation": "hopper_fp8"},
        supports=("q_scale", "k_scale", "v_scale", "deterministic", "return_lse"), gradients=()),
    KernelInfo(
        name="flash_varlen", path="kernels.varlen_operator:of_batch",
        label="FlashAttention-2 on packed sequences, Triton",
        stages=("attention",), directions=("forward", "backward"), dtypes=("float16", "bfloat16", "float32"),
        head_dims=range(1, 257), masks=("full", "causal"), architectures="compute capability 8.0 or later",
        interpreter="float16, float32", tunable=True, backward_stages=("prepare", "keys", "queries"),
        supports=("q_lengths", "k_lengths", "window", "softcap", "alibi_slopes", "sinks", "dropout_p", "seed",
                  "deterministic", "return_lse"), gradients=("q", "k", "v", "sinks")),
    KernelInfo(
        name="flash_sparse", path="kernels.block_sparse:block_sparse_attention",
        label="FlashAttention-2 on kept blocks, Triton", stages=("attention",), directions=("forward", "backward"),
        dtypes=("float16", "bfloat16", "float32"), head_dims=range(1, 257), masks=("full", "causal"),
        architectures="compute capability 8.0 or later", interpreter="float16, float32", tunable=True,
        backward_stages=("prepare", "keys", "queries"), supports=("block_mask", "block_size", "return_lse")),
    KernelInfo(
        name="decode", path="kernels.decode:flash_attention_decode", label="split-KV decode, Triton", kind="decode",
        stages=("append", "attention", "merge"), directions=("forward",), dtypes=("float16", "bfloat16", "float32"),
        head_dims=range(1, 257), masks=("full", "causal", "window"), architectures="compute capability 8.0 or later",
        interpreter="float16, float32", tunable=True,
        supports=("window", "softcap", "page_table", "k_new", "v_new", "num_splits", "return_lse"), gradients=()),
)


def get(name: str) -> KernelInfo:
    for info in KERNELS:
        if info.name == name:
            return info
    raise UnsupportedCall("name", f"one of {', '.join(info.name for info in KERNELS)}", repr(name))


def _attention(name: str, tuning: Mapping[str, Any] | None) -> KernelInfo:
    info = get(name)
    if info.kind != "attention":
        raise UnsupportedCall("name", f"a kind \"attention\", of {', '.join(i.name for i in KERNELS if i is not info)}",
                              repr(name), f"Use prepare_{info.kind}.")
    if tuning and not info.tunable:
        raise UnsupportedCall("tuning", f"nothing ({name} has no tuning parameters)", repr(dict(tuning)))
    return info


def _supported(info: KernelInfo, options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in info.supports:
            others = [other.name for other in KERNELS if option in other.supports and other.kind == info.kind]
            raise UnsupportedCall(option, f"no such option ({info.name} takes {', '.join(info.supports) or 'none'})",
                                  f"{option}=...", f"Use {' or '.join(others)}." if others else "")


def call(name: str, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, stage: Any = None,
         tuning: Mapping[str, Any] | None = None, return_lse: bool = False, **options: Any) -> Any:
    """Run one implementation on (B, H, N, D) tensors; every one takes these arguments or refuses them by name.

    stage: context-manager factory called with each step's name (KernelInfo.stages_for). options: of flash_attention;
    `supports` has those that an implementation takes. Returns out, or (out, lse). Differentiable through
    torch.autograd where a tensor of `gradients` requires one.
    """
    info = _attention(name, tuning)
    _supported(info, options)
    options |= info.options
    if tuning:
        options["tuning"] = tuning
    if return_lse:
        if "return_lse" not in info.supports:
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


def parameters(name: str, q: Any, k: Any, v: Any, *, causal: bool = False, tuning: Mapping[str, Any] | None = None,
               **options: Any) -> dict[str, Any]:
    """Every tuning parameter that ``call`` with these arguments runs with, the kernel's own choices included."""
    info = _attention(name, tuning)
    _supported(info, options)
    if not info.tunable and name != "hopper_fp8":
        return {}
    if name in ("flash2", "hopper", "hopper_fp8"):
        from kernels import api

        return dict(api.explain(q, k, v, causal=causal, tuning=tuning, **(options | info.options)).tuning)
    module = importlib.import_module(info.path.split(":")[0])
    return module.explain(q, k, v, causal=causal, tuning=tuning, **options)


def prepare_forward(name: str, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None,
                    tuning: Mapping[str, Any] | None = None, **options: Any) -> Prepared:
    """As `call`, but what does not belong to attention is done here: flash_varlen packs, flash_sparse lists the blocks
    of its mask. `unpack` makes of what prepared(stage) returns tensors shaped like q, k and v."""
    info = _attention(name, tuning)
    _supported(info, options)
    found = parameters(name, q, k, v, causal=causal, tuning=tuning, **options)
    if name == "flash_varlen":
        from kernels import varlen_operator

        run, unpack = varlen_operator.prepare_forward(q, k, v, causal=causal, scale=scale, tuning=tuning, **options)
        return Prepared(_staged(run), info.stages, found, unpack)
    if name == "flash_sparse" and options.get("block_mask") is not None:
        from kernels import block_sparse

        options["block_mask"] = block_sparse.block_lists(options["block_mask"], options.get("block_size", 128))

    def run(stage: Any = None) -> Any:
        return call(name, q, k, v, causal=causal, scale=scale, stage=stage, tuning=tuning, **options)

    return Prepared(run, info.stages_for(causal), found)


def _staged(run: Callable[[], Any]) -> Callable[[Any], Any]:
    def staged(stage: Any = None) -> Any:
        with stage("attention") if stage is not None else contextlib.nullcontext():
            return run()
    return staged


def prepare_backward(name: str, q: Any, k: Any, v: Any, dout: Any, *, causal: bool = False, scale: float | None = None,
                     tuning: Mapping[str, Any] | None = None, **options: Any) -> Prepared:
    """The backward alone, with what a forward keeps for it made here: P for the naive forms, O and LSE else.

    q, dout (B, H, Nq, D); k, v (B, Hk, Nk, D). prepared(stage) returns dQ, dK, dV, new tensors shaped like q, k, v.
    tuning, for flash2: any of one_pass, seed, tma, and key_ or query_ before block_m, block_n, num_warps, num_stages,
    maxnreg (kernels.backward_plan); for hopper: any field of kernels.hopper_backward_plan.Tuning; the rest comes from
    the tables, and `parameters` has them all. options: as `call` takes them; with sinks prepared(stage) returns their
    gradient too.
    """
    info = _attention(name, tuning)
    _supported(info, options)
    if name == "flash2":
        from kernels import api

        run, parameters = api.prepare_backward(q, k, v, dout, causal=causal, scale=scale, tuning=tuning, **options)
    elif name == "hopper":
        run, parameters = _hopper_backward(q, k, v, dout, causal=causal, scale=scale, tuning=tuning, **options)
    elif tuning:
        raise UnsupportedCall("tuning", f"nothing (the backward of {name} has no tuning)", repr(dict(tuning)))
    elif name == "flash_varlen":
        from kernels import varlen_operator

        run, unpack, parameters = varlen_operator.prepare_backward(q, k, v, dout, causal=causal, scale=scale, **options)
        return Prepared(run, info.backward_stages, parameters, unpack)
    elif name == "flash_sparse":
        from kernels import block_sparse

        run, parameters = block_sparse.prepare_backward(q, k, v, dout, causal=causal, scale=scale, **options)
    else:
        from kernels import naive_backward

        run = naive_backward.prepare(q, k, v, dout, causal=causal, scale=scale, **info.options)
        parameters = {}
    return Prepared(run, info.stages_for(causal, "backward", one_pass=bool(parameters.get("one_pass"))), parameters)


def _hopper_backward(q: Any, k: Any, v: Any, dout: Any, *, causal: bool, scale: float | None,
                     tuning: Mapping[str, Any] | None, window: tuple[int, int] = (-1, -1), deterministic: bool = False
                     ) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """As kernels.api.prepare_backward. Raises before anything is launched where a pass does not take the call."""
    import torch

    from kernels import hopper_backward_plan as plan
    from kernels.checks import check_like, resolve_scale

    if unknown := set(tuning or ()) - set(plan.Tuning.__dataclass_fields__):
        raise UnsupportedCall("tuning", f"any of {', '.join(plan.Tuning.__dataclass_fields__)}", repr(sorted(unknown)))
    check_like("dout", dout, q)
    parameters("hopper", q, k, v, causal=causal, window=window)  # raises what the forward would
    unit = resolve_scale(scale, q.shape[3])
    if (reason := plan.supports(q, k, v, causal, window, unit)) is not None:
        raise UnsupportedCall("q", "a call that the Hopper backward takes", reason, "Use flash2.")
    q, k, v = (x.detach() for x in (q, k, v))
    chosen = plan.choose(q, deterministic=deterministic, tuning=tuning)
    with torch.no_grad():
        out, lse = call("hopper", q, k, v, causal=causal, scale=scale, window=window, return_lse=True)

    def run(stage: Any = None) -> Any:
        return plan.backward(dout, q, k, v, out, lse, scale=unit, causal=causal, window=window, stage=stage,
                             deterministic=deterministic, tuning=tuning)

    return run, _hopper_parameters(plan.parameters(chosen), deterministic)


def _hopper_parameters(tuning: Mapping[str, Any], deterministic: bool) -> dict[str, Any]:
    """A kernels.hopper_backward_plan.Tuning by the names that flash2's backward has: queries × keys of either pass."""
    names = {"block_m": "key_block_m", "stages": "key_num_stages", "consumers": "key_block_n",
             "query_consumers": "query_block_m", "block_n": "query_block_n", "query_stages": "query_num_stages"}
    one_pass = tuning["dq_sum"] != "none"
    found = {names.get(name, name): 64 * value if name.endswith("consumers") else value
             for name, value in tuning.items() if name != "dq_sum"}
    if one_pass:
        found = {name: value for name, value in found.items() if not name.startswith("query_")}
    return {**found, "one_pass": one_pass, "deterministic": deterministic, "statistic_bytes": 32}


def prepare_decode(q: Any, k_cache: Any, v_cache: Any, *, cache_seqlens: Any, num_splits: int | None = None,
                   tuning: Mapping[str, Any] | None = None, **options: Any) -> Prepared:
    """Decode on a cache; arguments as kernels.flash_attention_decode takes them, page_table, k_new and v_new included.

    tuning: any of block_m, block_n, num_warps, num_stages, num_splits. parameters: all of those, and page_size where
    the cache is paged. Each call with k_new writes to the same places of the cache.
    """
    from kernels import decode

    given = dict(tuning or {})
    num_splits = given.pop("num_splits", num_splits)
    arguments = dict(options, cache_seqlens=cache_seqlens, num_splits=num_splits, tuning=given or None)
    parameters = decode.explain(q, k_cache, v_cache, **arguments)

    def run(stage: Any = None) -> Any:
        return decode.flash_attention_decode(q, k_cache, v_cache, **arguments, stage=stage)

    stages = get("decode").stages_for(True, splits=parameters["num_splits"], append=options.get("k_new") is not None)
    return Prepared(run, stages, parameters)
