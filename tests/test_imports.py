"""The map in profiler/DESIGN.md, held: who may import whom, and where the heavy libraries may appear."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {"errors", "spec"}
ALLOWED = {
    "errors": set(),
    "spec": set(),
    "table": set(),
    "apart": {"table"},
    "bundle": {"apart", "table"},
    "metrics": {"bundle", "table"},
    "devices": set(),
    "roles": set(),
    "privacy": {"bundle", "table", "parse"},
    "model": set(),
    "learn": {"model", "bundle"},
    "evidence": {"model", "bundle", "table", "metrics", "roles", "devices"},
    "figures": {"evidence", "model", "bundle", "table", "metrics", "roles", "devices"},
    "export": {"figures", "evidence", "model", "bundle", "table", "metrics", "roles", "devices", "parse"},
    "parse": {"bundle", "table", "metrics", "roles"},
    "collect": {"parse", "bundle", "table", "metrics", "privacy"},
    "workload": {"kernels"},
    "dashboard": {"figures", "evidence", "model", "apart", "bundle", "table", "metrics", "parse", "collect", "roles",
                  "devices", "export", "learn"},
    "__main__": {"cli", "collect", "parse", "model", "evidence", "bundle", "table", "metrics", "privacy", "roles",
                 "devices", "figures", "export"},
    "cli": {"collect", "parse", "model", "evidence", "apart", "bundle", "table", "metrics", "privacy", "roles",
            "devices", "figures", "export"},
    "__init__": set(),
    "kernels": set(),
    "app": {"dashboard"},
}
HEAVY = {"torch": {"kernels", "workload"}, "triton": {"kernels", "workload"}, "streamlit": {"app", "dashboard"},
         "plotly": {"figures", "export"}}
MODEL_MAY = {"dataclasses", "math", "typing", "functools", "heapq", "collections", "itertools", "enum", "profiler",
             "statistics", "fractions", "__future__"}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] != "profiler" else parts[1]


def sources() -> list[Path]:
    return [ROOT / "app.py", *sorted(ROOT.glob("kernels/**/*.py")), *sorted(ROOT.glob("profiler/**/*.py"))]


def imported(path: Path) -> set[str]:
    """Absolute dotted names of every import in a file, also inside functions."""
    names = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_map(path):
    mine = room(path)
    assert mine in ALLOWED, f"{path} is in a room that DESIGN.md does not know"
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "profiler":
            target = rest.split(".")[0] if rest else ""
            internal = target in LEAVES | {mine, ""} or (not (ROOT / "profiler" / target).exists() and not (
                ROOT / "profiler" / f"{target}.py").exists())
            assert internal or target in ALLOWED[mine], f"{path.name}: {mine} must not import profiler.{target}"
        elif top == "kernels":
            assert mine in {"kernels", "workload"}, f"{path.name}: {mine} must not import kernels"
        elif top in HEAVY:
            assert mine in HEAVY[top], f"{path.name}: {top} does not belong in {mine}"
        if mine == "model":
            assert top in MODEL_MAY, f"{path.name}: the model uses the standard library only, found {top}"


LIGHT = ("kernels", "kernels.registry", "profiler.bundle", "profiler.evidence", "profiler.parse", "profiler.__main__",
         "profiler.collect", "profiler.dashboard.store")


@pytest.mark.parametrize("module", LIGHT)
def test_importing_needs_no_torch_or_triton(module):
    code = (f"import sys, {module}; bad = [m for m in ('torch', 'triton') if m in sys.modules]; "
            "sys.exit('imports ' + ', '.join(bad) if bad else 0)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
