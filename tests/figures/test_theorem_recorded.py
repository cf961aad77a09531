"""The theorem's figure on the recorded tuning suite: what is not drawn is said."""

import json
from pathlib import Path

import pytest

from profiler import bundle, evidence
from profiler.figures import theorem

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.mark.parametrize("head_dim", [64, 128])
def test_slower_configurations_are_counted_and_their_worst_named(head_dim):
    recorded = bundle.read(DATA / "h200-tuning")
    shape = next(s for s in evidence.shapes(recorded) if s.head_dim == head_dim)
    drawn = theorem.frame(recorded, shape)
    points = drawn[drawn["kind"].eq("measured") & drawn["quantity"].eq("l2_to_sm")]
    assert sorted(points["block_m"]) == [64, 128, 256]  # of 16 profiled
    said = theorem.slower(recorded, shape, "flash2")
    launches = recorded.launches
    rows = launches[launches["head_dim"].eq(head_dim) & launches["parameters"].str.contains('"block_m":256')]
    worst = rows["l2_to_sm_bytes"].max() / 2**20  # by hand: 256 rows move H · 16 blocks · 2·N·D·2 B, and Q once
    q = 16 * 4096 * head_dim * 2 / 2**20
    assert "13 slower ones" in said
    assert f"{100 * (worst / (q + 16 * 2 * q) - 1):.3g}% off" in said
    texts = json.loads(theorem.theorem(recorded, shape).to_json(), object_hook=lambda d: list(d.values()))
    assert "13 slower ones are not" in " ".join(str(texts).replace("<br>", " ").split())


def test_one_configuration_has_nothing_to_leave_out():
    recorded = bundle.read(DATA / "h200-evidence")
    assert theorem.slower(recorded, evidence.default_shape(recorded), "flash2") == ""
