"""Attention functions that are not ours, named MODULE:FUNCTION: imported, their signature checked, then called.

Such a function takes q (B, H, Nq, D), k and v (B, Hk, Nk, D), and, where it knows causal masks, the keyword ``causal``
or ``is_causal``; it returns one tensor, O (B, H, Nq, D).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from profiler.errors import BadInput

SIGNATURE = "Write def NAME(q, k, v, causal=False): it gets (B, H, N, D) tensors and returns O, shaped like q."


def is_foreign(implementation: str) -> bool:
    return ":" in implementation


def load(name: str) -> Callable[..., Any]:
    """The function MODULE:FUNCTION. Raises BadInput where it cannot be imported or does not take three tensors."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # importing runs code that we did not write: whatever it raises is the answer
        raise BadInput(
            f"--callable: {module} cannot be imported ({type(error).__name__}: {error}).",
            remedy="Start from the folder that holds the module, or put that folder on PYTHONPATH.",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise BadInput(f"--callable: {module} has no {path}.", remedy="Write MODULE:FUNCTION, as mine:attention.")
        found = getattr(found, part)
    if not callable(found):
        raise BadInput(f"--callable: expected a function, {name} is a {type(found).__name__}.", remedy=SIGNATURE)
    signature = signature_of(found)
    if signature is not None:
        try:
            signature.bind(0, 0, 0)
        except TypeError as error:
            raise BadInput(
                f"--callable: expected {name} to be callable as f(q, k, v), it has {signature} ({error}).",
                remedy=SIGNATURE,
            ) from error
    return found


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """None where Python cannot read it: functions written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def causal_keyword(function: Callable[..., Any]) -> tuple[str | None, bool]:
    """The keyword that asks for the causal mask, and whether the signature names it or only takes any keyword."""
    signature = signature_of(function)
    if signature is None:
        return None, False
    parameters = signature.parameters.values()
    named = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    for name in ("causal", "is_causal"):
        if name in named:
            return name, True
    return ("causal" if any(p.kind is p.VAR_KEYWORD for p in parameters) else None), False


def caller(name: str, causal: bool) -> Callable[..., Any] | None:
    """forward(stage, q, k, v) of MODULE:FUNCTION, or None where a causal mask is asked and it takes no such keyword."""
    function = load(name)
    keyword, named = causal_keyword(function)
    if causal and keyword is None:
        return None
    options = {keyword: causal} if keyword and (named or causal) else {}

    def forward(stage: Any, q: Any, k: Any, v: Any) -> Any:
        with stage("attention"):
            out = function(q, k, v, **options)
        found = getattr(out, "shape", None)
        if found is None or tuple(found) != tuple(q.shape):
            got = type(out).__name__ if found is None else f"shape {tuple(found)}"
            raise ValueError(f"{name}: expected one tensor of shape {tuple(q.shape)}, got {got}")
        return out

    return forward


def check(names: Iterable[str], folder: str) -> list[dict[str, Any]]:
    """Load each name, modules in ``folder`` included: [{"name", "sha256" of its source file}]. Raises BadInput."""
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: nothing in it hides an installed package
    found = []
    for name in names:
        entry: dict[str, Any] = {"name": name}
        with contextlib.suppress(TypeError, OSError):
            source = inspect.getsourcefile(inspect.unwrap(load(name)))
            if source:
                entry["sha256"] = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        found.append(entry)
    return found
