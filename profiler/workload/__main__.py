"""``python -m profiler.workload PLAN.json RESULT.jsonl``: run the plan, append what is found (see plan.py)."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from profiler.errors import FlashScopeError, RunFailed
from profiler.workload.plan import Plan, Results


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m profiler.workload PLAN.json RESULT.jsonl", file=sys.stderr)
        return 2
    follow_parent(os.environ.get("FLASHSCOPE_PARENT"))
    results = Results(Path(arguments[1]))
    try:
        run(Plan.read(Path(arguments[0])), results)
    except FlashScopeError as error:
        results.add("error", what=error.what, remedy=error.remedy)
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def follow_parent(pid: str | None) -> None:
    """End with the process that started this one, however that ended: under ncu it is not the direct parent."""
    if not pid:
        return

    def wait() -> None:
        while True:
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                os._exit(1)
            time.sleep(0.5)

    threading.Thread(target=wait, daemon=True).start()


def run(plan: Plan, results: Results) -> None:
    from profiler.workload import device, foreign

    names = {c.implementation: None for c in plan.configs if foreign.is_foreign(c.implementation)}
    for entry in foreign.check(names, plan.folder):
        results.add("callable", **entry)
    found = device.environment(plan.device)
    results.add("environment", **found)
    if plan.mode == "environment":
        return
    if plan.device == "cuda" and not found["cuda_available"]:
        raise RunFailed("PyTorch sees no CUDA GPU.", remedy="`python -m profiler doctor` says what is missing.")
    if plan.mode == "timing":
        run_timing(plan, results)
    else:
        run_counters(plan, results)
    results.add("end")


def run_timing(plan: Plan, results: Results) -> None:
    from profiler.workload import ceilings, timing
    from profiler.workload.clock import clock_for
    from profiler.workload.device import Sensors

    if plan.ceilings and plan.device == "cuda":
        for entry in ceilings.measure({config.shape.dtype for config in plan.configs}):
            results.add("ceiling", entry=entry)
    clock, sensors = clock_for(plan.device), Sensors(plan.device)
    for group in timing.together(plan.configs):
        rows = timing.measure(
            group,
            clock,
            sensors,
            device=plan.device,
            seed=plan.seed,
            starting=lambda config: results.add("start", config_id=config.config_id),
        )
        for row in rows:
            results.add("timing", row=row)


def run_counters(plan: Plan, results: Results) -> None:
    from profiler.workload import counters

    for config in plan.configs:
        results.add("start", config_id=config.config_id)
        record = counters.profile(config, device=plan.device, seed=plan.seed)
        results.add("counters", **record)
        if record.get("sticky"):
            raise RunFailed(
                f"{config.config_id}: {record['status']}",
                remedy="The CUDA context is lost; the run goes on without it.",
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
