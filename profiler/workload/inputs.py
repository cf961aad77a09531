"""Q, K and V: seeded, standard normal, in the dtype of the shape."""

from __future__ import annotations

import torch

from profiler.spec import AttentionShape
from profiler.workload.implementations import Refused

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def make(shape: AttentionShape, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), contiguous; the same numbers for the same shape and seed."""
    if shape.dtype not in DTYPES:
        raise Refused(f"dtype {shape.dtype}: inputs are made in {', '.join(DTYPES)}")
    generator = torch.Generator(device).manual_seed(seed)

    def normal(heads: int, n: int) -> torch.Tensor:
        size = (shape.batch, heads, n, shape.head_dim)
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(DTYPES[shape.dtype])

    return normal(shape.heads, shape.nq), normal(shape.kv_heads, shape.nk), normal(shape.kv_heads, shape.nk)
