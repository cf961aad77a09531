"""Binary reports, through NVIDIA's own reader. Runs in the worker process only: on damaged files that reader may end
the process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiler import metrics
from profiler.errors import DamagedFile, NoLaunches
from profiler.metrics import rules, tensor
from profiler.parse import blocks
from profiler.parse.raw import RawFile, RawLaunch

ALL_VALUES = 400_000  # up to here every metric is read (about 9 µs a value); above, those that something uses
THREAD_OPCODES = "sass__thread_inst_executed_true_per_opcode"
OWN_REMEDY = "Copy the file again, whole; a report of a newer ncu may need a newer ncu-report package."


def read(path: Path, name: str, progress: Callable[[int, int], None] = lambda done, total: None,
         launch: int | None = None) -> RawFile:
    """The launches of a report called ``name``, or only number ``launch``, then with every metric. ``progress(done,
    total)`` is called now and then with numbers of launches."""
    frame = blocks.read(path, name)
    progress(0, frame.results)
    import ncu_report

    context = ncu_report.load_report(str(path))
    ranges = context.num_ranges() if context is not None else 0
    if not ranges:
        raise DamagedFile(f"{name} begins like an Nsight Compute report, but NVIDIA's reader finds nothing in it: "
                          "it is damaged.", remedy=OWN_REMEDY)
    actions = [(r, i) for r in map(context.range_by_idx, range(ranges)) for i in range(r.num_actions())]
    if not actions:
        raise NoLaunches("The report holds no profiled kernel launch.",
                         remedy="Check the filters of the ncu command that wrote it.")
    out = RawFile("Nsight Compute report", session=dict(frame.session))
    if frame.results > len(actions):
        out.notes.append(f"The file promises {frame.results} launches and NVIDIA's reader gives {len(actions)}: "
                         "it is damaged.")
    if launch is not None:
        actions = actions[launch:launch + 1]
    wanted: frozenset[str] | None = None
    kinds = set()
    last = time.monotonic()
    left_out = 0
    for number, (one, index) in enumerate(actions):
        action = one.action_by_idx(index)
        names = list(action.metric_names())
        if number == 0 and len(names) * len(actions) > ALL_VALUES:
            wanted = metrics.raw_names() | metrics.SHOWN_NAMES
        kinds.add(action.workload_type())
        chosen = [n for n in names if wanted is None or n in wanted]
        left_out = max(left_out, len(names) - len(chosen))
        out.launches.append(_launch(ncu_report, action, chosen, tensor.OPCODES in names))
        if number % 8 == 0 and time.monotonic() - last > 0.2:
            last = time.monotonic()
            progress(number + 1, len(actions))
    if not any(launch.kernel or launch.metrics for launch in out.launches):
        raise DamagedFile(f"{name} is damaged: NVIDIA's reader finds {len(actions)} launches in it, none with a name "
                          "or a counter.", remedy=OWN_REMEDY)
    if left_out:
        out.session["metrics_left_out"] = left_out
        out.notes.append(f"A large report: {left_out} metrics a launch that no page uses were not read.")
    if kinds - {ncu_report.IAction.WorkloadType_KERNEL}:
        out.notes.append("Some rows are not single kernels but ranges or graphs: they count all kernels in them.")
    passes = [v for launch in out.launches for n, _, v in launch.metrics
              if n == rules.PASSES and isinstance(v, (int, float)) and math.isfinite(v)]
    if passes:
        out.session["passes"] = int(max(passes))
    return out


def _launch(ncu_report: Any, action: Any, names: list[str], opcodes: bool) -> RawLaunch:
    name = action.name(ncu_report.IAction.NameBase_DEMANGLED) or action.name()
    launch = RawLaunch(kernel=name or None, ranges=_ranges(action))
    for name in names:
        metric = action.metric_by_name(name)
        if metric is not None:
            value = metric.value()
            launch.metrics.append((name, metric.unit() or "", value if isinstance(value, (int, float, str)) else None))
    if opcodes:
        launch.metrics += _instances(ncu_report, action)
    launch.metrics += _rules(action)
    return launch


def _rules(action: Any) -> list[tuple[str, str, Any]]:
    """Nsight Compute's own rules on the launch: title, and the speed-up in per cent where one is estimated."""
    found: dict[str, tuple[str, Any]] = {}
    for rule in action.rule_results_as_dicts() if hasattr(action, "rule_results_as_dicts") else ():
        identifier = str(rule.get("rule_identifier") or rule.get("name"))
        title = (rule.get("rule_message") or {}).get("title") or rule.get("name")
        speedup = (rule.get("speedup_estimation") or {}).get("speedup")
        found.setdefault(rules.RULE.format(identifier), ("", str(title)))
        if isinstance(speedup, (int, float)):
            found.setdefault(rules.RULE_SPEEDUP.format(identifier), ("%", speedup))
    return [(name, unit, value) for name, (unit, value) in found.items()]


def _instances(ncu_report: Any, action: Any) -> list[tuple[str, str, Any]]:
    """Executed tensor instructions by opcode, and the special-function ones: what operations are counted from when no
    counter was."""
    found: list[tuple[str, str, Any]] = []
    for name, keep in ((tensor.OPCODES, lambda op: "MMA" in op.split(".")[0]),
                       (THREAD_OPCODES, lambda op: op == "MUFU")):
        metric = action.metric_by_name(name)
        if metric is None or not metric.has_correlation_ids():
            continue
        keys = metric.correlation_ids()
        mine = []
        for i in range(metric.num_instances()):
            opcode = str(keys.value(i))
            if keep(opcode):
                mine.append((f"{name}[{opcode}]", "inst", metric.value(i)))
        found += mine or [(f"{name}[none of them]", "inst", 0)]
    return found


def _ranges(action: Any) -> list[tuple[str, tuple[str, ...]]]:
    """NVTX ranges by domain, outermost first; start/end ranges only where a domain has no push/pop ones."""
    state = action.nvtx_state()
    if state is None:
        return []
    found = []
    for identifier in state.domains():
        domain = state.domain_by_id(identifier)
        names = tuple(domain.push_pop_ranges()) or tuple(domain.start_end_ranges())
        if names:
            found.append((domain.name(), names))
    return found
