"""The way to debug an attention kernel, automated: the smallest shape first, one difficulty more a step.

N 64 is one block or two; 65 needs a tail mask; 113 a tail in both directions; 512 and 2048 many blocks; then several
batches with grouped heads and Nq ≠ Nk. Each step is compared with float64, full and causal: output, LSE, gradients,
as far as an implementation has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels import registry
from kernels.errors import UnsupportedCall
from kernels.reference import reference_attention

LENGTHS = (64, 65, 113, 512, 2048)
SHORT = (64, 65, 113)  # what Triton's interpreter does in seconds
FLOOR = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}  # times the largest reference magnitude
AXES = {"out": ("batch", "head", "query", "column"), "lse": ("batch", "head", "query"),
        "dq": ("batch", "head", "query", "column"), "dk": ("batch", "key head", "key", "column"),
        "dv": ("batch", "key head", "key", "column")}


@dataclass(frozen=True)
class Step:
    """One shape of the ladder."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    nq: int
    nk: int


@dataclass(frozen=True)
class Finding:
    """One tensor of one step. error: largest difference from float64, nan where the tensor is not finite; where: its
    place; why: for a call that was refused."""

    implementation: str
    step: str
    tensor: str = ""
    error: float = 0.0
    allowed: float = 0.0
    where: str = ""
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed


def ladder(lengths: Sequence[int]) -> list[Step]:
    """One head of each length, then batches and grouped heads on lengths that no block divides."""
    last = min(max(lengths), 203)
    return [*(Step(f"N {n}", 1, 1, 1, n, n) for n in lengths),
            Step(f"batch 2, heads 4/2, {last - 10} x {last}", 2, 4, 2, last - 10, last)]


def check(name: str, steps: Sequence[Step], *, dtype: torch.dtype, device: str, head_dim: int = 64,
          call: Callable[..., Any] = registry.call) -> Iterator[Finding]:
    """Findings of one implementation, step by step, up to and including the first step that fails or is refused."""
    for step in steps:
        for causal in (False, True):
            label = f"{step.name}, {'causal' if causal else 'full'}"
            try:
                found = list(_compare(name, label, step, causal, dtype, device, head_dim, call))
            except UnsupportedCall as refused:
                yield Finding(name, label, why=str(refused))
                return
            yield from found
            if not all(finding.ok for finding in found):
                return


def _compare(name: str, label: str, step: Step, causal: bool, dtype: torch.dtype, device: str, head_dim: int,
             call: Callable[..., Any]) -> Iterator[Finding]:
    *inputs, dout = _inputs(step, dtype, device, head_dim)
    info = registry.get(name)

    differentiable = "backward" in info.directions

    def run(attention: Callable[..., Any], as_type: torch.dtype) -> dict[str, torch.Tensor]:
        leaves = [x.to(as_type).detach().requires_grad_(differentiable) for x in inputs]
        given = attention(*leaves, causal=causal)
        out, lse = given if isinstance(given, tuple) else (given, None)
        grads = torch.autograd.grad(out, leaves, dout.to(as_type)) if differentiable else ()
        found = {"out": out, "lse": lse, **dict(zip(("dq", "dk", "dv"), grads))}
        return {tensor: value.detach() for tensor, value in found.items() if value is not None}

    exact = run(reference_attention, torch.float64)
    eager = run(_eager, dtype)
    options = {"return_lse": True} if "return_lse" in info.supports else {}
    got = run(lambda q, k, v, causal: call(info.name, q, k, v, causal=causal, **options), dtype)
    for tensor, value in got.items():
        if tensor == "lse":  # float32 in every dtype
            allowed = 1e-5 * max(1.0, exact["lse"].abs().max().item())
        else:
            times = 2 if tensor == "out" else 3
            allowed = times * (eager[tensor].double() - exact[tensor]).abs().max().item()
            allowed += FLOOR[dtype] * exact[tensor].abs().max().item()
        difference = (value.double() - exact[tensor]).abs()
        flat = int(torch.where(difference.isnan(), torch.inf, difference).argmax())
        place = torch.unravel_index(torch.tensor(flat), difference.shape)
        where = ", ".join(f"{axis} {int(at)}" for axis, at in zip(AXES[tensor], place))
        yield Finding(name, label, tensor, difference.flatten()[flat].item(), allowed, where)


def trace(name: str, steps: Sequence[Step], *, dtype: torch.dtype, device: str, head_dim: int = 64) -> tuple[bool, str]:
    """Whether every step of the online softmax of ``name`` is right in every shape, and that in one sentence: the
    first S, m, alpha, l or accumulator that differs from float64, and its block (kernels.trace)."""
    from kernels.trace import QUANTITIES
    from kernels.trace import trace as first_difference

    for step in steps:
        q, k, v, _ = _inputs(step, dtype, device, head_dim)
        for causal in (False, True):
            label = f"{step.name}, {'causal' if causal else 'full'}"
            try:
                found = first_difference(name, q, k, v, causal=causal)
            except UnsupportedCall as refused:
                return False, f"{name}: refused at {label}: {refused}"
            if found is not None:
                return False, f"{name}: {label}: {found}"
    return True, f"{name}: {', '.join(QUANTITIES)} and out are right in every block of {2 * len(steps)} steps"


def _inputs(step: Step, dtype: torch.dtype, device: str, head_dim: int) -> list[torch.Tensor]:
    """q, k, v and dO of a step, standard normal, the same at each call."""
    generator = torch.Generator().manual_seed(step.nq * 4099 + step.nk)
    sizes = ((step.heads, step.nq), (step.kv_heads, step.nk), (step.kv_heads, step.nk), (step.heads, step.nq))
    return [torch.randn(step.batch, h, n, head_dim, generator=generator).to(device, dtype) for h, n in sizes]


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """PyTorch's operators one after the other, every row seeing a key."""
    group, (nq, nk) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(nq, nk, dtype=torch.bool, device=q.device).triu(nk - nq + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def summary(findings: Sequence[Finding]) -> str:
    """One implementation in one sentence: every step right, or the first that is not, by how much and where."""
    last = findings[-1]
    if last.why:
        return f"{last.implementation}: refused at {last.step}: {last.why}"
    wrong = [finding for finding in findings if not finding.ok]
    if wrong:
        first = wrong[0]
        return (f"{first.implementation}: first wrong at {first.step}: {first.tensor} is off by {first.error:.3g}, "
                f"allowed {first.allowed:.3g}, at {first.where}")
    worst = max(findings, key=lambda finding: finding.error / finding.allowed)
    steps = len({finding.step for finding in findings})
    return (f"{last.implementation}: right in {steps} steps; nearest to its limit "
            f"{worst.tensor} at {worst.step}, {worst.error / worst.allowed:.0%} of it")
