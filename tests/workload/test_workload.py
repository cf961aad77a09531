"""The workload on the CPU: inputs, rows compared, statuses, timing rows, NVTX ranges. No time is asserted."""

import contextlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.errors import UnsupportedCall
from kernels.reference import reference_attention
from profiler.collect import worker
from profiler.errors import BadInput
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, counters, inputs, timing
from profiler.workload.clock import LONGEST_WAIT, WAIT_CYCLES, HostClock, wait_cycles
from profiler.workload.device import Sensors, throttle_words
from profiler.workload.implementations import Refused, bind, no_stage
from profiler.workload.plan import Plan

SMALL = AttentionShape(1, 4, 24, 40, 16, kv_heads=2, dtype="fp32", mask="causal")


def config(name="naive", shape=SMALL, **parameters):
    return RunConfig(name, shape, parameters=parameters)


def measure(*configs):
    return list(
        timing.measure(list(configs), HostClock(), Sensors("cpu"), device="cpu", seed=0, starting=lambda c: None)
    )


def test_inputs_are_normal_and_the_same_for_a_seed():
    q, k, v = inputs.make(AttentionShape(1, 4, 512, 256, 64, kv_heads=2, dtype="bf16"), "cpu", 1)
    assert (q.shape, k.shape, v.shape) == (
        (1, 4, 512, 64),
        (1, 2, 256, 64),
        (1, 2, 256, 64),
    ) and q.dtype == torch.bfloat16
    assert abs(q.float().mean()) < 0.02 and abs(q.float().std() - 1) < 0.02
    assert torch.equal(q, inputs.make(AttentionShape(1, 4, 512, 256, 64, kv_heads=2, dtype="bf16"), "cpu", 1)[0])
    assert not torch.equal(k, v)


def test_all_rows_up_to_the_limit_then_an_even_sample_with_both_ends():
    assert accuracy.choose_rows(2048) == (list(range(2048)), "all")
    rows, words = accuracy.choose_rows(16384)
    assert rows[0] == 0 and rows[-1] == 16383 and len(set(rows)) == 256
    assert max(b - a for a, b in itertools.pairwise(rows)) == 65 and words == "256 of 16384, evenly spread"


def test_sampled_error_is_that_of_the_sampled_rows(monkeypatch):
    monkeypatch.setattr(accuracy, "ALL_ROWS", 8)
    monkeypatch.setattr(accuracy, "SAMPLE", 3)
    q, k, v = inputs.make(SMALL, "cpu", 0)
    exact = reference_attention(q, k, v, causal=True)[0]
    wrong = exact.clone()
    wrong[:, :, 11] += 0.5  # rows 0, 11 and 23 are compared
    wrong[:, :, 12] += 9.0
    found = accuracy.expect(q, k, v, True).compare(wrong)
    assert found["error_max_abs"] == pytest.approx(0.5) and found["error_rows"].startswith("3 of 24")
    sampled = exact[:, :, [0, 11, 23]]
    assert found["error_relative"] == pytest.approx(math.sqrt(4 * 16 * 0.25) / sampled.norm().item())


def test_eager_is_attention_with_grouped_heads_and_bottom_right_mask():
    q, k, v = inputs.make(SMALL, "cpu", 0)
    rows = torch.tensor([0, 5, 23])
    mask = torch.ones(24, 40, dtype=torch.bool).tril(16)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=mask
    )
    assert torch.allclose(accuracy.eager(q, k, v, rows, True), expected[:, :, rows], atol=1e-6)


def test_timing_rows():
    row = measure(config())[0]
    assert row["status"] == "ok" and row["repetitions"] >= timing.FEWEST
    assert row["p20_ns"] <= row["median_ns"] <= row["p80_ns"] and row["median_ns"] > 0
    assert row["error_relative"] < 1e-6 and row["error_rows"] == "all" and "CPU" in row["note"]
    assert row["peak_memory_bytes"] is None  # nothing counts it on a CPU


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"), "out of memory"),
        (ValueError("q: expected a CUDA tensor\nmore"), "refused: q: expected a CUDA tensor"),
        (RuntimeError("shape mismatch"), "failed: RuntimeError: shape mismatch"),
    ],
)
def test_an_implementation_that_raises_gets_its_reason_and_the_next_one_runs(monkeypatch, raised, status):
    def fake(config, q, k, v):
        bound = bind(config, q, k, v)
        if config.implementation == "naive_folded":

            def call(stage):
                raise raised

            return type(bound)(call, {})
        return bound

    monkeypatch.setattr(timing, "bind", fake)
    full = AttentionShape(1, 2, 16, 16, 16, dtype="fp32")
    rows = {row["implementation"]: row for row in measure(config("naive_folded", full), config("naive", full))}
    assert rows["naive_folded"]["status"] == status and "median_ns" not in rows["naive_folded"]
    assert rows["naive"]["status"] == "ok"


