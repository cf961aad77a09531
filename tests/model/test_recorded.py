"""Our kernels as an H200 counted them, against the model: every launch of the recorded profiles."""

from pathlib import Path

import pytest

from profiler import bundle
from profiler.evidence.facts import Facts

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module", params=["h200-evidence", "h200-tuning", "h200-backward", "h200-decode", "h200-scaling",
                                        "h200-ladder"])
def launches(request):
    """(configuration, predicted stage, row) of every launch of a kernel of ours."""
    facts = Facts(bundle.read(DATA / request.param))
    found = [(run.config, stage, row) for run in facts.runs if run.config.implementation in ("flash2", "decode")
             for stage in run.predicted.stages for row in run.launches.get(stage.stage, [])]
    assert len(found) >= 4
    return found


def test_special_function_operations_are_exact(launches):
    """Exponentials, α in every lane that holds a row, index arithmetic, division by the row sum: to the last one."""
    assert [(c.config_id, s.stage, s.special_ops) for c, s, _ in launches] == [
        (c.config_id, s.stage, row["special_ops"]) for c, s, row in launches]


def test_tensor_flops_are_exact(launches):
    assert [(c.config_id, s.stage, s.flops_computed) for c, s, _ in launches] == [
        (c.config_id, s.stage, row["tensor_flops"]) for c, s, row in launches]


def test_bytes_to_the_sms_where_no_register_spills(launches):
    """Within 0.1% (the keys pass of two backward shapes finds a few statistics in L1)."""
    for config, stage, row in launches:
        if row["spill_requests"] == 0:
            assert stage.level_bytes("l2_to_sm") == pytest.approx(row["l2_to_sm_bytes"], rel=1e-3), config.config_id


def test_bytes_from_the_sms_where_no_register_spills(launches):
    """O, statistics and partial sums; of a partial LSE whole sectors of 32 B."""
    for config, stage, row in launches:
        if row["spill_requests"] == 0:
            assert stage.level_bytes("sm_to_l2") == pytest.approx(row["sm_to_l2_bytes"], rel=1e-6), config.config_id


@pytest.mark.parametrize("profile", ["h200-evidence", "h200-backward", "h200-decode", "h200-scaling", "h200-memory"])
def test_peak_memory_is_what_the_allocator_counted(profile):
    """Naive and ours, forward and backward, to the 512 B that each buffer is rounded up to."""
    facts = Facts(bundle.read(DATA / profile))
    compared = [(run.config.config_id, run.predicted.peak_memory_bytes, run.timed("peak_memory_bytes"))
                for run in facts.runs if run.timed("peak_memory_bytes") is not None
                and run.config.implementation in ("naive", "naive_folded", "flash2", "hopper", "decode")]
    assert len(compared) > 5
    for name, predicted, measured in compared:
        assert predicted <= measured <= predicted + 4 * 512, name


def test_the_masked_softmax_of_the_folded_form_is_exact_too():
    facts = Facts(bundle.read(DATA / "h200-evidence"))
    found = [(run.predicted.stage("softmax").special_ops, run.total("special_ops", "softmax")) for run in facts.runs
             if run.config.implementation == "naive_folded" and run.shape.mask == "causal"]
    assert len(found) == 12 and all(predicted == measured for predicted, measured in found)


@pytest.mark.parametrize("profile", ["h200-ladder", "h200-scaling"])
def test_the_schedules_of_flashattention_1_and_of_hopper_are_exact(profile):
    """Tensor Core FLOPs to the last one; bytes to the SMs within 0.2% (what two programs share in L1); exponentials
    within 0.2% (how often a maximum is raised depends on the data)."""
    facts = Facts(bundle.read(DATA / profile))
    found = [(run, stage) for run in facts.runs if run.config.implementation in ("flash1", "hopper")
             for stage in run.predicted.stages]
    assert len(found) == (20 if profile == "h200-ladder" else 24)
    for run, stage in found:
        total = {name: run.total(name, stage.stage) for name in ("tensor_flops", "l2_to_sm_bytes", "special_ops")}
        assert stage.flops_computed == total["tensor_flops"], run.config.config_id
        assert stage.level_bytes("l2_to_sm") == pytest.approx(total["l2_to_sm_bytes"], rel=2e-3), run.config.config_id
        assert stage.special_ops == pytest.approx(total["special_ops"], rel=2e-3), run.config.config_id
