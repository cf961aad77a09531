"""The backward pass twice in NumPy float64: with P kept, and with P recomputed block by block from the LSE.

S = scale·Q·Kᵀ, P = exp(S − LSE), dP = dO·Vᵀ, Δ = rowsum(dO ⊙ O):
dV = Pᵀ·dO, dS = P ⊙ (dP − Δ), dQ = scale·dS·K, dK = scale·dSᵀ·Q (Dao 2023, arXiv 2307.08691, Algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.spec import AttentionShape

Array = np.ndarray
MATMULS = ("S", "dP", "dV", "dQ", "dK")  # a block's five; the forward has two, S and P·V


def forward(q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Array, Array]:
    """O (N, D), LSE (N,) and P (N, N) of one head."""
    s = scale * q @ k.T
    m = s.max(axis=1, keepdims=True)
    lse = (m + np.log(np.exp(s - m).sum(axis=1, keepdims=True)))[:, 0]
    p = np.exp(s - lse[:, None])
    return p @ v, lse, p


def with_p(q: Array, k: Array, v: Array, p: Array, do: Array, scale: float) -> tuple[Array, Array, Array]:
    """dQ, dK, dV with P kept. The softmax's own formula: Δ from whole rows of P and dP."""
    dp = do @ v.T
    ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
    return scale * ds @ k, scale * ds.T @ q, p.T @ do


def recomputed(q: Array, k: Array, v: Array, o: Array, lse: Array, do: Array, scale: float,
               block: int) -> tuple[Array, Array, Array]:
    """The same from O and LSE, a block of keys at a time: no whole row of P exists anywhere."""
    delta = (do * o).sum(axis=1)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for start in range(0, len(k), block):
        now = slice(start, start + block)
        s = scale * q @ k[now].T
        p = np.exp(s - lse[:, None])
        dp = do @ v[now].T
        ds = p * (dp - delta[:, None])
        dv[now] = p.T @ do
        dq += scale * ds @ k[now]
        dk[now] = scale * ds.T @ q
    return dq, dk, dv


@dataclass(frozen=True, slots=True)
class Trial:
    """Largest differences on one random head: recomputed against kept P, and Δ from O against Δ from rows of P."""

    gradients: float
    delta: float
    unscaled: float  # largest error of dQ where the scale is left out, relative to dQ's largest entry


def trial(n: int, d: int, block: int, seed: int = 0) -> Trial:
    """Both ways on one random head of `n` queries and keys, head size `d`."""
    random = np.random.default_rng(seed)
    q, k, v, do = (random.standard_normal((n, d)) for _ in range(4))
    scale = d**-0.5
    o, lse, p = forward(q, k, v, scale)
    kept, again = with_p(q, k, v, p, do, scale), recomputed(q, k, v, o, lse, do, scale, block)
    rows = (p * (do @ v.T)).sum(axis=1)
    return Trial(max(float(np.abs(a - b).max()) for a, b in zip(kept, again)),
                 float(np.abs(rows - (do * o).sum(axis=1)).max()),
                 float(np.abs(kept[0] / scale - kept[0]).max() / np.abs(kept[0]).max()))


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that a forward leaves for its backward, besides Q, K and V, which both need."""

    naive: int  # P in the inputs' type
    flash: int  # O in the inputs' type, LSE in float32

    @property
    def ratio(self) -> float:
        return self.naive / self.flash


def kept(shape: AttentionShape) -> Kept:
    return Kept(shape.matrix_bytes, shape.q_bytes + shape.batch * shape.heads * shape.nq * 4)
