"""The GPU that a run will use, asked of NVML so that no CUDA context is made; None where NVML does not say."""

from __future__ import annotations

import contextlib
import os
from typing import Any


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES spells them; where it is not set, all there are."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        return [name.strip() for name in asked.split(",") if name.strip()]
    with contextlib.suppress(Exception):  # no package, no driver, no GPU: each has a class of its own
        import pynvml

        pynvml.nvmlInit()
        return [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
    return []


def _handle() -> tuple[Any, Any] | None:
    """(pynvml, handle) of the first visible GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        first = _first()
        if first.isdigit():
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(first))
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(first.encode())
    except Exception:  # no package, no driver, no GPU: each has a class of its own
        return None


def _first() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def compute_capability() -> str | None:
    """As "9.0"."""
    found = _handle()
    if found is None:
        return None
    major, minor = found[0].nvmlDeviceGetCudaComputeCapability(found[1])
    return f"{major}.{minor}"


def identity() -> str:
    """A name that tells this machine's GPUs apart: the UUID, or what CUDA_VISIBLE_DEVICES says first."""
    found = _handle()
    return _text(found[0].nvmlDeviceGetUUID(found[1])) if found else f"index-{_first()}"


def model() -> str | None:
    """As "NVIDIA H200"."""
    found = _handle()
    return _text(found[0].nvmlDeviceGetName(found[1])) if found else None


def driver() -> str | None:
    """The driver's version."""
    found = _handle()
    return _text(found[0].nvmlSystemGetDriverVersion()) if found else None
