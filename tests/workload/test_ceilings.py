"""Ceilings without a GPU: the Triton kernels in the interpreter and compiled for sm_90, the bookkeeping by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiler.workload import ceilings

ROOT = Path(__file__).resolve().parents[2]

INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from profiler.workload.ceiling_kernels import exponential_kernel, read_kernel
source, sums = torch.arange(48, dtype=torch.float32), torch.full((5,), -1.0)
read_kernel[(5,)](source, sums, 48, BLOCK=16)
print(sums.tolist() == [1128.0] * 5)  # 0 + 1 + … + 47, whichever block a program begins with
start = torch.rand(32)
values, expected = start.clone(), start.double()
exponential_kernel[(2,)](values, 3, BLOCK=16, UNROLL=2)
for _ in range(6):
    expected = 2 ** -expected
print((values.double() - expected).abs().max().item() < 1e-6)
"""

# What the machine code does, read from its PTX: only the operation that is measured may stand in the loop.
COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from profiler.workload import ceilings
from profiler.workload.ceiling_kernels import exponential_kernel, read_kernel

def ptx(kernel, signature, constants):
    names = kernel.arg_names
    source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")},
                       {(names.index(k),): v for k, v in constants.items()},
                       {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in constants})
    options = {"num_warps": 4, "num_stages": 1}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

reading = ptx(read_kernel, {"source": "*fp32", "sums": "*fp32", "count": "i32"}, {"BLOCK": ceilings.BLOCK})
print("cg" if re.search(r"ld\\.global\\.cg\\S*\\.v4", reading) else "no wide load past L1", "cp.async" in reading)
counting = ptx(exponential_kernel, {"values": "*fp32", "rounds": "i32"},
               {"BLOCK": ceilings.BLOCK, "UNROLL": ceilings.UNROLL})
print(len(re.findall(r"ex2\\.approx", counting)), len(re.findall(r"\\b(?:mul|setp|selp|fma)\\S*\\.f32", counting)))
"""


def script(text):
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_kernels_compute_what_is_counted():
    assert script(INTERPRETED) == ["True", "True"]


def test_the_machine_code_holds_the_operation_and_little_else():
    read, counted = script(COMPILED)
    assert read == "cg False"  # 16-byte loads past L1, not by way of shared memory
    exponentials, others = map(int, counted.split())
    # 2048 elements on 128 threads are 16 a thread, UNROLL times in the loop's body.
    assert exponentials == 16 * ceilings.UNROLL
    assert others <= 2 * exponentials


def test_entries_are_work_over_time(monkeypatch):
    monkeypatch.setattr(ceilings, "burst", lambda call, rest_s: ceilings.Burst(0.5, 1.98e9))
    monkeypatch.setattr(ceilings, "MATMUL_N", 10)
    monkeypatch.setattr(torch, "randn", lambda *size, device, dtype: torch.zeros(size, dtype=dtype))
    (found,) = ceilings.matmul("bf16", torch.bfloat16)
    assert found["quantity"] == "matmul_bf16_flops_per_s" and found["value"] == 2 * 1000 / 0.5
    assert found["kind"] == "measured" and "10×10×10 bf16" in found["how"]
    assert found["how"].endswith(", at 1980 MHz") and found["sm_clock_hz"] == 1.98e9


def test_a_sensor_that_says_nothing_is_absent_not_zero():
    found = ceilings.entry("x", 10, "B/s", "how", ceilings.Burst(2.0))
    assert found["value"] == 5 and "sm_clock_hz" not in found and found["how"] == "how, median of 15"


class Marks:
    """CUDA without a GPU: a host clock that tests set, events that note it, and what was asked for in which order."""

    def __init__(self, monkeypatch, took):
        self.now, self.log, self.took = 0.0, [], iter(took)
        marks = self

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                self.at = marks.now

            def synchronize(self):
                marks.log.append("wait")

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.log.append("hold"), raising=False)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize"))
        monkeypatch.setattr(ceilings.time, "sleep", lambda seconds: self.log.append(seconds))
        monkeypatch.setattr(ceilings, "sensors", lambda: self)

    def call(self):
        self.now += next(self.took)
        self.log.append("call")

    def clock_hz(self):
        self.log.append("clock")
        return 1.7e9


def test_a_burst_starts_rested_and_is_read_while_it_runs(monkeypatch):
    slow, calls = 0.5, [0.002] * 10 + [0.003] * 5
    marks = Marks(monkeypatch, [slow] * ceilings.WARM_UP + calls)
    assert ceilings.burst(marks.call, 0.2) == ceilings.Burst(pytest.approx(0.002), 1.7e9)
    rest, hold = marks.log.index(0.2), marks.log.index("hold")
    assert marks.log[:rest] == ["synchronize"] and marks.log[rest + 1 : hold] == ["call"] * 3 + ["synchronize"]
    assert marks.log[hold + 1 :] == ["call"] * 15 + ["wait", "clock", "wait"]  # all queued before the first wait


def test_tf32_is_asked_for_and_given_back(monkeypatch):
    seen = []

    def burst(call, rest_s):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return ceilings.Burst(1.0)

    monkeypatch.setattr(ceilings, "burst", burst)
    monkeypatch.setattr(torch, "randn", lambda *size, device, dtype: torch.zeros(2, 2, dtype=dtype))
    before = torch.backends.cuda.matmul.allow_tf32
    for name in ("tf32", "fp32"):
        list(ceilings.matmul(name, torch.float32))
    assert seen == [True, False] and torch.backends.cuda.matmul.allow_tf32 == before


def test_what_cannot_be_measured_is_left_out_and_the_rest_goes_on(monkeypatch):
    def raises(error):
        def measured(*arguments):
            raise error
            yield

        return measured

    asked = []
    monkeypatch.setattr(ceilings, "device_memory", raises(torch.OutOfMemoryError("CUDA out of memory")))
    monkeypatch.setattr(ceilings, "l2_read", raises(ImportError("no triton")))
    monkeypatch.setattr(ceilings, "exponentials", lambda: iter([{"quantity": "exponentials_per_s"}]))
    monkeypatch.setattr(ceilings, "matmul", lambda name, dtype: asked.append(name) or iter([{"quantity": name}]))
    monkeypatch.setattr(ceilings, "matmul_fp8", raises(RuntimeError("needs compute capability 8.9")))
    found = [entry["quantity"] for entry in ceilings.measure({"bf16", "fp32"})]
    assert found == ["exponentials_per_s", *asked] and asked == ["bf16", "fp16", "tf32", "fp32"]