def test_memory_that_runs_out_while_others_are_timed_costs_one_row(monkeypatch):
    full = AttentionShape(1, 2, 16, 16, 16, dtype="fp32")

    def fake(config, q, k, v):
        bound, calls = bind(config, q, k, v), []

        def call(stage):
            calls.append(1)
            # Preparing takes one call to compare, one for memory (none on a CPU) and at most 40 to warm up.
            if config.implementation == "naive_folded" and len(calls) > 45:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return bound.call(stage)

        return type(bound)(call, {})

    monkeypatch.setattr(timing, "bind", fake)
    monkeypatch.setattr(timing, "repetitions", lambda pair_s: 30)
    rows = {row["implementation"]: row for row in measure(config("naive_folded", full), config("naive", full))}
    assert rows["naive_folded"]["status"] == "out of memory" and "median_ns" not in rows["naive_folded"]
    assert rows["naive"]["status"] == "ok" and rows["naive"]["repetitions"] == 30


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda o: o * float("nan"), "wrong: the output holds NaN"),
        (lambda o: o * 1.1, "wrong: relative error 0.1 against float64"),
    ],
)
def test_a_wrong_output_is_never_timed(monkeypatch, change, status):
    def fake(config, q, k, v):
        bound = bind(config, q, k, v)
        return type(bound)(lambda stage: change(bound.call(stage)), {})

    monkeypatch.setattr(timing, "bind", fake)
    row = measure(config())[0]
    assert row["status"].startswith(status) and "median_ns" not in row


def test_a_nan_outside_the_sampled_rows_is_seen(monkeypatch):
    monkeypatch.setattr(accuracy, "ALL_ROWS", 8)
    monkeypatch.setattr(accuracy, "SAMPLE", 2)
    q, k, v = inputs.make(SMALL, "cpu", 0)
    out = reference_attention(q, k, v, causal=True)[0]
    out[0, 0, 7, 3] = float("nan")
    assert accuracy.expect(q, k, v, True).compare(out)["finite"] is False


def test_several_shapes_are_compared_each_with_its_own_reference(monkeypatch):
    """Timed in the same rounds, of which each shape has its inputs; one that cannot be made costs only its own rows."""
    rounds = []
    monkeypatch.setattr(timing, "interleave", lambda subjects, *rest: rounds.append(len(subjects)))
    long, fp4 = AttentionShape(1, 4, 48, 48, 16, dtype="fp32"), AttentionShape(1, 4, 8, 8, 16, dtype="fp32")
    real = inputs.of
    monkeypatch.setattr(inputs, "of", lambda config, *rest: real(config, *rest) if config.shape != fp4 else (
        _ for _ in ()).throw(torch.OutOfMemoryError("no room")))
    monkeypatch.setattr(timing, "summary", lambda subject: subject.row)
    rows = measure(config(), config(shape=long), config("naive_folded", shape=long), config(shape=fp4))
    assert rounds == [3] and [row["status"] for row in rows] == ["out of memory", "ok", "ok", "ok"]
    assert all(row["error_relative"] < 1e-6 for row in rows[1:])


def test_what_the_peers_cannot_do_is_refused_by_reason():
    q, k, v = inputs.make(SMALL, "cpu", 0)
    with pytest.raises(Refused, match="top left"):
        bind(config("sdpa_math"), q, k, v)
    with pytest.raises(Refused, match="no tuning parameters"):
        bind(config("sdpa_math", block_m=64), q, k, v)
    with pytest.raises(UnsupportedCall, match="window: expected no such option"):
        bind(config(shape=AttentionShape(1, 1, 8, 8, 16, dtype="fp32", mask="window:2,2")), q, k, v)
    with pytest.raises(Refused, match="mask window:2,2: sdpa_math is called with full or causal masks"):
        bind(config("sdpa_math", AttentionShape(1, 1, 8, 8, 16, dtype="fp32", mask="window:2,2")), q, k, v)
    with pytest.raises(BadInput, match="naive, naive_folded, flash1, flash2"):
        bind(config("mystery"), q, k, v)


def test_torch_says_why_a_backend_cannot_run():
    row = measure(config("sdpa_cudnn", AttentionShape(1, 1, 8, 8, 16, dtype="fp32")))[0]
    assert row["status"].startswith("refused: No ")


def test_the_backend_asked_for_is_the_only_one_allowed():
    q, k, v = inputs.make(AttentionShape(1, 1, 8, 8, 16, dtype="fp32"), "cpu", 0)
    seen = []

    @contextlib.contextmanager
    def stage(name):
        seen.append((name, torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()))
        yield

    bind(config("sdpa_math", AttentionShape(1, 1, 8, 8, 16, dtype="fp32")), q, k, v).call(stage)
    assert seen == [("attention", True, False)]
    bind(config("naive", AttentionShape(1, 1, 8, 8, 16, dtype="fp32")), q, k, v).call(no_stage)


