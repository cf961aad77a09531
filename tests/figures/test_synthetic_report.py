"""The made-up report of another GPU: the whole way from its file to every figure, and nothing that could pass as data.
"""

import json

import pytest

from profiler import evidence, parse, roles
from profiler.dashboard.components import compare, rooflines
from profiler.figures import canvas
from profiler.figures.ledger import ledger
from profiler.spec import AttentionShape
from tests import synthetic_report
from tests.figures.samples import BUNDLE
from tests.synthetic_report import FILE, GPU, PAIRS, D, Q, S

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)


@pytest.fixture(scope="module")
def report():
    return parse.load(FILE)


@pytest.fixture(scope="module")
def named(report):
    return roles.assigned(report, "proposed", roles.call_in(report.launches["range"]))


def test_the_file_is_what_its_script_writes():
    assert FILE.read_text(encoding="utf-8") == synthetic_report.text()


def test_amounts_follow_from_the_call(report):
    launches = report.launches
    assert launches["tensor_flops"].sum() == 2 * 4 * PAIRS * D  # naive's two matmuls, and flash's
    flash = launches.iloc[4]
    assert flash["dram_read_bytes"] == pytest.approx(3 * Q, rel=0.013)
    assert launches["dram_read_bytes"].iloc[:4].sum() == pytest.approx(3 * S + 3 * Q, rel=0.013)
    assert flash["tensor_peak_flops_per_s"] == pytest.approx(312e12, rel=0.001)  # the A100's dense bf16 peak


def test_from_the_upload_to_verdicts(named):
    assert list(named.launches["stage"]) == ["scores", "scale", "softmax", "values", "attention"]
    verdicts = {claim.id: claim.verdict for claim in evidence.evaluate(named, SHAPE)}
    assert verdicts["same_flops"] == verdicts["naive_memory_bound"] == "holds", verdicts
    assert evidence.headline(named, SHAPE).compulsory_bytes == 4 * Q


def test_every_stamp_says_synthetic(report, named):
    names = ("naive", "sdpa_flash")
    figures = [rooflines.launches(report, level="dram", theme="light"),
               rooflines.attention(named, SHAPE, names, direction="forward", level="dram", stages=True, theme="dark"),
               ledger(named, SHAPE, names),
               *(compare.shared_roofline([BUNDLE, named], None, "forward", level="dram", theme="light", view=view)
                 for view in ("own", "ridge"))]
    for figure in figures:
        foot = next(a.text for a in figure.layout.annotations if a.name == "foot")
        assert figure.data and GPU.split(",")[0] == "SYNTHETIC" and "SYNTHETIC" in foot, canvas.title(figure)
    assert report.launches["device"].eq(GPU).all() and "SYNTHETIC" in json.dumps(report.profile)
    assert not [r for r in rooflines.roofs_table(report)["source"] if "data sheet" in r]  # no real GPU's sheet is lent


def test_compare_by_role(named):
    table = compare.by_role([BUNDLE, named], None, "forward", "dram")
    mine = table[table["source"].eq(named.name)]
    assert list(mine["role"].str.split(": ").str[-1]) == ["Q·Kᵀ", "scale", "softmax", "P·V", "attention"]
    shares = mine["of the lower roof"]
    assert "of HBM" in shares.iloc[0] and "tensor" in shares.iloc[4]
