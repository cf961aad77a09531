"""The options of flash_attention beside causal and scale: what each may be, and what the kernels get of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kernels.checks import resolve_window
from kernels.errors import UnsupportedCall

NAMES = ("attn_bias", "key_padding_mask", "window", "softcap", "alibi_slopes", "sinks", "dropout_p", "seed")
LATER = {"block_mask": "flash2 has no block-sparse mask: key_padding_mask, window and an attn_bias of -inf hide keys",
         **dict.fromkeys(("q_scale", "k_scale", "v_scale"), "It goes with tensors of torch.float8_e4m3fn")}
FLOATING = (torch.float16, torch.bfloat16, torch.float32)


class Options(NamedTuple):
    """Checked options; at its default each is off.

    left, right: the window, -1 unlimited, causal included (right = 0). bias (B, H, Nq, Nk), expanded; padding (B, Nk)
    bool, True where a key is seen; slopes (B, H) and sinks (H,), float32; rng (1,) int64, the seed on the device.
    """

    left: int = -1
    right: int = -1
    softcap: float = 0.0
    dropout_p: float = 0.0
    rng: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    padding: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in (self.rng, self.bias, self.padding, self.slopes, self.sinks) if x is not None)

    @property
    def scored(self) -> bool:
        """Whether anything but the window comes between the scores and P."""
        return bool(self.softcap or self.dropout_p or self.tensors)


def check(q: torch.Tensor, k: torch.Tensor, given: Mapping[str, Any], *, causal: bool, draw: bool = True) -> Options:
    """Options of a call on checked q (B, H, Nq, D) and k (B, Hk, Nk, D), or UnsupportedCall by name.

    given: the keyword arguments of flash_attention. draw: make the seed where there is dropout and none is given.
    """
    for name, why in LATER.items():
        if given.get(name) is not None:
            raise UnsupportedCall(name, "None", f"a {type(given[name]).__name__}", f"{why}.")
    batch, heads, nq, _ = q.shape
    nk = k.shape[2]
    left, right = resolve_window(given["window"], causal)
    left, right = min(left, nq + nk), min(right, nq + nk)  # so that positions plus a window stay inside int32
    softcap, dropout_p = _number("softcap", given["softcap"]), _number("dropout_p", given["dropout_p"])
    if dropout_p >= 1:
        raise UnsupportedCall("dropout_p", "a number of at least 0 and below 1", repr(dropout_p))
    bias, padding = given["attn_bias"], given["key_padding_mask"]
    slopes, sinks = given["alibi_slopes"], given["sinks"]
    if bias is not None:
        _tensor("attn_bias", bias, q, FLOATING, "torch.where(mask, 0.0, -torch.inf) makes a bias of a boolean mask.")
        _no_gradient("attn_bias", bias)
        if bias.ndim > 4 or any(a not in (1, b) for a, b in zip(bias.shape[::-1], (nk, nq, heads, batch))):
            raise UnsupportedCall("attn_bias", f"a shape that broadcasts to {(batch, heads, nq, nk)}",
                                  f"{tuple(bias.shape)}")
        bias = bias.expand(batch, heads, nq, nk)
    if padding is not None:
        _tensor("key_padding_mask", padding, q, (torch.bool,), "True where a key is seen: mask.bool().")
        if tuple(padding.shape) != (batch, nk):
            raise UnsupportedCall("key_padding_mask", f"shape (B, Nk) = {(batch, nk)}", f"{tuple(padding.shape)}")
        padding = padding.contiguous()
    if slopes is not None:
        _tensor("alibi_slopes", slopes, q, FLOATING)
        _no_gradient("alibi_slopes", slopes)
        if tuple(slopes.shape) not in ((heads,), (batch, heads)):
            raise UnsupportedCall("alibi_slopes", f"shape (H,) or (B, H) = {(batch, heads)}", f"{tuple(slopes.shape)}")
        slopes = slopes.float().expand(batch, heads).contiguous()
    if sinks is not None:
        _tensor("sinks", sinks, q, FLOATING)
        if tuple(sinks.shape) != (heads,):
            raise UnsupportedCall("sinks", f"shape (H,) = {(heads,)}", f"{tuple(sinks.shape)}")
        sinks = sinks.float().contiguous()
    rng = _seed(given["seed"], q, draw) if dropout_p else None
    return Options(left, right, softcap, dropout_p, rng, bias, padding, slopes, sinks)


def extras(options: Options) -> Any:
    """What the kernels get: a scores.Extras, or None where nothing but a window is on."""
    from kernels.philox import threshold
    from kernels.scores import Extras

    if not options.scored:
        return None
    found: dict[str, Any] = {"sinks": options.sinks}
    if options.softcap:
        found |= {"cap_log2": options.softcap * math.log2(math.e), "per_cap": math.log(2) / options.softcap}
    if options.slopes is not None:
        found |= {"slopes": options.slopes, "slopes_b": options.slopes.stride(0)}
    if options.bias is not None:
        found |= {"bias": options.bias, **dict(zip(("bias_b", "bias_h", "bias_m", "bias_n"), options.bias.stride()))}
    if options.padding is not None:
        found |= {"padding": options.padding.view(torch.uint8)}
    if options.dropout_p:
        found |= {"seed": options.rng, "threshold": threshold(options.dropout_p),
                  "keep_scale": 1.0 / (1.0 - options.dropout_p)}
    return Extras(**found)


def told(options: Options) -> tuple[str, ...]:
    """One sentence on the options that are on, for `explain`."""
    on = [name for name, value in (("softcap", options.softcap), ("alibi_slopes", options.slopes),
                                   ("attn_bias", options.bias), ("key_padding_mask", options.padding),
                                   ("sinks", options.sinks), ("dropout_p", options.dropout_p))
          if value is not None and not (isinstance(value, float) and value == 0)]
    window = [f"window ({options.left}, {options.right}): blocks of keys outside it are skipped."]
    return (*(window if options.left >= 0 or options.right > 0 else ()),
            *([f"Inside the kernel: {', '.join(on)}."] if on else ()))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise UnsupportedCall(name, "a finite number of at least 0, 0 for none", repr(value))
    return float(value)


def _tensor(name: str, tensor: Any, q: torch.Tensor, dtypes: tuple[torch.dtype, ...], remedy: str = "") -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedCall(name, "a torch.Tensor", type(tensor).__name__)
    if tensor.dtype not in dtypes:
        raise UnsupportedCall(name, f"dtype {' or '.join(map(str, dtypes))}", f"{tensor.dtype}", remedy)
    if tensor.device != q.device:
        raise UnsupportedCall(name, f"the device of q, {q.device}", f"{tensor.device}")


def _no_gradient(name: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnsupportedCall(name, "no gradient to be asked for: flash2 has gradients of q, k, v and sinks",
                              "requires_grad=True", f"Pass {name}.detach(); kernels.reference_attention has this one.")


def _seed(seed: Any, q: torch.Tensor, draw: bool) -> torch.Tensor | None:
    """The seed as (1,) int64 on q's device. None: drawn from PyTorch's generator there, so torch.manual_seed rules it
    and a CUDA graph draws anew at each replay."""
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device != q.device:
            raise UnsupportedCall("seed", f"one int64 on {q.device}", f"{seed.dtype} of shape {tuple(seed.shape)} on "
                                                                      f"{seed.device}")
        return seed.reshape(1)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise UnsupportedCall("seed", "a whole number of at least 0 and below 2^63, an int64 tensor, or None",
                              repr(seed))
    if not draw:
        return q.new_empty((1,), dtype=torch.int64)
    if seed is None:
        return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    return torch.full((1,), seed, dtype=torch.int64, device=q.device)
