"""One call of every figure on the synthetic bundle: what the render script draws and the browser test checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from profiler.figures.ledger import ledger
from profiler.spec import AttentionShape
from tests import synthetic

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
BUNDLE = synthetic.bundle()

FIGURES: dict[str, Callable[..., Any]] = {
    "ledger": partial(ledger, BUNDLE, SHAPE),
    "ledger-causal": partial(ledger, BUNDLE, AttentionShape(1, 16, 4096, 4096, 64, mask="causal"), ("naive", "naive_folded", "flash2", "sdpa_flash")),
}
