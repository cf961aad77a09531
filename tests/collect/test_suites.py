"""The named suites hold what they say, few enough to run, each configuration once."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from profiler import bundle
from profiler.cli import measure
from profiler.collect import bench, gpu, run, share, suites
from profiler.errors import BadInput
from profiler.evidence import evaluate
from profiler.spec import AttentionShape, RunConfig, parameters_text

from .conftest import ROOT

MOST = {"quick": 4, "evidence": 132, "scaling": 144, "tuning": 32, "backward": 48, "decode": 16, "peers": 264,
        "shapes": 256, "ablation": 36, "ladder": 44, "options": 48, "memory": 10}


@pytest.mark.parametrize("name", suites.SUITES)
def test_each_configuration_once_and_no_more_than_budgeted(name):
    ids = [config.config_id for config in suites.suite(name)]
    assert 0 < len(ids) == len(set(ids)) <= MOST[name]


def test_backward_is_backward():
    assert {config.direction for config in suites.backward()} == {"backward"}
    assert {config.implementation for config in suites.backward()} == {"naive", "flash2", "sdpa_flash", "sdpa_cudnn"}


def test_decode_has_few_queries_on_long_grouped_caches():
    shapes = [config.shape for config in suites.decode()]
    assert {(s.heads, s.kv_heads, s.head_dim) for s in shapes} == {(32, 8, 128)}
    assert {s.nq for s in shapes} == {1, 4} and {s.nk for s in shapes} == {4096, 32768}
    assert {s.batch for s in shapes if s.nq == 1} == {1, 8, 32}


def test_the_evidence_suite_counts_enough_for_every_claim():
    """The recorded suite, which counted everything, cut down to what is counted now: no claim loses its verdict."""
    whole = bundle.read(ROOT / "data/h200-evidence")
    assert len(suites.evidence()) - len(suites.timed_only("evidence")) == 33
    kept = {config.config_id for config in suites.evidence() if suites.counted(config)}
    assert kept <= set(whole.launches["config_id"])
    launches = whole.launches[whole.launches["config_id"].isin(kept)].reset_index(drop=True)
    assert len(launches) < len(whole.launches) / 5
    before = {claim.id: claim.verdict for claim in evaluate(whole)}
    after = {claim.id: claim.verdict for claim in evaluate(replace(whole, launches=launches))}
    lost = {name for name, verdict in after.items() if verdict == "cannot tell" and before[name] != verdict}
    assert lost == set()


def test_the_ablation_turns_off_one_switch_at_a_time():
    for shape in {config.shape for config in suites.ablation()}:
        off = [config.parameters for config in suites.ablation() if config.shape == shape]
        assert sorted(len(parameters) for parameters in off) == [0, 0, *[1] * 7]


def test_the_ladder_adds_one_idea_at_a_time():
    for shape in {config.shape for config in suites.ladder()}:
        here = [config for config in suites.ladder() if config.shape == shape]
        assert [c.implementation for c in here if c.implementation != "hopper"] == [
            "naive_folded", "flash1", "flash2", "sdpa_flash", "sdpa_cudnn"]
        off = [set(c.parameters) for c in here if c.implementation == "hopper"]
        assert [len(names) for names in off] == [3, 2, 1, 0] and all(b < a for a, b in itertools.pairwise(off))
        assert not any(value for c in here for value in c.parameters.values())
        assert (shape.batch * shape.nq, shape.heads * shape.head_dim) == (16_384, 2048)


def test_the_switches_of_the_ladder_are_those_of_the_kernel():
    from kernels import hopper_plan

    assert {name for off in suites.HOPPER_STEPS for name in off} == set(hopper_plan.SWITCHES)


def test_a_suite_is_narrowed_by_values_and_never_to_nothing():
    found = suites.narrowed(suites.peers(), dtypes=["fp8"], lengths=[4096], implementations=["fa3"])
    assert [(c.shape.head_dim, c.shape.mask) for c in found] == [(64, "full"), (64, "causal"), (128, "full"),
                                                                 (128, "causal")]
    with pytest.raises(BadInput, match="has no configuration with these values"):
        suites.narrowed(suites.quick(), dtypes=["fp8"])
    with pytest.raises(BadInput, match="the suite quick has its own"):
        suites.suite("quick", "backward")


def test_shapes_hold_a_plain_partner_for_everything_that_is_not():
    configs = suites.shapes()
    assert {sum(n for n, _ in config.lengths) for config in configs} == {16_384} and sum(suites.PACKED) == 16_384
    costs = [c for c in configs if not c.plain or c.implementation.endswith("_varlen")]
    kinds = {(c.shape.kv_heads < c.shape.heads, c.shape.mask, c.shape.nq, len(set(c.lengths))) for c in costs}
    assert kinds == {*itertools.product([True], ["full", "causal"], [4096, 16384], [1]),
                     *((False, mask, n, 1) for n, mask in suites.WINDOWS),
                     *((False, mask, n, many) for mask in ("full", "causal") for n, many in ((4096, 1), (8192, 5)))}
    rows = [{**c.key(), "parameters": parameters_text(c.parameters), "median_ns": 1.0, "p20_ns": 1.0, "p80_ns": 1.0}
            for c in configs]
    for told in (bench.against_plain(rows), bench.against_plain(rows[::-1])):
        beside = {(e["implementation"], *(e[name] for name in bench.SHAPE), e["parameters"]): e["plain"] for e in told}
        assert len(beside) == len(costs)
        assert {(key[0], plain) for key, plain in beside.items()} == {
            *((name, name) for name in ("hopper", "sdpa_cudnn", "fa3", "fa4")),
            ("flash_varlen", "hopper"), ("fa3_varlen", "fa3"), ("fa4_varlen", "fa4")}


def test_flops_by_convention():
    square = AttentionShape(2, 3, 8, 8, 4, mask="causal")
    assert bench.flops(RunConfig("naive", square)) == 4 * 2 * 3 * 8 * 8 * 4 // 2
    assert bench.flops(RunConfig("naive", square, "backward")) == 10 * 2 * 3 * 8 * 8 * 4 // 2
    # One query at the end of its cache sees every key: nothing is halved.
    one = RunConfig("naive", AttentionShape(2, 4, 1, 100, 8, kv_heads=2, mask="causal"))
    assert bench.flops(one) == 4 * 2 * 4 * 100 * 8


def test_flops_of_windows_and_packed_sequences_count_what_is_seen():
    """A window of one key before: 1 + 2 + 2 + 2 of 16 pairs. Of 3 and 1 tokens, causal: 6 + 1, full: 9 + 1."""
    window = RunConfig("hopper", AttentionShape(2, 3, 4, 4, 8, mask="window:1,0"))
    assert bench.flops(window) == bench.visible_flops(window) == 4 * 2 * 3 * 8 * 7
    for mask, pairs in (("causal", 6 + 1), ("full", 9 + 1)):
        packed = RunConfig("flash_varlen", AttentionShape(2, 3, 3, 3, 8, mask=mask), "backward",
                           {"q_lengths": [3, 1], "k_lengths": [3, 1]})
        assert bench.flops(packed) == 10 * 3 * 8 * pairs and not packed.plain
    alike = RunConfig("flash_varlen", AttentionShape(2, 3, 4, 4, 8, mask="causal"), parameters={"q_lengths": [4, 4]})
    assert bench.flops(alike) == 4 * 2 * 3 * 8 * 8 and bench.visible_flops(alike) == 4 * 2 * 3 * 8 * 10 and alike.plain


def test_the_ladder_counts_what_warps_wait_for(monkeypatch):
    """19 reasons on Hopper beside the evidence set, 18 where no warp waits for a matmul; asked for or by the suite."""
    for cc, reasons in (("9.0", 19), ("8.0", 18), (None, 0)):
        monkeypatch.setattr(gpu, "compute_capability", lambda cc=cc: cc)
        more = set(share.metric_names("stalls")) - set(share.metric_names("evidence"))
        assert len(more) == reasons and all("issue_stalled_" in name for name in more)
    asked = {}
    monkeypatch.setattr(run, "run", lambda configs, out, **options: asked.update(options) or bundle.Bundle("b", {}))
    for suite, metrics, expected in (("ladder", None, "stalls"), ("ladder", "roofline", "roofline"),
                                     ("quick", None, "evidence")):
        measure.run(Path("out"), suite=suite, metrics=metrics)
        assert asked["metric_set"] == expected and asked["suite"] == suite
