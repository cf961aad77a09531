"""Raw Nsight Compute metrics: which to ask for, what each launches column is made of, and where a value came from.

The only home of raw metric names (``rules``, ``tensor``). ``collect_list`` says what to ask ncu for, ``resolve``
turns the raw metrics of a launch into columns, ``provenance`` says of one value whether it was measured, derived, not
collected or not available.
"""

from profiler.metrics.ask import PURPOSES, advice, collect_list, missing_flag, names_for, stall_names
from profiler.metrics.provenance import Provenance, provenance
from profiler.metrics.reader import Resolved
from profiler.metrics.resolve import raw_names, resolve
from profiler.metrics.rules import RULE, RULE_SPEEDUP, SHOWN_NAMES, TEXT_NAMES

__all__ = [
    "PURPOSES", "RULE", "RULE_SPEEDUP", "SHOWN_NAMES", "TEXT_NAMES", "Provenance", "Resolved", "advice", "collect_list",
    "missing_flag", "names_for", "provenance", "raw_names", "resolve", "stall_names",
]
