"""profile.json of a run: what was measured, on what, by which code and command. Absent where not known."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from profiler.collect import ncu, worker

GPU_FACTS = ("gpu", "driver", "cuda", "torch", "triton", "cudnn", "python")


def code_hash() -> str:
    """SHA-256 over the source of the kernels and the workload: two runs with the same hash ran the same code."""
    digest = hashlib.sha256()
    for path in sorted([*(worker.ROOT / "kernels").rglob("*.py"), *(worker.ROOT / "profiler/workload").rglob("*.py")]):
        digest.update(path.relative_to(worker.ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def git_commit() -> str | None:
    """The commit of the checkout, with -dirty where files differ from it; None outside a checkout, an export too."""
    if not (worker.ROOT / ".git").exists():  # an export inside somebody else's checkout has not that one's commit
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(worker.ROOT), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def profile(
    times: Sequence[Mapping[str, Any]],
    *,
    tool: ncu.Ncu | None,
    chunks: Sequence[Any],
    suite: str | None,
    command: str,
    counters: bool,
    places: Sequence[Any] = (),
) -> dict[str, Any]:
    """The keys that DESIGN.md lists, from the timing pass's records and the counter pass's chunks. places: where it was
    measured (profiler.collect.share.Place); several GPUs are listed as ``gpus``, as timings.gpu names them."""
    environments = worker.of(times, "environment")
    environment = environments[-1] if environments else {}
    found: dict[str, Any] = {
        "schema_version": 1,
        "kind": "profile",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "counters": counters,
        **{name: environment.get(name) for name in GPU_FACTS},
        "commands": {"run": command, **({"ncu": chunks[0].command} if chunks else {})},
        "git_commit": git_commit(),
        "code_hash": code_hash(),
        "suite": suite,
        "ceilings": [_ceiling(record["entry"], several=len(places) > 1) for record in worker.of(times, "ceiling")],
    }
    if len(places) > 1:
        found["gpus"] = [{"gpu": place.gpu[:12], "name": place.model, "driver": place.driver}
                         for place in sorted(places, key=lambda place: place.gpu)]
    if tool and chunks:
        found.update(
            ncu=tool.version,
            cache_control="all",
            clock_control="none",
            replay_mode="kernel",
            passes=max(chunk.passes for chunk in chunks) or None,
        )
    return {name: value for name, value in found.items() if value is not None}


def _ceiling(entry: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
    """A measured roof, with its GPU where several measured."""
    found = {name: value for name, value in entry.items() if name != "gpu"}
    if several and entry.get("gpu"):
        found.update(gpu=entry["gpu"], how=f"{entry['how']}, on {entry['gpu']}")
    return found