def test_ranges_are_the_configuration_outside_and_each_stage_inside(monkeypatch):
    events, calls = [], []

    class Nvtx:
        @staticmethod
        def push_range(message, domain):
            events.append((message, domain))

        @staticmethod
        def pop_range(domain):
            events.append(("pop", domain))

    real = bind

    def counted(*arguments):
        bound = real(*arguments)
        return type(bound)(lambda stage: calls.append(len(events)) or bound.call(stage), bound.parameters)

    monkeypatch.setitem(sys.modules, "nvtx", Nvtx)
    monkeypatch.setattr(counters, "bind", counted)
    found = counters.profile(config(), device="cpu", seed=0)
    assert found["status"] == "ok" and found["stages"] == ["scores", "scale", "mask", "softmax", "values"]
    assert {domain for _, domain in events} == {"flashscope"}
    names = [name for name, _ in events]
    inner = [x for stage in found["stages"] for x in (stage, "pop")]
    assert names == [config().config_id, *inner, "pop"]
    assert calls == [0, 0, 0, 1]  # three warm-up calls before any range, one inside


def test_a_replayed_graph_is_seen(monkeypatch):
    replayed = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(graph))
    graph = object()
    with counters.graphs_replayed() as seen:
        torch.cuda.CUDAGraph.replay(graph)
    torch.cuda.CUDAGraph.replay(graph)
    assert seen == [graph] and replayed == [graph, graph]


@pytest.mark.parametrize(("bits", "words"), [(0, "none"), (1, "none"), (0x44, "power cap, heat (hardware)")])
def test_throttle_reasons_in_words(bits, words):
    assert throttle_words(bits) == words


def test_sensors_are_in_the_row_and_null_where_there_are_none():
    class Hot(Sensors):
        bits = iter([0x4] * 100)

        def temperature_c(self):
            return 71.0

        def throttle_bits(self):
            return next(self.bits)

    subject = config()
    (hot,) = timing.measure([subject], HostClock(), Hot("cpu"), device="cpu", seed=0, starting=lambda c: None)
    assert hot["temperature_c"] == 71.0 and hot["throttle"] == "power cap" and hot["sm_clock_hz"] is None
    assert measure(subject)[0]["temperature_c"] is None and measure(subject)[0]["throttle"] is None


def test_the_gpu_waits_for_slow_launches_within_bounds():
    assert wait_cycles([]) == WAIT_CYCLES == wait_cycles([1e-4, 2e-4])
    assert wait_cycles([1e-4, 2e-3]) == 6_000_000  # half as much again as 2 ms, at 2 GHz
    assert wait_cycles([5.0]) == LONGEST_WAIT  # a call that compiled


def test_launches_that_came_late_are_noted(monkeypatch):
    class Late(HostClock):
        late = True

    (found,) = timing.measure([config()], Late(), Sensors("cpu"), device="cpu", seed=0, starting=lambda c: None)
    count = found["repetitions"]
    assert found["note"].endswith(f"in {count} of {count} repetitions the GPU waited for launches")


def test_plan_refuses_what_it_does_not_know(tmp_path):
    path = tmp_path / "plan.json"
    for data in ({"mode": "guess"}, {"mode": "timing", "device": "tpu"}):
        path.write_text(json.dumps(data))
        with pytest.raises(BadInput, match="must be one of"):
            Plan.read(path)
    path.write_text("{")
    with pytest.raises(BadInput, match="JSON"):
        Plan.read(path)


def test_the_process_writes_one_record_a_line(tmp_path):
    plan, result = tmp_path / "plan.json", tmp_path / "result.jsonl"
    worker.write_plan(plan, "timing", [config()], device="cpu")
    done = subprocess.run(
        worker.command(plan, result),
        cwd=tmp_path,
        env=worker.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kinds = [record["record"] for record in worker.read_records(result)]
    assert kinds == ["environment", "start", "timing", "end"]


def test_without_a_gpu_the_process_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    plan, result = tmp_path / "plan.json", tmp_path / "result.jsonl"
    worker.write_plan(plan, "timing", [config()])
    done = subprocess.run(
        worker.command(plan, result),
        cwd=tmp_path,
        env=worker.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("PyTorch sees no CUDA GPU.")


def test_a_cut_off_last_record_is_left_out(tmp_path):
    path = Path(tmp_path / "r.jsonl")
    path.write_text('{"record": "start"}\n{"record": "tim')
    assert worker.read_records(path) == [{"record": "start"}]
