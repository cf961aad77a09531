"""The GPU that a run will use, asked of NVML so that no CUDA context is made; None where NVML does not say."""

from __future__ import annotations

import os
from typing import Any


def _handle() -> tuple[Any, Any] | None:
    """(pynvml, handle) of the first visible GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
        if first.isdigit():
            return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(first))
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(first.encode())
    except Exception:  # no package, no driver, no GPU: each has a class of its own
        return None


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
    if found is not None:
        uuid = found[0].nvmlDeviceGetUUID(found[1])
        return uuid.decode() if isinstance(uuid, bytes) else uuid
    return f"index-{os.environ.get('CUDA_VISIBLE_DEVICES', '0').split(',')[0].strip() or '0'}"
