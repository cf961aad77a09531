"""Backward on the CPU: gradients compared with float64, what is refused, ranges, and the thread that they open in."""

import functools
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, counters, gradients, inputs, timing
from profiler.workload.clock import HostClock
from profiler.workload.device import Sensors
from profiler.workload.implementations import Refused, bind, by_autograd, no_stage

ROOT = Path(__file__).resolve().parents[2]
GROUPED = AttentionShape(2, 4, 12, 20, 8, kv_heads=2, dtype="fp32", mask="causal")
SQUARE = AttentionShape(1, 2, 24, 24, 16, dtype="fp32", mask="causal")


def backward(name, shape=SQUARE):
    return RunConfig(name, shape, "backward")


def by_hand(q, k, v, dout, causal):
    """dQ, dK, dV by their formulas in float64, each query head with a key head of its own, summed over the group."""
    group = q.shape[1] // k.shape[1]
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~sees, -math.inf)
    p = torch.softmax(scores, -1)
    dp = dout @ v.transpose(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dk, dv = scale * ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dout

    def summed(x):
        return x.unflatten(1, (-1, group)).sum(2)

    return scale * ds @ k, summed(dk), summed(dv)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_expected_gradients_are_the_formulas(mask, monkeypatch):
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 5 * 2 * 20 * 8)  # chunks of five rows
    shape = AttentionShape(2, 4, 12, 20, 8, kv_heads=2, dtype="fp32", mask=mask)
    q, k, v, dout = inputs.of(RunConfig("naive", shape, "backward"), "cpu", 0)
    expected = gradients.expect(q, k, v, dout, mask == "causal")
    assert expected.words == "all" and expected.places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    true = by_hand(q, k, v, dout, mask == "causal")
    for place, found in zip(expected.places, expected.gradients):
        for mine, hand in zip(found, gradients.parts(*true, place)):
            assert torch.allclose(mine, hand, rtol=1e-12, atol=1e-12)
    assert 0 < expected.eager_relative < 1e-5


def test_the_worst_of_the_three_counts():
    q, k, v, dout = inputs.of(backward("naive", GROUPED), "cpu", 0)
    expected = gradients.expect(q, k, v, dout, True)
    dq, dk, dv = by_hand(q, k, v, dout, True)
    found = expected.compare((dq * 1.001, dk * 1.03, dv))
    assert found["error_relative"] == pytest.approx(0.03) and found["finite"]
    assert found["error_max_abs"] == pytest.approx(max(0.001 * dq.abs().max().item(), 0.03 * dk.abs().max().item()))
    dv[1, 1, 3, 2] = float("nan")
    assert expected.compare((dq, dk, dv))["finite"] is False


def test_many_pairs_are_compared_on_some_heads_of_both_ends(monkeypatch):
    monkeypatch.setattr(gradients, "PAIRS", 3 * 16 * 16)
    q = torch.zeros(1, 8, 16, 4)
    places, words = gradients.choose_heads(q, q)
    assert places == [(0, 0), (0, 3), (0, 7)] and words == "all rows of 3 of 8 key heads"


def test_a_row_that_sees_no_key_has_no_gradient_and_no_nan_in_eager():
    shape = AttentionShape(1, 1, 6, 4, 8, dtype="fp32", mask="causal")
    q, k, v, dout = inputs.of(backward("naive", shape), "cpu", 0)
    for dq, dk, dv in (gradients.eager(q, k, v, dout, True), gradients.exact(q, k, v, dout, True)):
        assert dq[0, 0, :2].abs().max() == 0 and all(torch.isfinite(x).all() for x in (dq, dk, dv))
    assert accuracy.eager(q, k, v, torch.arange(6), True)[0, 0, :2].abs().max() == 0


@pytest.mark.parametrize("name", ["sdpa_math", "naive"])
def test_backward_row(name):
    rows = list(
        timing.measure(
            [backward(name)], HostClock(), Sensors("cpu"), device="cpu", seed=0, starting=lambda config: None
        )
    )
    assert rows[0]["status"] == "ok" and rows[0]["direction"] == "backward"
    assert rows[0]["error_relative"] < 1e-5 and rows[0]["error_rows"] == "all"


@pytest.mark.parametrize(("mask", "masked"), [("full", []), ("causal", ["d_mask"])])
def test_naive_backward_goes_through_its_stages_under_the_profiler(mask, masked, monkeypatch):
    opened = []

    class Nvtx:
        @staticmethod
        def push_range(message, domain):
            opened.append(message)

        @staticmethod
        def pop_range(domain):
            pass

    monkeypatch.setitem(sys.modules, "nvtx", Nvtx)
    config = backward("naive", AttentionShape(1, 2, 16, 16, 8, dtype="fp32", mask=mask))
    found = counters.profile(config, device="cpu", seed=0)
    stages = ["d_values", "d_weights", "d_softmax", *masked, "d_scale", "d_queries", "d_keys"]
    assert found["status"] == "ok" and found["stages"] == stages and opened == [config.config_id, *stages]


