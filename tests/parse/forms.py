"""Writes one small table of launches in each text form that Nsight Compute has, for tests that read it back."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field

IDENTITY = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC")
NVTX = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


@dataclass
class Launch:
    kernel: str
    cc: str = "9.0"
    grid: str = "(132, 1, 1)"
    block: str = "(128, 1, 1)"
    metrics: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (value as printed, unit)
    nvtx: str = ""


def _line(cells: list[str], delimiter: str, quote: bool) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL if quote else csv.QUOTE_MINIMAL,
               lineterminator="").writerow(cells)
    return out.getvalue()


def _identity(number: int, launch: Launch) -> list[str]:
    return [str(number), "77", "app", "127.0.0.1", launch.kernel, "1", "7", launch.block, launch.grid, "0", launch.cc]


def long(launches: list[Launch], delimiter: str = ",", quote: bool = True, rules: bool = False) -> str:
    header = [*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    if rules:
        header += ["Rule Name", "Rule Type", "Rule Description"]
    lines = [_line(header, delimiter, quote)]
    for number, launch in enumerate(launches):
        for name, (value, unit) in launch.metrics.items():
            lines.append(_line([*_identity(number, launch), "Section", name, unit, value], delimiter, quote))
        if rules:
            text = 'bound by memory, see "Workload", 12,5'
            lines.append(_line([*_identity(number, launch), "Section", "", "", "", "Bottleneck", "OPT", text],
                               delimiter, quote))
    return "\n".join(lines) + "\n"


def wide(launches: list[Launch], delimiter: str = ",", quote: bool = True, identity: bool = True,
         units: bool = True) -> str:
    names = list(dict.fromkeys(name for launch in launches for name in launch.metrics))
    unit = {name: u for launch in launches for name, (_, u) in launch.metrics.items()}
    nvtx = identity and any(launch.nvtx for launch in launches)
    first = [*IDENTITY, *((NVTX,) if nvtx else ())] if identity else []
    lines = [_line([*first, *names], delimiter, quote)]
    if units:
        lines.append(_line([*[""] * len(first), *(unit[n] for n in names)], delimiter, quote))
    for number, launch in enumerate(launches):
        mine = [*_identity(number, launch), *((launch.nvtx,) if nvtx else ())] if identity else []
        lines.append(_line([*mine, *(launch.metrics.get(n, ("", ""))[0] for n in names)], delimiter, quote))
    return "\n".join(lines) + "\n"


def page(launches: list[Launch], invocations: int = 0) -> str:
    """The details page as text; with invocations, a summary over so many of them, whose minimum and maximum are the
    average."""
    lines = ["[77] app@127.0.0.1"]
    heads = ("Metric Name", "Metric Unit", *(("Minimum", "Maximum", "Average") if invocations else ("Metric Value",)))
    for number, launch in enumerate(launches):
        where = f"Invocations {invocations + number}" if invocations else "Context 1, Stream 7"
        place = f"Device 0, CC {launch.cc}, {where}" if invocations else f"{where}, Device 0, CC {launch.cc}"
        lines.append(f"  {launch.kernel} {launch.grid}x{launch.block}, {place}")
        rows = [(name, unit, *(value,) * (len(heads) - 2)) for name, (value, unit) in launch.metrics.items()]
        width = [max(map(len, cells)) for cells in zip(heads, *rows)]
        rule = "    " + " ".join("-" * w for w in width)

        def line(cells: tuple[str, ...], width: list[int] = width) -> str:
            return "    " + " ".join([f"{cells[0]:<{width[0]}}", *(f"{c:>{w}}" for c, w in zip(cells[1:], width[1:]))])

        lines += ["    Section: Section", rule, line(heads), rule, *map(line, rows), rule, "",
                  "    INF   A remark, 12,5 of it.", ""]
    return "\n".join(lines) + "\n"


def summary(launches: list[tuple[Launch, int, dict[str, tuple[str, str, str, str]]]]) -> str:
    """launches: (launch, invocations, metric -> (unit, minimum, maximum, average))."""
    header = ["Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size", "Device", "CC",
              "Invocations",
              "Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]
    lines = [_line(header, ",", True)]
    for launch, count, metrics in launches:
        for name, (unit, low, high, mean) in metrics.items():
            lines.append(_line(["77", "app", "127.0.0.1", launch.kernel, launch.block, launch.grid, "0", launch.cc,
                                str(count), "Section",
                                name, unit, low, high, mean], ",", True))
    return "\n".join(lines) + "\n"
