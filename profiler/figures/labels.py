"""Names as people say them: implementations, stages, tensors, masks, shapes, axis titles. One word for one thing."""

from __future__ import annotations

import re
from typing import Any

from profiler.figures import units
from profiler.spec import AttentionShape, Mask

IMPLEMENTATIONS = {
    "naive": "naive", "naive_folded": "naive, scale folded", "flash1": "FlashAttention-1 schedule",
    "flash2": "FlashAttention-2 (Triton)", "hopper": "FlashAttention (Hopper)",
    "hopper_fp8": "FlashAttention (Hopper, fp8)", "flash_decode": "split-KV decode",
    "decode": "split-KV decode",
    "ablation": "FlashAttention-2 with switches",
    "flash_varlen": "FlashAttention, packed", "flash_sparse": "FlashAttention-2, block-sparse",
    "sdpa_flash": "SDPA flash", "sdpa_cudnn": "SDPA cuDNN", "sdpa_math": "SDPA math",
    "sdpa_efficient": "SDPA memory-efficient", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4",
    "fa3_varlen": "FlashAttention-3, packed", "fa4_varlen": "FlashAttention-4, packed",
}
STAGES = {
    "scores": "S = Q·Kᵀ", "scale": "S = S·scale", "mask": "S = mask(S)", "softmax": "P = softmax(S)",
    "values": "O = P·V", "attention": "attention", "merge": "merge the parts",
    "d_values": "dV = Pᵀ·dO", "d_weights": "dP = dO·Vᵀ", "d_softmax": "dS = P∘(dP − Δ)", "d_mask": "dS = mask(dS)",
    "d_scale": "dS = dS·scale", "d_queries": "dQ = dS·K", "d_keys": "dK = dSᵀ·Q",
    "prepare": "Δ = Σ dO∘O", "keys": "dK and dV", "queries": "dQ", "finish": "dQ from its sum",
}
STAGE_SHORT = {"scores": "Q·Kᵀ", "scale": "scale", "mask": "mask", "softmax": "softmax", "values": "P·V",
               "merge": "merge", "d_values": "Pᵀ·dO", "d_weights": "dO·Vᵀ", "d_softmax": "softmax'", "d_mask": "mask'",
               "d_scale": "scale'", "d_queries": "dS·K", "d_keys": "dSᵀ·Q", "prepare": "Δ", "keys": "dK, dV",
               "queries": "dQ", "finish": "dQ"}
TENSORS = {"q": "Q", "k": "K", "v": "V", "o": "O", "s": "S", "p": "P", "lse": "LSE", "delta": "Δ", "do": "dO",
           "dq": "dQ", "dk": "dK", "dv": "dV", "dp": "dP", "ds": "dS",
           "m": "m", "l": "l"}


def implementation(name: Any) -> str:
    """The display name of an implementation: ``flash2`` reads "FlashAttention-2 (Triton)"."""
    return "unnamed" if units.missing(name) else IMPLEMENTATIONS.get(name, str(name).replace("_", " "))


def together(names: list[str]) -> str:
    """Implementations that share one line of a figure: "SDPA flash, SDPA cuDNN:<br>same line"."""
    return ",<br>".join(map(implementation, names)) + (": same line" if len(names) > 1 else "")


def is_naive(name: str) -> bool:
    """Whether the implementation materialises S and P."""
    return str(name).startswith("naive") or name == "sdpa_math"


def is_peer(name: str) -> bool:
    """Whether the implementation is somebody else's kernel that fuses the whole of attention."""
    ours = name.startswith(("flash", "hopper", "decode", "ablation")) and name != "flashinfer"
    return not ours and not is_naive(name)


def stage(name: Any, short: bool = False) -> str:
    """The display name of a stage: ``scores`` reads "S = Q·Kᵀ", short "Q·Kᵀ"."""
    words = {**STAGES, **STAGE_SHORT} if short else STAGES
    return "unnamed" if units.missing(name) else words.get(name, str(name).replace("_", " "))


def tensor(name: Any) -> str:
    """The display name of a tensor: ``lse`` reads "LSE"."""
    return TENSORS.get(str(name).lower(), str(name))


def mask(name: Any) -> str:
    """``full`` reads "full mask", ``window:128,0`` "window of 128 keys left, 0 right"."""
    if units.missing(name):
        return "unknown mask"
    if name in ("full", "causal"):
        return f"{name} mask"
    window = Mask.parse(str(name))
    side = ["all" if n < 0 else units.whole(n) for n in (window.left, window.right)]
    return f"window of {side[0]} keys left, {side[1]} right"


def shape(s: AttentionShape, lengths: bool = True) -> str:
    """A shape in words: "batch 1, 16 heads, N = 4,096, D = 64, bf16, full mask"; on demand without its lengths."""
    n = f"N = {units.whole(s.nq)}, " if s.nq == s.nk else f"Nq = {units.whole(s.nq)}, Nk = {units.whole(s.nk)}, "
    heads = f"{s.heads} heads" if s.heads == s.kv_heads else f"{s.heads} query and {s.kv_heads} key/value heads"
    return f"batch {s.batch}, {heads}, {n if lengths else ''}D = {s.head_dim}, {s.dtype}, {mask(s.mask)}"


def call(s: AttentionShape, direction: str = "forward", lengths: bool = True) -> str:
    """A shape in words, the direction before it where it is the backward pass."""
    return f"{'backward pass, ' if direction == 'backward' else ''}{shape(s, lengths)}"


def kernel(name: Any, length: int = 48) -> str:
    """A kernel name short enough for a label; the full one belongs in the hover."""
    if units.missing(name):
        return "unnamed kernel"
    from profiler.roles import short_name

    return shorten(short_name(str(name)), length)


def shorten(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters, its middle left out where it is longer."""
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= length else f"{text[: length - length // 3 - 1]}…{text[-(length // 3):]}"


def escape(text: Any) -> str:
    """``text`` that came from a file, safe inside a label: Plotly reads a subset of HTML."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def join(words: list[str]) -> str:
    """A list in a sentence: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def count(n: int, noun: str, plural: str = "") -> str:
    """A small count in words: "six passes", "one launch", "14 launches"."""
    return f"{WORDS[n] if n < len(WORDS) else units.whole(n)} {noun if n == 1 else plural or noun + 's'}"


def sentence(text: str) -> str:
    """``text`` with its first letter large."""
    return text[:1].upper() + text[1:]
