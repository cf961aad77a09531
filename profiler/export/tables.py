"""The headline numbers as a table, in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from profiler import evidence
from profiler.bundle import Bundle
from profiler.errors import BadInput
from profiler.evidence import Headline, Side
from profiler.figures import labels, units
from profiler.spec import AttentionShape

QUANTITIES: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    ("HBM bytes, counted", "dram_bytes", units.nbytes, "measured"),
    ("HBM bytes, by the algorithm", "predicted_dram_bytes", units.nbytes, "predicted"),
    ("N×N passes through HBM", "matrix_passes", units.whole, "predicted"),
    ("Tensor Core work", "tensor_flops", units.flop, "measured"),
    ("Special functions", "special_ops", lambda v: units.si(v, "op"), "measured"),
    ("Time, unprofiled median", "median_ns", units.duration, "measured"),
    ("Peak memory above the inputs", "peak_memory_bytes", units.nbytes, "measured"),
    ("Relative error against float64", "error_relative", units.number, "measured"),
    ("Achieved occupancy", "achieved_occupancy_pct", units.percent, "measured"),
    ("Tensor Cores active", "tensor_pipe_pct", units.percent, "measured"),
)


def headline(bundle: Bundle, shape: AttentionShape) -> pd.DataFrame:
    """Naive beside flash on one shape: quantity, both values as read, naive ÷ flash, and the kind of the values."""
    h = evidence.headline(bundle, shape)
    base, flash = h.naive or h.naive_folded, h.flash
    names = [
        labels.sentence(labels.implementation(s.implementation)) if s else word
        for s, word in ((base, "Naive"), (flash, "Flash"))
    ]
    rows = [
        (words, form(_value(base, field)), form(_value(flash, field)), _ratio(base, flash, field), kind)
        for words, field, form, kind in QUANTITIES
    ]
    floor = units.nbytes(h.compulsory_bytes)
    rows.insert(1, ("HBM bytes over the compulsory", units.times(h.ratio_by_floor), _over(h), "", "derived"))
    rows.insert(2, ("Compulsory HBM bytes: Q, K, V, O once", floor, floor, "", "predicted"))
    return pd.DataFrame(rows, columns=["Quantity", *names, "Naive ÷ flash", "Kind"])


def _value(side: Side | None, field: str) -> Any:
    return getattr(side, field) if side else None


def _over(h: Headline) -> str:
    moved = h.flash.dram_bytes if h.flash else None
    return units.times(moved / h.compulsory_bytes) if moved is not None and h.compulsory_bytes else units.NOT_AVAILABLE


def _ratio(base: Side | None, flash: Side | None, field: str) -> str:
    a, b = _value(base, field), _value(flash, field)
    return units.times(a / b) if a is not None and b else ""


def every_shape(bundle: Bundle) -> pd.DataFrame:
    """One row a shape: HBM bytes of naive and flash, the ratio to quote, and the speed; empty for foreign reports."""
    rows = []
    facts = evidence.Facts(bundle)
    for shape in evidence.shapes(bundle):
        try:
            h = evidence.headline(bundle, shape)
        except BadInput:
            continue
        if facts.flash(shape) is None:
            continue
        base = h.naive or h.naive_folded
        rows.append(
            (
                labels.shape(shape),
                units.nbytes(_value(base, "dram_bytes")),
                units.nbytes(_value(h.flash, "dram_bytes")),
                units.nbytes(h.compulsory_bytes),
                units.times(h.ratio_by_floor),
                units.duration(_value(base, "median_ns")),
                units.duration(_value(h.flash, "median_ns")),
                units.times(h.speedup),
            )
        )
    return pd.DataFrame(
        rows,
        columns=[
            "Shape",
            "Naive HBM",
            "Flash HBM",
            "Compulsory",
            "Naive ÷ compulsory",
            "Naive time",
            "Flash time",
            "Naive ÷ flash time",
        ],
    )


def markdown(title: str, tables: Sequence[tuple[str, pd.DataFrame]], foot: str) -> str:
    """A heading, each table under its caption, and where the numbers come from."""
    parts = [f"# {title}"]
    for caption, frame in tables:
        head = [list(frame.columns), ["---"] * len(frame.columns), *frame.itertuples(index=False, name=None)]
        rows = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in head]
        parts += [f"**{caption}**", "\n".join(rows)]
    return "\n\n".join([*parts, foot]) + "\n"


LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "÷": r"$\div$",
    "→": r"$\to$",
    "µ": r"$\mu$",
    "−": "$-$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    units.NBSP: "~",
}


def latex(tables: Sequence[tuple[str, pd.DataFrame]], foot: str) -> str:
    """Each table as a table float that needs no package."""
    out = []
    for caption, frame in tables:
        rows = [
            " & ".join(map(_tex, row)) + r" \\"
            for row in (tuple(frame.columns), *frame.itertuples(index=False, name=None))
        ]
        body = "\n".join([rows[0], r"\hline", *rows[1:]])
        out.append(
            "\\begin{table}\n\\caption{"
            + _tex(caption)
            + "}\n\\begin{tabular}{l"
            + "r" * (len(frame.columns) - 1)
            + "}\n\\hline\n"
            + body
            + "\n\\hline\n\\end{tabular}\n\\par\\footnotesize "
            + _tex(foot)
            + "\n\\end{table}\n"
        )
    return "\n".join(out)


def _tex(text: Any) -> str:
    return "".join(LATEX.get(c, c) for c in str(text))