def test_a_kernel_without_a_backward_is_refused():
    q, k, v, dout = inputs.of(backward("decode"), "cpu", 0)
    with pytest.raises(Refused, match="decode has forward only"):
        bind(backward("decode"), q, k, v, dout)


INTERPRETED = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
from profiler.spec import AttentionShape, RunConfig
from profiler.workload import accuracy, gradients, inputs
from profiler.workload.implementations import bind
square = AttentionShape(1, 2, 40, 40, 16, dtype="fp32", mask="causal")
few = AttentionShape(2, 4, 3, 70, 16, kv_heads=2, dtype="fp32", mask="causal")
cases = [(RunConfig("flash2", square, "backward"), gradients), (RunConfig("decode", few), accuracy),
         (RunConfig("decode", few, parameters={"num_splits": 3}), accuracy)]
for config, judge in cases:
    tensors = inputs.of(config, "cpu", 0)
    seen = []
    def stage(name):
        import contextlib
        seen.append(name)
        return contextlib.nullcontext()
    bound = bind(config, *tensors)
    found = judge.expect(*tensors, True).compare(bound.call(stage))
    print(config.implementation, ",".join(seen), found["finite"], found["error_relative"] < 1e-5,
          sorted(bound.parameters)[0], bound.parameters.get("num_splits"))
    if bound.training:
        print("training", gradients.expect(*tensors, True).compare(bound.training())["error_relative"] < 1e-5)
"""


def test_our_triton_kernels_in_the_interpreter():
    # In a process of its own: the interpreter is chosen when Triton is imported.
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("flash2 prepare,keys,queries True True key_block_m") and lines[1] == "training True"
    assert lines[2].startswith("decode attention") and " True True block_m" in lines[2]
    assert lines[3] == "decode attention,merge True True block_m 3"


def test_wrong_gradients_are_never_timed(monkeypatch):
    def fake(config, *tensors):
        bound = bind(config, *tensors)
        return type(bound)(lambda stage: (lambda dq, dk, dv: (dq, dk, 1.1 * dv))(*bound.call(stage)), {})

    monkeypatch.setattr(timing, "bind", fake)
    rows = list(
        timing.measure(
            [backward("sdpa_math")], HostClock(), Sensors("cpu"), device="cpu", seed=0, starting=lambda config: None
        )
    )
    assert rows[0]["status"].startswith("wrong: relative error 0.1") and "median_ns" not in rows[0]


def test_autograd_runs_inside_the_stage_in_the_calling_thread_and_again():
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q)
            return q * q

        @staticmethod
        def backward(ctx, grad):
            settings = torch._C._is_multithreading_enabled()
            seen.append((threading.get_ident(), settings, tuple(opened)))
            (q,) = ctx.saved_tensors
            return 2 * q * grad, torch.zeros_like(q), torch.zeros_like(q)

    opened = []

    class Stage:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            opened.append(self.name)

        def __exit__(self, *error):
            opened.pop()

    q = torch.tensor([3.0])
    bound = by_autograd(lambda stage, q, k, v: Square.apply(q, k, v), q, q, q, torch.tensor([10.0]))
    assert [bound.call(Stage)[0].item() for _ in range(2)] == [60.0, 60.0]
    assert seen == [(threading.get_ident(), False, ("attention",))] * 2
    assert bound.training()[0].item() == 60.0
    assert torch._C._is_multithreading_enabled() and not q.requires_grad


def test_training_peak_is_noted_beside_the_peak_of_the_backward_alone():
    class Clock(HostClock):
        def peak_memory(self, call):
            call()
            return 250.0 if isinstance(call, functools.partial) else 100.0

    config = backward("sdpa_math")
    tensors = inputs.of(config, "cpu", 0)
    subject = timing.prepare(config, bind(config, *tensors), gradients.expect(*tensors, True), Clock())
    assert subject.row["peak_memory_bytes"] == 100.0
    assert subject.row["note"].endswith("forward and backward together: a peak of 250 bytes above Q, K, V and dO")


def test_bound_forward_has_no_training_call():
    q, k, v = inputs.make(SQUARE, "cpu", 0)
    assert bind(RunConfig("sdpa_math", SQUARE), q, k, v).training is None
    assert bind(RunConfig("sdpa_math", SQUARE), q, k, v).call(no_stage).shape == q.shape
