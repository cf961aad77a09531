"""What this process runs on: GPU, clocks, versions. What cannot be read is absent, never guessed."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch

# What may hold the clock down, by the bits of NVML's reasons (nvml.h, nvmlClocksThrottleReason…); idle (1) and the
# clocks that somebody set (2) are states, not brakes.
THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


def throttle_words(bits: int) -> str:
    """The reasons in words, "none" where nothing holds the clock down."""
    return ", ".join(word for bit, word in THROTTLE.items() if bits & bit) or "none"


class Sensors:
    """Clock, power, temperature and throttle reasons of one GPU through NVML; None where NVML is not there or does not
    say."""

    def __init__(self, device: str):
        self._handle: Any = None
        self._nvml: Any = None
        if device != "cuda":
            return
        with contextlib.suppress(Exception):  # NVML raises classes of its own for everything that is missing
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode())
            self._nvml = pynvml

    def _read(self, function: str, *arguments: Any) -> Any:
        if self._nvml is None:
            return None
        with contextlib.suppress(self._nvml.NVMLError):
            return getattr(self._nvml, function)(self._handle, *arguments)
        return None

    def clock_hz(self) -> float | None:
        mhz = self._read("nvmlDeviceGetClockInfo", 1)  # 1: NVML_CLOCK_SM
        return None if mhz is None else mhz * 1e6

    def max_clock_hz(self) -> float | None:
        mhz = self._read("nvmlDeviceGetMaxClockInfo", 1)
        return None if mhz is None else mhz * 1e6

    def power_w(self) -> float | None:
        milliwatts = self._read("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def temperature_c(self) -> float | None:
        degrees = self._read("nvmlDeviceGetTemperature", 0)  # 0: NVML_TEMPERATURE_GPU
        return None if degrees is None else float(degrees)

    def throttle_bits(self) -> int | None:
        """NVML's bits of THROTTLE."""
        bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else int(bits)

    def power_limit_w(self) -> float | None:
        milliwatts = self._read("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1e3

    def driver(self) -> str | None:
        if self._nvml is None:
            return None
        text = self._nvml.nvmlSystemGetDriverVersion()
        return text.decode() if isinstance(text, bytes) else text


def environment(device: str) -> dict[str, Any]:
    """Provenance of the process in the words of profile.json: gpu, driver, cuda, torch, triton, cudnn, python."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "cuda_available": torch.cuda.is_available(),
    }
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if device != "cuda" or not torch.cuda.is_available():
        return found
    with contextlib.suppress(RuntimeError):
        version = torch.backends.cudnn.version()
        if version:
            found["cudnn"] = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    properties, sensors = torch.cuda.get_device_properties(0), Sensors(device)
    gpu = {
        "name": properties.name,
        "cc": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "l2_size_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": properties.total_memory,
        "max_sm_clock_hz": sensors.max_clock_hz(),
        "power_limit_w": sensors.power_limit_w(),
    }
    found["gpu"] = {name: value for name, value in gpu.items() if value}
    if sensors.driver():
        found["driver"] = sensors.driver()
    return found
