"""What this machine has and lacks, line by line, each with its remedy. Imports neither torch nor CUDA itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.collect import failures, ncu, worker
from profiler.errors import FlashScopeError

OK, MISSING, WRONG = "ok", "missing", "wrong"
VIEWER, PROFILING = "viewer", "profiling"
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
VIEWER_PACKAGES = {
    "streamlit": "streamlit",
    "plotly": "plotly",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "ncu-report": "ncu_report",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the diagnosis. state: ok, missing or wrong; needed_for: viewer or profiling."""

    name: str
    state: str
    text: str
    remedy: str = ""
    needed_for: str = PROFILING


def diagnose(ncu_path: str | None = None) -> list[Check]:
    """All checks, those of the viewer first."""
    facts = _environment()
    return [*_viewer(), *_gpu(facts), *_torch(facts), *_ncu(ncu_path), _permission(), _nvtx(), _tools()]


def ready(checks: list[Check], needed_for: str) -> bool:
    """Whether nothing that ``needed_for`` needs is missing or wrong; profiling needs the viewer's parts too."""
    return all(c.state == OK for c in checks if c.needed_for == needed_for or needed_for == PROFILING)


def _environment() -> dict[str, Any]:
    """What the workload process sees; {"failed": last line} where it cannot start."""
    with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
        plan, result = Path(name) / "plan.json", Path(name) / "result.jsonl"
        plan.write_text(json.dumps({"mode": "environment"}), encoding="utf-8")
        try:
            done = subprocess.run(
                worker.command(plan, result),
                cwd=name,
                env=worker.environment(),
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"failed": type(error).__name__}
        records = worker.of(worker.read_records(result), "environment")
        lines = (done.stderr or done.stdout).strip().splitlines()
        return records[0] if records else {"failed": lines[-1] if lines else f"exit code {done.returncode}"}


def _viewer() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", OK, version, needed_for=VIEWER)
    lacking = [package for package, module in VIEWER_PACKAGES.items() if importlib.util.find_spec(module) is None]
    if lacking:
        yield Check("Viewer packages", MISSING, ", ".join(lacking), "pip install -r requirements-viewer.txt", VIEWER)
    else:
        yield Check("Viewer packages", OK, ", ".join(VIEWER_PACKAGES), needed_for=VIEWER)


def _gpu(facts: dict[str, Any]) -> Iterator[Check]:
    gpu = facts.get("gpu")
    if gpu:
        yield Check("GPU", OK, f"{gpu['name']}, compute capability {gpu['cc']}")
    elif DRIVER_PARAMETERS.exists():
        yield Check(
            "GPU",
            WRONG,
            "there is an NVIDIA driver, but PyTorch sees no GPU",
            "Is the GPU passed into the container (--gpus all), and CUDA_VISIBLE_DEVICES not empty?",
        )
    else:
        yield Check(
            "GPU",
            MISSING,
            "no NVIDIA driver on this machine",
            "Recorded bundles and uploaded reports open without one.",
        )
    driver = facts.get("driver")
    if driver:
        yield Check("Driver", OK, driver)
    else:
        yield Check(
            "Driver", MISSING, "its version could not be read", "Install NVIDIA's driver and the package nvidia-ml-py."
        )


def _torch(facts: dict[str, Any]) -> Iterator[Check]:
    torch = _version("torch")
    if not torch:
        yield Check("PyTorch", MISSING, "not installed", "pip install -r requirements.txt")
    elif "failed" in facts:
        yield Check(
            "PyTorch",
            WRONG,
            f"{torch}, but the workload does not start: {facts['failed']}",
            "pip install -r requirements.txt",
        )
    elif not facts.get("cuda"):
        yield Check(
            "PyTorch",
            WRONG,
            f"{torch}, built without CUDA",
            "Install a CUDA build: https://pytorch.org/get-started/locally",
        )
    elif not facts.get("cuda_available"):
        yield Check(
            "PyTorch",
            WRONG,
            f"{torch} for CUDA {facts['cuda']} finds no usable GPU",
            "The driver must be as new as that CUDA version: nvidia-smi shows the newest that it supports.",
        )
    else:
        yield Check("PyTorch", OK, f"{torch} for CUDA {facts['cuda']}")
    triton, wanted = _version("triton"), _pinned("torch", "triton")
    if not triton:
        yield Check("Triton", MISSING, "not installed", "pip install -r requirements.txt (Linux; Windows through WSL2)")
    elif wanted and triton.split("+")[0] != wanted:
        yield Check(
            "Triton", WRONG, f"{triton}, and this PyTorch was built for {wanted}", f"pip install triton=={wanted}"
        )
    else:
        yield Check("Triton", OK, f"{triton}" + (", the one this PyTorch was built for" if wanted else ""))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned(package: str, dependency: str) -> str | None:
    """The exact version of ``dependency`` that ``package`` asks for, if it asks for one."""
    try:
        asked = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (re.match(rf"{dependency}\s*==\s*([\d.]+)", line) for line in asked)
    return next((match[1] for match in found if match), None)


def _ncu(explicit: str | None) -> Iterator[Check]:
    try:
        tool = ncu.find(explicit)
    except FlashScopeError as error:
        yield Check("Nsight Compute", WRONG if ncu.candidates() else MISSING, error.what, error.remedy)
        return
    others = len(ncu.candidates()) - 1
    more = f"; {others} more found, --ncu PATH chooses" if others > 0 else ""
    yield Check("Nsight Compute", OK, f"ncu {tool.version} at {tool.path}{more}")


def _permission(parameters: Path = DRIVER_PARAMETERS) -> Check:
    """Counter permission, as far as it shows without profiling: the driver's parameter, and whether this is root."""
    name = "Counter permission"
    try:
        text = parameters.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Check(name, MISSING, "no driver parameters to read; a run says it for certain", failures.permission())
    match = re.search(r"(?:RmProfilingAdminOnly|RestrictProfilingToAdminUsers):\s*(\d)", text)
    root = getattr(os, "geteuid", lambda: 1)() == 0
    if match and match[1] == "0":
        return Check(name, OK, "the driver gives the counters to every user")
    if root:
        return Check(name, OK, "this is root; inside a container the host can still refuse, which a run says")
    said = (
        "the driver gives the counters to administrators only"
        if match
        else "the driver does not say who may use the counters"
    )
    return Check(name, WRONG, f"{said}, and this is not root", failures.permission())


def _nvtx() -> Check:
    if importlib.util.find_spec("nvtx") is None:
        return Check(
            "NVTX", MISSING, "the package nvtx is not installed: ncu could not select launches", "pip install nvtx"
        )
    if os.environ.get("NVTX_DISABLE"):
        return Check("NVTX", WRONG, "NVTX_DISABLE is set, so no range is opened", "unset NVTX_DISABLE")
    return Check("NVTX", OK, f"nvtx {_version('nvtx')}")


def _tools() -> Check:
    return Check(
        "ncu and nsys",
        OK,
        "ncu counts inside single kernels (bytes, operations, occupancy): what FlashScope uses. nsys shows when "
        "kernels, copies and CPU work happen on a timeline; its reports hold no counters.",
        needed_for=VIEWER,
    )
