"""Nsight Compute's command line: found, asked for its version, and its arguments built (a pure function)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from profiler.collect import gpu
from profiler.errors import NcuFailed, NcuMissing, NcuTooOld, RunFailed

DOMAIN = "flashscope"  # the workload's NVTX domain
# Any push/pop range of our domain, at any depth of the stack. A wrong expression is no error to ncu: it ends with 0
# and a warning that nothing was profiled.
NVTX_FILTER = f"regex:{DOMAIN}@.*/"
OLDEST = (2022, 1)
GRAPHS = ("--graph-profiling", "node")  # kernels of a CUDA graph one by one, as all others
GRAPHS_SINCE = (2023, 1)  # before, ncu knows no other way, nor the option
PLACES = (
    "/usr/local/cuda/bin/ncu",
    "/usr/local/cuda-*/bin/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
    "/opt/cuda/bin/ncu",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
)
GET_NCU = (
    "Install Nsight Compute (part of the CUDA toolkit, or https://developer.nvidia.com/nsight-compute), "
    "or name it with --ncu PATH. Without counters: --no-counters."
)


@dataclass(frozen=True, slots=True)
class Ncu:
    """An ncu that answered: where it is and its version, as 2025.3.1."""

    path: str
    version: str


def version_key(text: str) -> tuple[int, ...]:
    """Version numbers in a path or a version text, for ordering: the last of several counts."""
    found = re.findall(r"\d{4}\.\d+(?:\.\d+)*|\d+\.\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[-1].split(".")) if found else ()


def candidates(places: Sequence[str] = PLACES) -> list[str]:
    """Every ncu in sight: first on PATH, then the usual install folders, newest first."""
    on_path = shutil.which("ncu")
    installed = sorted({path for place in places for path in glob(place)}, key=version_key, reverse=True)
    return list(dict.fromkeys([*([on_path] if on_path else []), *installed]))


def probe(path: str) -> str:
    """The version that ``path --version`` reports. Raises NcuFailed where it does not answer as ncu does."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NcuFailed(
            f"{Path(path).name} --version: expected a version, got {type(error).__name__}.",
            remedy="Name a working ncu with --ncu PATH.",
        ) from error
    match = re.search(r"Version (\d{4}(?:\.\d+)+)", done.stdout)
    if not match:
        raise NcuFailed(
            f"{Path(path).name} --version: expected 'Version YEAR.…', got exit code {done.returncode} and no version.",
            remedy="Name a working ncu with --ncu PATH.",
            detail=(done.stdout + done.stderr)[-2000:],
        )
    # The fourth number is NVIDIA's build number and says nothing to a reader.
    return ".".join(match[1].split(".")[:3])


def find(explicit: str | None = None) -> Ncu:
    """The ncu to use: the one asked for, else the first that answers and is new enough.

    Raises NcuMissing, NcuTooOld or NcuFailed; the first two name what else there is.
    """
    if explicit:
        if not (shutil.which(explicit) or os.access(explicit, os.X_OK)):
            raise NcuMissing(f"--ncu: expected a program, found none at {explicit!r}.", remedy=_elsewhere(explicit))
        return _new_enough(Ncu(explicit, probe(explicit)))
    found: list[str] = candidates()
    failure: RunFailed | None = None
    for path in found:
        try:
            return _new_enough(Ncu(path, probe(path)))
        except (NcuFailed, NcuTooOld) as error:
            failure = failure or error
    if failure:
        raise failure
    what = "Nsight Compute's command line (ncu) was not found on PATH nor in the usual places"
    if not gpu.visible():
        raise NcuMissing(f"{what}, and no NVIDIA GPU is seen either.",
                         remedy=f"A run needs both: on a machine with an NVIDIA GPU, {GET_NCU[0].lower()}{GET_NCU[1:]}")
    raise NcuMissing(f"{what}.", remedy=GET_NCU)


def _new_enough(tool: Ncu) -> Ncu:
    if version_key(tool.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NcuTooOld(f"ncu {tool.version} is too old: expected {oldest} or later.", remedy=_elsewhere(tool.path))
    return tool


def _elsewhere(path: str) -> str:
    """Every other ncu that answers, with its version, to be named with --ncu; where there is none, how to get one."""
    others = []
    for other in candidates():
        with contextlib.suppress(NcuFailed):
            if other != path:
                others.append(f"{other} ({probe(other)})")
    return f"Found elsewhere: {', '.join(others)}. Name it with --ncu PATH." if others else GET_NCU


def command(
    ncu: str,
    application: Sequence[str],
    *,
    export: Path,
    metrics: Sequence[str],
    nvtx: str = NVTX_FILTER,
    cache_control: str = "all",
    clock_control: str = "none",
    replay_mode: str = "kernel",
    version: str = "",
) -> list[str]:
    """The argument list that profiles ``application`` inside our NVTX ranges and writes the report to ``export``."""
    return [
        ncu,
        "--config-file",
        "off",
        "--target-processes",
        "all",
        "--nvtx",
        "--nvtx-include",
        nvtx,
        "--cache-control",
        cache_control,
        "--clock-control",
        clock_control,
        "--replay-mode",
        replay_mode,
        *(GRAPHS if version_key(version) >= GRAPHS_SINCE else ()),
        "--metrics",
        ",".join(metrics),
        "--export",
        str(export),
        "--force-overwrite",
        *application,
    ]


def public_command(arguments: Sequence[str]) -> str:
    """The same command as provenance records it: every absolute path reduced to its file name."""
    return " ".join(Path(a).name if a.startswith(("/", "~")) or re.match(r"[A-Za-z]:\\", a) else a for a in arguments)
