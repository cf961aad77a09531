"""What the attention tests share: random inputs and the tolerance rule."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FLOOR = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}  # times the largest reference magnitude


def tensors(batch: int, heads: int, kv_heads: int, nq: int, nk: int, head_dim: int, dtype: torch.dtype, device: str,
            seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, nq, head_dim), (batch, kv_heads, nk, head_dim), (batch, kv_heads, nk, head_dim))
    q, k, v = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    return q, k, v


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False,
          scale: float | None = None) -> torch.Tensor:
    """PyTorch's operators in the inputs' dtype, one after the other; rows without keys are 0."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        nq, nk = scores.shape[-2:]
        hidden = torch.arange(nk, device=q.device) > torch.arange(nq, device=q.device)[:, None] + nk - nq
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1), nan=0.0) @ v


def assert_close(got: torch.Tensor, expected: torch.Tensor, eager_result: torch.Tensor) -> None:
    """At most twice the error of eager PyTorch in the same dtype, plus the dtype's floor."""
    assert torch.isfinite(got).all()
    error = (got.double() - expected).abs().max()
    allowed = 2 * (eager_result.double() - expected).abs().max() + FLOOR[got.dtype] * expected.abs().max()
    assert error <= allowed, f"error {error:.2e}, allowed {allowed:.2e}"


class Operators(TorchDispatchMode):
    """Every operator that PyTorch runs, views aside, with the elements that it makes or changes."""

    VIEWS = ("view", "reshape", "_unsafe_view", "transpose", "expand", "slice", "detach", "alias", "unsqueeze", "empty",
             "new_empty", "empty_like")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in self.VIEWS:
            self.seen.append((name, result.numel()))
        return result
