"""What the README says is so, in each language: its figures are the recorded profile's, its verbs and files exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiler import bundle, evidence
from profiler.figures import units

ROOT = Path(__file__).resolve().parents[1]
FILES = {"en": "README.md", "zh": "README.zh.md"}
READMES = {language: (ROOT / name).read_text(encoding="utf-8") for language, name in FILES.items()}
EVERY = pytest.mark.parametrize("readme", READMES.values(), ids=READMES)


@EVERY
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_table_is_the_recorded_profile(head_dim, readme):
    recorded = bundle.read(ROOT / "data/h200-evidence")
    shape = next(s for s in evidence.shapes(recorded) if (s.nq, s.head_dim, s.mask) == (4096, head_dim, "full"))
    h = evidence.headline(recorded, shape)
    row = (f"| {head_dim} | {units.nbytes(h.naive.dram_bytes)} → {units.nbytes(h.flash.dram_bytes)} "
           f"({units.nbytes(h.compulsory_bytes)}) | {units.duration(h.naive.median_ns)} → "
           f"{units.duration(h.naive_folded.median_ns)} → {units.duration(h.flash.median_ns)} | "
           f"{units.nbytes(h.naive.peak_memory_bytes)} → {units.nbytes(h.flash.peak_memory_bytes)} |")
    assert row.replace("\u202f", " ").replace("\xa0", " ") in readme


def rate(timings, name: str, head_dim: int, mask: str, n: int, flops: int) -> str:
    """TFLOP/s of one implementation in bf16, half of the FLOPs when causal; – where it was not timed."""
    fixed = timings["parameters"].fillna("").str.contains('"deterministic":true', regex=False)
    found = timings[timings["implementation"].eq(name) & timings["head_dim"].eq(head_dim) & timings["mask"].eq(mask)
                    & timings["dtype"].eq("bf16") & timings["nq"].eq(n) & timings["median_ns"].notna() & ~fixed]
    if found.empty:
        return "–"
    row = found.iloc[0]
    done = flops * row["batch"] * row["heads"] * n * n * head_dim / (2 if mask == "causal" else 1)
    return f"{done / row['median_ns'] / 1e3:.0f}"


@EVERY
def test_the_rates_beside_the_peers_are_the_recorded_ones(readme):
    forward, backward = (bundle.read(ROOT / "data" / name).timings for name in ("h200-peers", "h200-peers-backward"))
    names = ("hopper", "fa3", "fa4", "sdpa_cudnn", "sdpa_flash", "flash2")
    for n in (4096, 16384):
        for head_dim in (64, 128):
            for mask in ("full", "causal"):
                cells = (f"{rate(forward, name, head_dim, mask, n, 4)} / {rate(backward, name, head_dim, mask, n, 10)}"
                         for name in names)
                assert f"| {head_dim}, {mask}, {n:,} | {' | '.join(cells)} |" in readme


@EVERY
def test_its_count_of_shapes_and_its_occupancy_are_the_recorded_ones(readme):
    recorded = bundle.read(ROOT / "data/h200-evidence")
    shapes = evidence.shapes(recorded)
    assert re.search(rf"\b{len(shapes)} (?:shapes|个形状)", readme)
    shape = next(s for s in shapes if (s.nq, s.head_dim, s.mask) == (4096, 64, "full"))
    assert f"{evidence.headline(recorded, shape).flash.achieved_occupancy_pct:.0f}%" in readme


@EVERY
def test_every_verb_it_names_exists(readme):
    verbs = set(re.findall(r"python -m profiler ([a-z]+)", readme))
    assert {"doctor", "run", "table", "evidence"} <= verbs
    command = [sys.executable, "-m", "profiler", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    listed = set(re.findall(r"^\W*([a-z]+)\s{2,}", done.stdout, re.MULTILINE))
    assert verbs <= listed


@EVERY
def test_every_file_it_names_exists(readme):
    named = re.findall(r"\]\(([^)#]+)\)", readme)
    named += re.findall(r"`((?:data|tests|profiler|kernels|docs)/[^`]*)`", readme)
    assert [name for name in named if "://" not in name and not (ROOT / name).exists()] == []


def code(readme: str) -> list[str]:
    """Its blocks of code without their comments, which are translated."""
    blocks = re.findall(r"```\w+\n(.*?)```", readme, re.DOTALL)
    return [re.sub(r"\s*#.*", "", block) for block in blocks]


def test_the_languages_say_the_same():
    """The same headings, tables, commands, numbers with units and names of pages, in the same order."""
    english, chinese = READMES["en"], READMES["zh"]
    assert code(english) == code(chinese)
    for pattern in (r"^(#+) ", r"^\|(?=[^|])", r"^- \*\*", r"`([^`\n]+)`", r"\b\d[\d.,]* ?(?:GB|MB|ms|µs|%)"):
        found = [re.findall(pattern, re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
                 for text in (english, chinese)]
        assert found[0] == found[1], pattern
    for language, other in (("en", "zh"), ("zh", "en")):
        assert f"]({FILES[other]})" in READMES[language]


def test_the_pages_it_names_are_the_app_s():
    from profiler.dashboard import frame

    titles = {title for entries in frame.LIST.values() for _, title in entries}
    for readme in READMES.values():
        named = re.findall(r"^- \*\*([^*]+)\*\*", readme, re.MULTILINE)
        for name in (part.strip() for one in named for part in re.split("[,、]", one)):
            assert any(title == name or title.startswith(f"{name} ") for title in titles), name
