"""Which keys a query looks at: exact attention with its masks, and the families that change the question."""

from __future__ import annotations

import numpy as np

N, BLOCK = 32, 4  # queries and keys of the pictures, and the block of block-sparse patterns


def patterns(n: int = N) -> dict[str, np.ndarray]:
    """name -> (n, n) share of the exact pair that is computed: 1 computed, 0 left out, between: summarised."""
    row, column = np.arange(n)[:, None], np.arange(n)[None, :]
    causal = column <= row
    chosen = (row // BLOCK == column // BLOCK) | (column < BLOCK) | ((row // BLOCK + column // BLOCK) % 3 == 0)
    random = np.random.default_rng(4)
    keys = np.zeros((n, n), bool)
    for i in range(n):
        keys[i, random.choice(i + 1, min(i + 1, 6), replace=False)] = True
    return {
        "exact": causal.astype(float),
        "window": (causal & (column > row - 8)).astype(float),
        "blocks": (causal & chosen).astype(float),
        "retrieval": (causal & (keys | (row - column < 3))).astype(float),
        "linear": np.where(causal, 0.35, 0.0),
        "compressed": np.where(causal & (column % BLOCK == BLOCK - 1), 1.0, np.where(causal, 0.2, 0.0)),
    }
