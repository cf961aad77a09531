"""What the README says is so: its figures come from the recorded profile, its verbs and files exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiler import bundle, evidence
from profiler.figures import units

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_table_is_the_recorded_profile(head_dim):
    recorded = bundle.read(ROOT / "data/h200-evidence")
    shape = next(s for s in evidence.shapes(recorded) if (s.nq, s.head_dim, s.mask) == (4096, head_dim, "full"))
    h = evidence.headline(recorded, shape)
    row = (f"| {head_dim} | {units.nbytes(h.naive.dram_bytes)} → {units.nbytes(h.flash.dram_bytes)} "
           f"({units.nbytes(h.compulsory_bytes)}) | {units.duration(h.naive.median_ns)} → "
           f"{units.duration(h.naive_folded.median_ns)} → {units.duration(h.flash.median_ns)} | "
           f"{units.nbytes(h.naive.peak_memory_bytes)} → {units.nbytes(h.flash.peak_memory_bytes)} |")
    assert row.replace("\u202f", " ").replace("\xa0", " ") in README


def test_every_verb_it_names_exists():
    verbs = set(re.findall(r"python -m profiler ([a-z]+)", README))
    assert {"doctor", "run", "table", "evidence"} <= verbs
    command = [sys.executable, "-m", "profiler", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    listed = set(re.findall(r"^\W*([a-z]+)\s{2,}", done.stdout, re.MULTILINE))
    assert verbs <= listed


def test_every_file_it_names_exists():
    named = re.findall(r"\]\(([^)#]+)\)", README)
    named += re.findall(r"`((?:data|tests|profiler|kernels|docs)/[^`]*)`", README)
    assert [name for name in named if "://" not in name and not (ROOT / name).exists()] == []
