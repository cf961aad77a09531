"""Philox 4x32-10 in NumPy (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), written apart from the
kernels so that it can check their dropout."""

from __future__ import annotations

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[np.ndarray, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Four uint32 random words of four counter words (integer arrays that broadcast), keyed by 64 bits of seed."""
    c = [np.asarray(word).astype(np.uint64) & _LOW for word in counter]
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [second >> _HALF ^ c[1] ^ np.uint64(keys[0]), second & _LOW,
             first >> _HALF ^ c[3] ^ np.uint64(keys[1]), first & _LOW]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return tuple(word.astype(np.uint32) for word in np.broadcast_arrays(*c))


def kept(seed: int, p: float, batch: int, head: int, rows: np.ndarray, nk: int) -> np.ndarray:
    """Which of P[batch, head, rows, :nk] dropout with probability p keeps: bool (rows, nk).

    Word column % 4 of counter (column // 4, row, head, batch) decides: its upper 31 bits are at least round(p · 2³¹).
    """
    quads = np.arange((nk + 3) // 4)[None, :]
    words = philox((quads, rows[:, None], np.asarray(head), np.asarray(batch)), seed)
    every = np.stack(words, axis=-1).reshape(len(rows), -1)[:, :nk]
    return every >> np.uint32(1) >= threshold(p)


def threshold(p: float) -> int:
    """Of 2³¹ equally likely numbers, how many are dropped."""
    return min(round(p * 2**31), 2**31 - 1)
