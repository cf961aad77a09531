"""One call of every figure on the synthetic bundle: what the render script draws and the browser test checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from profiler.figures import labels
from profiler.figures.ledger import ledger
from profiler.figures.points import attention_points, attention_roofs
from profiler.figures.roofline import roofline
from profiler.figures.scaling import scaling
from profiler.spec import AttentionShape
from tests import synthetic

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
CAUSAL = AttentionShape(1, 16, 4096, 4096, 128, mask="causal")
BUNDLE = synthetic.bundle()
ALL = ("naive", "naive_folded", "flash2", "sdpa_flash")


def _roofline(shape: AttentionShape, names: tuple[str, ...], level: str = "dram", **look: Any) -> Any:
    return roofline(attention_points(BUNDLE, shape, names, level=level), attention_roofs(BUNDLE, shape, names),
                    BUNDLE.profile, about=labels.shape(shape), level=level, **look)


FIGURES: dict[str, Callable[..., Any]] = {
    "ledger": partial(ledger, BUNDLE, SHAPE),
    "ledger-causal": partial(ledger, BUNDLE, CAUSAL, ALL),
    "roofline": partial(_roofline, SHAPE, ALL),
    "roofline-causal": partial(_roofline, CAUSAL, ALL),
    "roofline-l2": partial(_roofline, SHAPE, ALL, "l2"),
    "scaling-bytes": partial(scaling, BUNDLE, SHAPE),
    "scaling-l2-to-sm": partial(scaling, BUNDLE, SHAPE, "l2_to_sm"),
    "scaling-memory": partial(scaling, BUNDLE, CAUSAL, "peak_memory", ALL),
    "scaling-time": partial(scaling, BUNDLE, SHAPE, "time", ALL),
    "scaling-tflops": partial(scaling, BUNDLE, SHAPE, "tflops"),
}
