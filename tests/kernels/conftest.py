"""Without a GPU the kernels of this folder run in Triton's interpreter; with one they run on it.

Triton reads TRITON_INTERPRET where a kernel is defined and again where it first runs: it is set while the kernels are
imported here and during each test of this folder, and at no other time, so other tests' processes do not inherit it.
"""

import importlib
import pkgutil

import pytest
import torch

import kernels

INTERPRET = not torch.cuda.is_available()
if INTERPRET:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for module in pkgutil.iter_modules(kernels.__path__):
            importlib.import_module(f"kernels.{module.name}")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRET:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def device() -> str:
    return "cpu" if INTERPRET else "cuda"
