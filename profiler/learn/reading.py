"""Ten things to look for in an attention kernel, each with the line of ours that does it.

Lines are found by their text when asked for, so that no link goes stale.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from profiler.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
AROUND = 2  # lines of context on each side


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file, with the lines around it. first: the number of the excerpt's first line."""

    path: str
    line: int
    excerpt: str
    first: int

    @property
    def address(self) -> str:
        return f"{self.path}:{self.line}"


# point of the checklist -> where to look: (file, text that the line contains)
POINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "programs": (("kernels/flash2.py", "program = tl.program_id(0)"),),
    "blocks": (("kernels/plan.py", "TABLE: dict"),
               ("kernels/flash2.py", "HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N")),
    "layout": (("kernels/flash2.py", "q_source += batch"), ("kernels/flash2.py", "pointers = corner")),
    "loop": (("kernels/flash2.py", "for start in tl.range(low, high, BLOCK_N)"),),
    "mask": (("kernels/flash2.py", "full_end = tl.maximum("), ("kernels/flash2.py", "s = tl.where(visible, s")),
    "state": (("kernels/flash2.py", "m_new = tl.maximum(m_i"), ("kernels/flash2.py", "l_i * alpha + tl.sum(p, 1)")),
    "lse": (("kernels/flash2.py", "lse = (m_i + tl.log2(divisor))"),),
    "recompute": (("kernels/flash2_backward.py", "p = tl.exp2(s * qk_scale + neg_lse[None, :])"),
                  ("kernels/flash2_backward.py", "delta = tl.sum(o * do, 1)")),
    "hardware": (("kernels/flash2.py", "p = tl.exp2(s * unit - subtract"), ("kernels/flash2.py", "TensorDescriptor(t")),
    "output": (("kernels/flash2.py", "o_source.store("), ("kernels/flash2.py", "tl.store(o_source")),
}


def find(path: str, text: str) -> Place:
    """The first line of `path` that contains `text`; BadInput where there is none."""
    file = ROOT / path
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    at = next((i for i, line in enumerate(lines) if text in line), None)
    if at is None:
        raise BadInput(f"{path}: expected a line with “{text}”, found none.",
                       remedy="The checklist belongs to the kernels of the same version; restore both.")
    low, high = max(0, at - AROUND), min(len(lines), at + AROUND + 1)
    return Place(path, at + 1, "\n".join(lines[low:high]), low + 1)


def function(address: str) -> Place | None:
    """The whole function, or statement of the module, around "path:line"; None for an address of another form or file.

    Only files that the checklist names are read, whatever the address asks for.
    """
    path, _, number = address.rpartition(":")
    if path not in {one for found in POINTS.values() for one, _ in found} or not number.isdigit():
        return None
    text = (ROOT / path).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first <= int(number) <= (node.end_lineno or node.lineno):
            lines = text.splitlines()[first - 1:node.end_lineno]
            return Place(path, int(number), "\n".join(lines), first)
    return None


def places(point: str) -> list[Place]:
    """Where to look for one point of the checklist."""
    return [find(path, text) for path, text in POINTS[point]]
