"""The parameters of a configuration that are options of flash2, by the model's names, and what they ask of its output.

attn_bias: how many different Nq × Nk matrices there are, 1 or all (True: one a head and sequence), in the dtype of q,
standard normal; dropout_p: the probability. They belong to a forward: a backward with them is checked elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from profiler.spec import RunConfig

NAMES = ("attn_bias", "dropout_p")
SEED = 20_260  # of dropout, and of the bias


def of(config: RunConfig) -> dict[str, Any]:
    """Those that are on."""
    return {name: config.parameters[name] for name in NAMES if config.parameters.get(name)}


def given(config: RunConfig, q: torch.Tensor) -> dict[str, Any]:
    """The same as keyword arguments of kernels.flash_attention, for q (B, H, Nq, D)."""
    from profiler.workload.implementations import Refused

    on, s = of(config), config.shape
    if on and config.direction != "forward":
        raise Refused(f"{', '.join(on)}: measured in the forward only")
    found: dict[str, Any] = {}
    if "attn_bias" in on:
        every = on["attn_bias"] is True or on["attn_bias"] == s.batch * s.heads
        if not every and on["attn_bias"] != 1:
            raise Refused(f"attn_bias: 1 matrix or all of them, got {on['attn_bias']}")
        size = (s.batch, s.heads, s.nq, s.nk) if every else (1, 1, s.nq, s.nk)
        generator = torch.Generator(q.device).manual_seed(SEED)
        found["attn_bias"] = torch.randn(size, generator=generator, device=q.device, dtype=q.dtype)
    if "dropout_p" in on:
        found |= {"dropout_p": float(on["dropout_p"]), "seed": SEED}
    return found
