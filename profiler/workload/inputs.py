"""Q, K, V and dO: seeded, standard normal, in the dtype of the shape."""

from __future__ import annotations

import torch

from profiler.spec import AttentionShape, RunConfig
from profiler.workload.implementations import Refused

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}


def make(shape: AttentionShape, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), contiguous; the same numbers for the same shape and seed."""
    if shape.dtype not in DTYPES:
        raise Refused(f"dtype {shape.dtype}: inputs are made in {', '.join(DTYPES)}")
    generator = torch.Generator(device).manual_seed(seed)
    sizes = ((shape.heads, shape.nq), (shape.kv_heads, shape.nk), (shape.kv_heads, shape.nk))
    q, k, v = (_normal(shape, heads, n, device, generator) for heads, n in sizes)
    return q, k, v


def output_gradient(shape: AttentionShape, device: str, seed: int) -> torch.Tensor:
    """dO (B, H, Nq, D), standard normal and independent of the inputs of the same seed."""
    generator = torch.Generator(device).manual_seed(seed + 1)
    return _normal(shape, shape.heads, shape.nq, device, generator)


def of(config: RunConfig, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """(q, k, v) for a forward, (q, k, v, dO) for a backward."""
    qkv = make(config.shape, device, seed)
    return qkv if config.direction == "forward" else (*qkv, output_gradient(config.shape, device, seed))


def _normal(shape: AttentionShape, heads: int, n: int, device: str, generator: torch.Generator) -> torch.Tensor:
    size = (shape.batch, heads, n, shape.head_dim)
    return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(DTYPES[shape.dtype])
