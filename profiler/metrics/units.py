"""Units as Nsight Compute writes them, and the base unit and factor of each.

Base units: byte, ns, hz, %, and counts (inst, cycle, sector, ...). Prefixes are decimal: a Mbyte is 10⁶ bytes. Nsight
Compute
spells one unit in several ways over the years (``usecond``, ``us``; ``cycle/nsecond``, ``Ghz``; ``byte/second``,
``byte/s``).
"""

from __future__ import annotations

import functools
import re

PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY_PREFIX = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
SECONDS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0}
COUNTS = frozenset((
    "access", "bit", "block", "branch", "cluster", "cycle", "inst", "line", "node", "op", "packet", "pass", "query",
    "register", "request", "sample", "sector", "sm", "tag", "thread", "tpc", "transaction", "warp", "wave", "wavefront",
    "way"))
_PLURALS = {"instruction": "inst", "instructions": "inst", "passes": "pass", "queries": "query", "accesses": "access",
            "branches": "branch", "access": "access"}
WHOLE = COUNTS | {"byte"}  # a number of these in base units is whole, so it never carries decimals


@functools.lru_cache(maxsize=4096)
def base(unit: str) -> tuple[float, str] | None:
    """(factor, base unit) of ``unit``: ``Mbyte`` is (1e6, "byte"), ``Ghz`` is (1e9, "hz"); None when the unit is not
    known.

    An empty unit, or one that says there is none, is (1.0, "").
    """
    text = unit.strip().strip("()[]").strip()
    if text.lower() in ("", "none", "n/a", "#"):
        return 1.0, ""
    if text.lower() in ("%", "pct", "percent"):
        return 1.0, "%"
    if "/" in text:
        return _ratio(*text.split("/", 1))
    return _hertz(text) or _seconds(text) or _counted(text)


@functools.lru_cache(maxsize=4096)
def expected(name: str) -> str:
    """Base unit that the raw metric ``name`` comes in, as its name says: byte, ns, %, hz, byte/s, byte/cycle; "count"
    for a number of things, "" for names that do not say (those of the details page, and attributes)."""
    counter, _, how = name.partition(".")
    if "__" not in counter or counter.startswith("device__"):
        return ""
    if "pct" in how or counter.endswith("_pct"):
        return "%"
    if "time_duration" in counter:
        return "ns"
    if counter.endswith("frequency"):
        return "hz"
    if how.endswith("per_second") or counter.endswith("_per_sec"):
        return "hz" if "cycles" in counter else "byte/s" if "bytes" in counter else "count/s"
    if "bytes" in counter:
        return "byte/cycle" if "per_cycle" in how or "peak_sustained" in how else "byte"
    return "byte" if "shared_mem_per_block" in counter else "count"


def agree(have: str, wanted: str) -> bool:
    """Whether a value in base unit ``have`` can be one in ``wanted``. A count may come with its denominator or without
    (register, register/thread; byte, byte/block); what has no unit is believed."""
    if not have or not wanted or have == wanted:
        return True
    if wanted == "count":
        return have not in ("ns", "%", "hz") and not have.startswith("byte") and not have.endswith("/s")
    if wanted == "count/s":
        return have.endswith("/s") and not have.startswith("byte")
    return have.split("/")[0] == wanted.split("/")[0] and not ("/s" in have) ^ ("/s" in wanted)


def _hertz(text: str) -> tuple[float, str] | None:
    match = re.fullmatch(r"([KMGTkmg]?)(?:hz|hertz)", text, re.IGNORECASE)
    return (PREFIX[match[1].upper()], "hz") if match else None


def _seconds(text: str) -> tuple[float, str] | None:
    match = re.fullmatch(r"(n|u|µ|μ|m|)(?:s|sec|second|seconds)", text)
    if match:
        return SECONDS[match[1]] * 1e9, "ns"
    words = {"nanosecond": 1.0, "microsecond": 1e3, "millisecond": 1e6, "minute": 6e10, "min": 6e10}
    factor = words.get(text.lower().removesuffix("s"))
    return (factor, "ns") if factor else None


def _counted(text: str) -> tuple[float, str] | None:
    if text == "B" or re.fullmatch(r"[KMGTP]i?B", text):
        text = text[:-1] + "byte"
    for pattern in (r"([KkMGTP]?)([A-Za-z]+)", r"([KMGT]i)([A-Za-z]+)"):
        match = re.fullmatch(pattern, text)
        for prefix, word in ((match[1], match[2]), ("", text)) if match else ():
            single = _PLURALS.get(word.lower(), word.lower().removesuffix("s") if word.lower() != "pass" else "pass")
            if single == "byte" or single in COUNTS:
                return BINARY_PREFIX.get(prefix) or PREFIX[prefix], single
    return None


def _ratio(top: str, bottom: str) -> tuple[float, str] | None:
    over, under = (1.0, "1") if top.strip() == "1" else base(top), base(bottom)
    if over is None or under is None:
        return None
    if under[1] == "ns":  # a rate: per second is the base
        factor, name = over[0] / (under[0] * 1e-9), over[1]
        return (factor, "hz") if name in ("cycle", "1") else (factor, f"{name}/s")
    return over[0] / under[0], f"{over[1]}/{under[1]}"
