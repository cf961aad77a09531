"""Decode as PyTorch operators, so that torch.compile and fake tensors take it whole: one reads the cache, one also
writes new keys and values into it. `flash_attention_decode` calls them where PyTorch traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from kernels.decode import Tuning, flash_attention_decode

_REST = ("Tensor cache_seqlens, Tensor? page_table, int? num_splits, bool causal, int left, int right, float softcap, "
         "float? scale, int[] tuning) -> (Tensor, Tensor)")
_NAMES = [field.name for field in fields(Tuning)]


def _launch(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k_new: Any, v_new: Any, *rest: Any
            ) -> tuple[torch.Tensor, torch.Tensor]:
    lengths, table, splits, causal, left, right, softcap, scale, tuning = rest
    with torch.no_grad():
        out, lse = flash_attention_decode(
            q, k_cache, v_cache, cache_seqlens=lengths, page_table=table, k_new=k_new, v_new=v_new, num_splits=splits,
            causal=causal, window=(left, right), softcap=softcap, scale=scale, return_lse=True,
            tuning={name: value for name, value in zip(_NAMES, tuning) if value >= 0})
    return out, lse


def _fake(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("flashscope::decode", mutates_args=(), schema=(
    f"(Tensor q, Tensor k_cache, Tensor v_cache, {_REST}"))
def read(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: Any
         ) -> tuple[torch.Tensor, torch.Tensor]:
    """out like q, contiguous, and lse (B, Hq, Nq) float32, of a cache that is only read."""
    return _launch(q, k_cache, v_cache, None, None, *rest)


@torch.library.custom_op("flashscope::decode_append", mutates_args=("k_cache", "v_cache"), schema=(
    f"(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, {_REST}"))
def append(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *rest: Any
           ) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, after k_new and v_new went into the cache."""
    return _launch(q, k_cache, v_cache, *rest)


read.register_fake(_fake)
append.register_fake(_fake)


def call(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *, cache_seqlens: torch.Tensor,
         page_table: torch.Tensor | None, k_new: torch.Tensor | None, v_new: torch.Tensor | None,
         num_splits: int | None, causal: bool, window: tuple[int, int], softcap: float, scale: float | None,
         tuning: Mapping[str, Any] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments as flash_attention_decode takes them; the operator, when it runs, refuses what that would refuse."""
    packed = [tuning.get(name, -1) for name in _NAMES] if tuning else []
    rest = (cache_seqlens, page_table, num_splits, causal, *window, float(softcap), scale, packed)
    if k_new is None and v_new is None:
        return read(q, k_cache, v_cache, *rest)
    return append(q, k_cache, v_cache, k_new, v_new, *rest)
