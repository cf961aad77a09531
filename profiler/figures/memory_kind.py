"""Device memory by its name: what figures call HBM is GDDR or LPDDR on many GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from profiler.bundle import Bundle
from profiler.figures.ceilings import OTHER_MEMORY


def of(source: Bundle | Sequence[Bundle]) -> str:
    """What the device memory of one source's or several sources' GPUs is called."""
    bundles = [source] if isinstance(source, Bundle) else list(source)
    return kind(cc for bundle in bundles for cc in bundle.launches["cc"].dropna().unique())


def kind(ccs: Iterable[str | None]) -> str:
    """The device memory of GPUs by their compute capabilities: "HBM", "GDDR", "LPDDR"; "DRAM" of several kinds."""
    found = {next((word for word, known in OTHER_MEMORY.items() if str(cc) in known), "HBM") for cc in ccs}
    return found.pop() if len(found) == 1 else "DRAM" if found else "HBM"


def called(value: Any, word: str) -> Any:
    """``value``, a text or a nest of lists and dicts, with ``word`` for HBM in every text; keys stay."""
    if word == "HBM":
        return value
    if isinstance(value, str):
        return re.sub(r"\bHBM\b", word, value).replace(f"{word} ({word})", word)
    if isinstance(value, dict):
        return {name: called(one, word) for name, one in value.items()}
    return [called(one, word) for one in value] if isinstance(value, list) else value
