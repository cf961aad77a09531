"""Numbers as people read them: the only home of number formatting, for figures, pages, sentences and the command line.

Three significant digits, SI prefixes (MB = 10⁶ bytes), thousands separated. None, NA and NaN read "not available" and
never 0; infinities read "∞".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

NOT_AVAILABLE = "not available"
NBSP = "\u00a0"  # keeps a number and its unit on one line
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def missing(value: Any) -> bool:
    """Whether ``value`` is null: None, pandas' NA, or NaN."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def number(value: Any, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, every digit left of the point kept: 0.0123, 27.5, 34,429."""
    if missing(value):
        return NOT_AVAILABLE
    x = float(value)
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(x)))
    rounded = round(x, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(x))):
        places -= 1  # 9.996 became 10.0
    if abs(rounded) < 1e-4:
        return f"{x:.{digits - 1}e}".replace("e-0", "e-").replace("-", "−")
    return f"{round(x, max(places, 0)):,.{max(places, 0)}f}".replace("-", "−")


def whole(value: Any) -> str:
    """A count, all its digits: 16,384."""
    return NOT_AVAILABLE if missing(value) else f"{round(float(value)):,}".replace("-", "−")


def si(value: Any, unit: str, digits: int = 3) -> str:
    """``value`` with an SI prefix: 537 MB, 4.81 TB/s, 68.7 GFLOP. Below 1000 whole values keep no decimals: 512 B."""
    if missing(value):
        return NOT_AVAILABLE
    x = float(value)
    # 999,700 B reads 1.00 MB, not 1,000 kB
    size, prefix = next((p for p in _PREFIXES if abs(x) >= p[0] * (1 - 0.5 * 10**-digits)), _PREFIXES[-1])
    text = number(x) if size == 1.0 and x.is_integer() else number(x / size, digits)
    return f"{whole(x) if size == 1.0 and x.is_integer() else text}{NBSP}{prefix}{unit}"


def nbytes(value: Any, digits: int = 3) -> str:
    """Bytes in SI: 33.6 MB."""
    return si(value, "B", digits)


def bandwidth(value: Any) -> str:
    """Bytes per second: 4.81 TB/s."""
    return si(value, "B/s")


def flop(value: Any) -> str:
    """Floating-point operations: 68.7 GFLOP."""
    return si(value, "FLOP")


def flops(value: Any) -> str:
    """Floating-point operations per second: 944 TFLOP/s."""
    return si(value, "FLOP/s")


def clock(value: Any) -> str:
    """Hertz: 1.75 GHz."""
    return si(value, "Hz")


def intensity(value: Any) -> str:
    """Arithmetic intensity: 2,048 FLOP/B."""
    return NOT_AVAILABLE if missing(value) else f"{number(value)}{NBSP}FLOP/B"


def duration(ns: Any) -> str:
    """Nanoseconds as the fitting unit: 154 µs."""
    if missing(ns):
        return NOT_AVAILABLE
    x = float(ns)
    size, unit = next((d for d in _DURATIONS if abs(x) >= d[0] * 0.9995), _DURATIONS[-1])
    return f"{number(x / size)}{NBSP}{unit}"


def percent(value: Any, digits: int = 3) -> str:
    """Per cent of 100: 27.3%; small ones by two decimals, 0.04%."""
    if missing(value):
        return NOT_AVAILABLE
    return f"{number(value, digits) if abs(value) >= 0.1 else f'{float(value):.2f}' if value else '0'}%"


def times(value: Any) -> str:
    """A ratio: 94.8×."""
    return NOT_AVAILABLE if missing(value) else f"{number(value)}×"


def quantity(value: Any, unit: str) -> str:
    """``value`` in ``unit`` as people read that unit: bytes, FLOP/s and the like by prefix, "ns" as a duration."""
    known: dict[str, Callable[[Any], str]] = {"ns": duration, "%": percent, "×": times, "": number}
    return known[unit](value) if unit in known else si(value, unit)


def tick(value: float, unit: str = "") -> str:
    """An axis tick: as ``quantity`` without trailing zeros, so 200 MB and 1 GB; without a unit 1,000."""
    text = quantity(value, unit) if unit in ("ns", "%", "×") else si(value, unit, 6) if unit else number(value, 6)
    return re.sub(r"\.(\d*?)0+(?=\D|$)", lambda m: f".{m[1]}" if m[1] else "", text)
