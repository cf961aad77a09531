"""Attention from its definition to FlashAttention-2, on (batch, heads, tokens, head_dim) tensors.

Importing this package loads neither PyTorch nor Triton; each public name loads what it needs when it is first used.
"""

import importlib
from typing import Any

_HOMES = {
    "naive_attention": "kernels.naive", "flash_attention": "kernels.api", "explain": "kernels.api",
    "flash_attention_decode": "kernels.decode", "flash_attention_varlen": "kernels.varlen_operator",
    "reference_attention": "kernels.reference",
    "UnsupportedCall": "kernels.errors",
}
_MODULES = ("reference", "registry")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(_load(_HOMES[name]), name)
    if name in _MODULES:
        return _load(f"kernels.{name}")
    raise AttributeError(f"module 'kernels' has no attribute {name!r}")


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise ModuleNotFoundError(f"{module} needs {error.name}, which the viewer does not install: "
                                  "pip install -r requirements.txt", name=error.name) from error


def __dir__() -> list[str]:
    return sorted(__all__)
