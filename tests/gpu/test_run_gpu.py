"""The quick suite end to end on a real GPU with a real ncu: counters that equal the algorithm, timings beside them."""

import shutil

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(not shutil.which("ncu"), reason="needs ncu on PATH"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from profiler import bundle
    from profiler.collect.run import run
    from profiler.collect.suites import quick

    folder = tmp_path_factory.mktemp("run") / "quick"
    run(quick(), folder, suite="quick", keep_reports=True)
    return bundle.read(folder), folder


def test_every_stage_was_profiled_once(made):
    launches = made[0].launches
    found = {name: sorted(group["stage"]) for name, group in launches.groupby("implementation")}
    assert found["naive"] == ["scale", "scores", "softmax", "values"]
    assert found["naive_folded"] == ["scores", "softmax", "values"]
    assert found["flash2"] == found["sdpa_flash"] == ["attention"]


def test_tensor_operations_equal_the_algorithm(made):
    # 4·N²·D·H of B1 H16 N2048 D64; the counter is exact where the kernel uses tensor cores for both products.
    flops = made[0].launches.groupby("implementation")["tensor_flops"].sum()
    assert flops["flash2"] == 4 * 2048**2 * 64 * 16


def test_timings_are_measured_and_right(made):
    timings = made[0].timings
    assert set(timings["status"]) == {"ok"}
    assert timings["median_ns"].gt(0).all() and timings["peak_memory_bytes"].gt(0).all()
    assert (timings["error_relative"] <= 2 * timings["error_eager_relative"]).all()
    n2, flash = 16 * 2048**2 * 2, 2048 * 16 * 64 * 2
    peak = timings.set_index("implementation")["peak_memory_bytes"]
    assert peak["naive"] >= n2 and peak["flash2"] < 4 * flash


def test_sensors_are_read(made):
    timings = made[0].timings
    assert timings["temperature_c"].between(10, 110).all() and timings["power_w"].gt(0).all()
    assert timings["throttle"].notna().all() and timings["gpu"].str.startswith("GPU-").all()


GRAPHED = """
import torch

def plain(q, k, v, causal=False):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

compiled = torch.compile(plain, mode="reduce-overhead")

def attention(q, k, v):
    return compiled(q, k, v).clone()
"""


def test_a_compiled_function_that_replays_a_cuda_graph_is_counted_and_named(tmp_path, monkeypatch):
    from profiler.collect.run import run
    from profiler.collect.suites import sweep

    (tmp_path / "graphed.py").write_text(GRAPHED)
    monkeypatch.chdir(tmp_path)
    configs = sweep(("graphed:attention",), (1024,), head_dims=(64,), masks=("full",))
    found = run(configs, tmp_path / "graphed")
    assert list(found.timings["status"]) == ["ok"]
    # torch.compile may see attention in it and call cuDNN's: then one kernel, and the one that copies its inputs.
    assert len(found.launches) >= 2, list(found.launches["kernel"])
    assert any("kernels of a CUDA graph" in note for note in found.notes)
    assert not any("autotuning" in note for note in found.notes)


def test_backward_kernels_are_found_in_their_ranges_although_autograd_launches_them(tmp_path):
    from profiler.collect.run import run
    from profiler.collect.suites import sweep

    names = ("naive", "flash2", "sdpa_flash")
    configs = sweep(names, (1024,), head_dims=(64,), masks=("full",), directions=("backward",))
    found = run(configs, tmp_path / "backward")
    stages = {name: set(group["stage"]) for name, group in found.launches.groupby("implementation")}
    assert stages["flash2"] == {"prepare", "keys", "queries"} and stages["sdpa_flash"] == {"attention"}
    assert stages["naive"] == {"d_values", "d_weights", "d_softmax", "d_scale", "d_queries", "d_keys"}
    assert set(found.timings["status"]) == {"ok"} and not any("no launch" in note for note in found.notes)
    # dP and dS of the naive form, each N×N in bf16, are alive at once; P was there before.
    peak = found.timings.set_index("implementation")["peak_memory_bytes"]
    assert peak["naive"] >= 2 * 16 * 1024**2 * 2 > peak["flash2"]


def test_provenance_and_report(made):
    made, folder = made
    assert made.profile["counters"] is True and made.profile["gpu"]["name"] and made.profile["passes"] >= 1
    ceilings = {entry["quantity"]: entry["value"] for entry in made.profile["ceilings"]}
    assert set(ceilings) >= {
        "dram_copy_bytes_per_s", "dram_read_bytes_per_s", "dram_write_bytes_per_s", "l2_read_bytes_per_s",
        "exponentials_per_s", "matmul_bf16_flops_per_s", "matmul_fp16_flops_per_s", "matmul_tf32_flops_per_s",
    }
    assert all(entry["sm_clock_hz"] > 0 for entry in made.profile["ceilings"])
    assert ceilings["l2_read_bytes_per_s"] > ceilings["dram_read_bytes_per_s"]
    # 16 exponentials a cycle and SM at most; no GPU runs above its greatest clock.
    gpu = made.profile["gpu"]
    assert ceilings["exponentials_per_s"] <= 16 * gpu["sm_count"] * gpu["max_sm_clock_hz"]
    assert len(list((folder / "reports").iterdir())) == 1
