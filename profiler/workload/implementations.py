"""One call signature for everything that can be measured: our kernels through the registry, and the peers by name.

A forward call gives O. A backward call gives (dQ, dK, dV) of a forward that ran before, once, when it was bound.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from profiler.errors import BadInput
from profiler.spec import RunConfig
from profiler.workload import accuracy, foreign, options, patterns

# Peer -> torch's name of the only backend it may use. With one backend allowed, either that one ran or torch refused.
PEERS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_math": "MATH"}

Stage = Callable[[str], contextlib.AbstractContextManager]


def no_stage(name: str) -> contextlib.AbstractContextManager:
    """A stage that marks nothing."""
    return contextlib.nullcontext()


class Refused(Exception):
    """An implementation that does not take this configuration; the text is its own reason."""


def is_causal(config: RunConfig) -> bool:
    """Whether the mask is causal, for those that take no windows: these are refused."""
    if patterns.window(config):
        raise Refused(f"mask {config.shape.mask}: {config.implementation} is called with full or causal masks")
    return patterns.causal(config)


def as_it_is(result: Any) -> Any:
    """What a call returns, where it needs no unpacking."""
    return result


@dataclass(frozen=True)
class Bound:
    """A configuration with its tensors. call(stage) runs it once and returns O (B, H, Nq, D), or (dQ, dK, dV);
    parameters: all tuning parameters that it runs with, the kernel's own choices included; training: forward and
    backward together, afresh, where the direction is backward; foreign: a function that is not ours nor a peer's; note:
    what a reader of its row must know; unpack: makes of what a call on packed sequences returns tensors shaped like q,
    k and v; expected: what its output must be, where an option makes that another one than the shape and mask say;
    timed: False where only memory and error are asked for."""

    call: Callable[[Stage], Any]
    parameters: dict[str, Any]
    training: Callable[[], Any] | None = None
    foreign: bool = False
    note: str = ""
    unpack: Callable[[Any], Any] = as_it_is
    expected: Callable[[], Any] | None = None
    timed: bool = True


def bind(config: RunConfig, q: Any, k: Any, v: Any, dout: Any = None) -> Bound:
    """``config`` on q (B, H, Nq, D), k and v (B, Hk, Nk, D); for a backward also dout, the gradient of O.

    Raises Refused, or the kernels' UnsupportedCall, where the implementation does not take the configuration, and
    BadInput where there is no such implementation.
    """
    from profiler.workload import peers

    if config.implementation in peers.PEERS:
        return _package(config, q, k, v, dout)
    if config.implementation == "ablation":
        from profiler.workload import ablation

        return ablation.bind(config, q, k, v, is_causal(config))
    if config.implementation == "hopper":
        from profiler.workload import hopper

        if hopper.apart(config):
            return hopper.bind(config, q, k, v, is_causal(config))
    if config.implementation in PEERS or foreign.is_foreign(config.implementation):
        causal = is_causal(config)
        forward = (_peer if config.implementation in PEERS else _foreign)(config, causal)
        if config.direction == "forward":
            bound = Bound(lambda stage: forward(stage, q, k, v), {})
        else:
            bound = by_autograd(forward, q, k, v, dout)
        chosen = sdpa_choice(q, k, v, causal) if config.implementation in PEERS else ""
        return replace(bound, foreign=config.implementation not in PEERS, note=chosen)
    return _ours(config, q, k, v, dout)


def _ours(config: RunConfig, q: Any, k: Any, v: Any, dout: Any) -> Bound:
    """A kernel of the registry, by its kind and direction; a window is handed to it, or refused by it by name."""
    import kernels

    registry = kernels.registry
    info = next((info for info in registry.KERNELS if info.name == config.implementation), None)
    if info is None:
        from profiler.workload import peers

        known = [*(info.name for info in registry.KERNELS), "ablation", *PEERS, *peers.PEERS]
        raise BadInput(f"implementation: expected one of {', '.join(known)}, got {config.implementation!r}.")
    if config.direction not in info.directions:
        raise Refused(f"direction {config.direction}: {info.name} has {', '.join(info.directions)} only")
    pattern, given, causal = patterns.of(config), patterns.options(config, q.device), patterns.causal(config)
    if sides := patterns.window(config):
        given["window"] = sides
    on, extra = options.of(config), options.given(config, q)
    ordered = info.name == "hopper" and config.direction == "backward"  # flash2's sums have one order as it is
    fixed: dict[str, Any] = {"deterministic": True} if ordered and config.parameters.get("deterministic") else {}
    apart = {*pattern, *on, *fixed, "training"}
    tuning = {name: value for name, value in config.parameters.items() if name not in apart} or None
    if config.parameters.get("training") and config.direction != "backward":
        raise Refused("training: a parameter of the backward")
    if info.kind == "decode":
        if given or on:
            raise Refused(f"{', '.join([*given, *on])}: decode is measured on caches of one length, without options")
        lengths = q.new_full((q.shape[0],), k.shape[2]).int()
        ready = registry.prepare_decode(q, k, v, cache_seqlens=lengths, causal=causal, tuning=tuning)
        return Bound(ready, dict(ready.parameters))
    if config.direction == "backward":
        ready = registry.prepare_backward(info.name, q, k, v, dout, causal=causal, tuning=tuning, **given, **fixed)
        # The forward of a training step takes its own blocks: the tuning is the backward's.
        step = partial(train, partial(registry.call, info.name, causal=causal, **given, **fixed), (q, k, v), dout)
        if config.parameters.get("training"):
            return Bound(partial(_step, step), {**ready.parameters, **pattern, **fixed, "training": True}, timed=False,
                         note="forward and backward as one call, for its memory; its time is no backward's")
        return Bound(ready, {**ready.parameters, **pattern, **fixed}, step, unpack=ready.unpack)
    ready = registry.prepare_forward(info.name, q, k, v, causal=causal, tuning=tuning, **given, **extra)
    expected = partial(accuracy.expect, q, k, v, causal, patterns.hidden(config, q.device), **extra) if extra else None
    return Bound(ready, {**ready.parameters, **pattern, **on}, unpack=ready.unpack, expected=expected)


def _step(step: Callable[[], Any], stage: Stage) -> Any:
    """A whole training step as one stage: the parameter ``training`` of a backward."""
    import torch

    with torch.autograd.set_multithreading_enabled(False), stage("training"):
        return step()


def train(forward: Callable[..., Any], qkv: tuple[Any, Any, Any], dout: Any) -> Any:
    """Forward and backward as a training step runs them, through autograd: (dQ, dK, dV)."""
    import torch

    leaves = tuple(x.detach().requires_grad_() for x in qkv)
    with torch.enable_grad():
        out = forward(*leaves)
    return torch.autograd.grad(out, leaves, dout)


def by_autograd(forward: Callable[..., Any], q: Any, k: Any, v: Any, dout: Any) -> Bound:
    """The backward of forward(stage, q, k, v) by autograd, as one stage on a graph that is kept."""
    import torch

    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        out = forward(no_stage, *leaves)

    def call(stage: Stage) -> Any:
        # In this thread and not in autograd's own for the GPU: push/pop ranges belong to the thread that opens them.
        with torch.autograd.set_multithreading_enabled(False), stage("attention"):
            return torch.autograd.grad(out, leaves, dout, retain_graph=True)

    return Bound(call, {}, partial(train, partial(forward, no_stage), (q, k, v), dout))


def _package(config: RunConfig, q: Any, k: Any, v: Any, dout: Any) -> Bound:
    """A peer that is a package of its own; its layout of the inputs is made once, outside the timed call."""
    from profiler.workload import peers

    known = peers.LENGTHS if config.implementation in peers.PACKED else ()
    if others := [name for name in config.parameters if name not in known]:
        raise Refused(f"{config.implementation} has no tuning parameters, got {', '.join(others)}")
    adapter = peers.adapter(config)
    q, k, v = (adapter.layout(x) for x in (q, k, v))

    def forward(stage: Stage, *qkv: Any) -> Any:
        with stage("attention"):
            return adapter.call(*qkv)

    if config.direction == "backward":
        bound = by_autograd(forward, q, k, v, adapter.layout(dout))
        return replace(bound, parameters=dict(config.parameters),
                       unpack=lambda gradients: tuple(adapter.restore(x) for x in gradients))
    return Bound(lambda stage: forward(stage, q, k, v), dict(config.parameters), unpack=adapter.restore)


def sdpa_choice(q: Any, k: Any, v: Any, causal: bool) -> str:
    """Which backend torch takes when left to itself, as a note; empty where it does not say."""
    import torch
    from torch.nn.attention import SDPBackend

    with contextlib.suppress(Exception):  # a private function of torch, which some version may not have
        grouped = q.shape[1] != k.shape[1]
        number = torch._fused_sdp_choice(q, k, v, is_causal=causal and q.shape[2] == k.shape[2], enable_gqa=grouped)
        return f"left to itself, torch chooses {SDPBackend(number).name}"
    return ""


def _foreign(config: RunConfig, causal: bool) -> Callable[..., Any]:
    """forward(stage, q, k, v) of a function named MODULE:FUNCTION."""
    if config.parameters:
        raise Refused(f"{config.implementation} has no tuning parameters, got {', '.join(config.parameters)}")
    forward = foreign.caller(config.implementation, causal)
    if forward is None:
        raise Refused(f"{config.implementation} has no keyword causal or is_causal")
    return forward


def _peer(config: RunConfig, causal: bool) -> Callable[..., Any]:
    """forward(stage, q, k, v) of one of torch's backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    shape = config.shape
    if config.parameters:
        raise Refused(f"{config.implementation} has no tuning parameters, got {', '.join(config.parameters)}")
    if shape.nq == 1:
        causal = False  # the last query sees every key
    if causal and shape.nq != shape.nk:
        # torch aligns its causal mask top-left, ours is bottom-right: another computation, so not a comparison.
        raise Refused("torch aligns is_causal to the top left, which differs from ours when Nq ≠ Nk")
    backend = getattr(SDPBackend, PEERS[config.implementation])
    grouped: dict[str, Any] = {"enable_gqa": True} if shape.heads != shape.kv_heads else {}

    def peer(stage: Stage, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend), stage("attention"):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)

    return peer
