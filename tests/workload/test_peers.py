"""Peers that are packages of their own: each adapter against float64 with a stand-in of its package on the path."""

import json
import sys

import pytest
import torch

from profiler import table
from profiler.collect import bench, suites
from profiler.spec import AttentionShape, RunConfig, parameters_text
from profiler.workload import accuracy, gradients, inputs, peers, timing
from profiler.workload.clock import HostClock
from profiler.workload.device import Sensors
from profiler.workload.implementations import bind, no_stage

# Attention on (B, N, H, D), bottom-right aligned, as the packages document theirs; it refuses the layout of others.
ATTENTION = """
import torch
def attention(q, k, v, causal, window=(-1, -1)):
    assert q.is_contiguous() and q.shape[-2:] == (4, 16), q.shape
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        sees = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(~sees, float("-inf"))
    place = torch.arange(scores.shape[-2])[:, None] + scores.shape[-1] - scores.shape[-2]
    for side, apart in zip(window, (place - torch.arange(scores.shape[-1]), torch.arange(scores.shape[-1]) - place)):
        if side not in (-1, None):
            scores = scores.masked_fill(apart > side, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(v.dtype).transpose(1, 2)
"""
FLASH = """
def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1)):
    return attention(q, k, v, causal, window_size)
"""
VARLEN = """
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False,
                           window_size=(-1, -1)):
    assert cu_seqlens_q.dtype == torch.int32 and cu_seqlens_q.diff().max() == max_seqlen_q == max_seqlen_k
    ends = cu_seqlens_k.tolist()
    return torch.cat([attention(q[None, a:b], k[None, a:b], v[None, a:b], causal, window_size)[0]
                      for a, b in zip(ends, ends[1:])])
"""
# As flash_attn.cute: an unlimited side of a window is None, and the output may come with the LSE.
WITH_LSE = """
def flash_attn_func(q, k, v, causal=False, window_size=(None, None)):
    assert -1 not in window_size
    return attention(q, k, v, causal, window_size), None
"""
XFORMERS = """
from . import attn_bias
def memory_efficient_attention(q, k, v, attn_bias=None):
    return attention(q, k, v, type(attn_bias).__name__ == "LowerTriangularFromBottomRightMask")
"""
FLASHINFER = """
class BatchPrefillWithRaggedKVCacheWrapper:
    def __init__(self, room, layout):
        assert room.dtype == torch.uint8 and layout == "NHD"
    def plan(self, starts_q, starts_k, heads, kv_heads, head_dim, causal=False, q_data_type=None):
        self.starts, self.causal = (starts_q.tolist(), starts_k.tolist()), causal
        assert starts_q.dtype == torch.int32 and (heads, head_dim) == (4, 16) and q_data_type == torch.bfloat16
    def run(self, q, k, v):
        (_, *ends_q), (_, *ends_k) = self.starts
        parts, i, j = [], 0, 0
        for a, b in zip(ends_q, ends_k):
            parts.append(attention(q[None, i:a], k[None, j:b], v[None, j:b], self.causal)[0])
            i, j = a, b
        return torch.cat(parts)
"""
# As fa3_fwd 0.0.3: float8 in, bf16 out, a factor a batch and key head; its build says what it was made without.
FLASH3 = """
def flash_attn_func(q, k, v, causal=False, q_descale=None, k_descale=None, v_descale=None):
    if q.dtype == torch.float8_e4m3fn:
        for factor in (q_descale, k_descale, v_descale):
            assert factor.shape == (k.shape[0], k.shape[2]) and factor.dtype == torch.float32
        q, k, v = (x.bfloat16() for x in (q, k, v))
    return attention(q, k, v, causal)
""" + VARLEN
WITHOUT = "CONFIG = {'build_flags': {f'FLASHATTENTION_DISABLE_{x}': True for x in ('FP16', 'BACKWARD', 'LOCAL')}}"
FILES = {
    "fa2": {"flash_attn/flash_attn_interface.py": FLASH},
    "fa3": {"fa3_fwd_interface.py": FLASH3, "fa3_fwd_config.py": WITHOUT},
    "fa4": {"flash_attn/cute/__init__.py": WITH_LSE + VARLEN},
    "xformers": {"xformers/ops/fmha/__init__.py": XFORMERS,
                 "xformers/ops/fmha/attn_bias.py": "class LowerTriangularFromBottomRightMask: pass"},
    "flashinfer": {"flashinfer/__init__.py": FLASHINFER},
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts files on the path; their modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def put(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(ATTENTION + text)

    yield put
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flash_attn", "fa3_fwd_interface", "fa3_fwd_config", "xformers", "flashinfer"):
            del sys.modules[name]


def row_of(config):
    return next(
        iter(timing.measure([config], HostClock(), Sensors("cpu"), device="cpu", seed=0, starting=lambda config: None))
    )


def shape(mask="causal", kv_heads=4, nq=24, nk=24, **other):
    return AttentionShape(1, 4, nq, nk, 16, kv_heads=kv_heads, mask=mask, **other)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("name", FILES)
def test_an_installed_peer_is_called_in_its_own_layout_and_compared(install, name, mask):
    install(FILES[name])
    row = row_of(RunConfig(name, shape(mask, nq=20)))
    assert row["status"] == "ok" and row["error_relative"] <= 2 * row["error_eager_relative"] and row["median_ns"] > 0


@pytest.mark.parametrize("name", FILES)
def test_a_peer_that_is_not_installed_is_named_with_its_install(name):
    with pytest.raises(peers.Missing):
        peers.adapter(RunConfig(name, shape()))
    status = row_of(RunConfig(name, shape()))["status"]
    assert status == f"missing: {name} is not installed: {peers.PEERS[name].install}"


def test_a_broken_installation_is_told_from_none(install):
    install({"flashinfer/__init__.py": "import a_package_that_is_not_there"})
    status = row_of(RunConfig("flashinfer", shape()))["status"]
    assert status.startswith("missing: flashinfer is installed, but cannot be used (it needs a_package_that")
    install({"flash_attn/cute/__init__.py": "raise ImportError('undefined symbol: _ZN3c10')"})
    assert "undefined symbol: _ZN3c10" in row_of(RunConfig("fa4", shape()))["status"]


def test_a_wrong_peer_is_not_timed(install):
    install({"flash_attn/flash_attn_interface.py": FLASH.replace(", causal, w", ", not causal, w")})
    row = row_of(RunConfig("fa2", shape()))
    assert row["status"].startswith("wrong: relative error") and "median_ns" not in row


def test_sequences_of_a_batch_are_one_after_the_other_where_the_package_wants_them_so(install):
    install(FILES["flashinfer"])
    row = row_of(RunConfig("flashinfer", AttentionShape(3, 4, 20, 24, 16, kv_heads=2, mask="causal")))
    assert row["status"] == "ok" and row["error_relative"] <= 2 * row["error_eager_relative"]


@pytest.mark.parametrize("mask", ["window:3,0", "window:-1,2", "window:5,5"])
@pytest.mark.parametrize("name", ["fa2", "fa4"])
def test_a_window_is_asked_for_as_the_package_wants_it(install, name, mask):
    install(FILES[name])
    row = row_of(RunConfig(name, shape(mask, nq=20)))
    assert row["status"] == "ok" and row["error_relative"] <= 2 * row["error_eager_relative"]


@pytest.mark.parametrize("name, mask", [("fa3", "full"), ("fa3", "causal"), ("fa4", "full"), ("fa4", "causal"),
                                        ("fa4", "window:3,0")])
def test_packed_sequences_are_packed_beforehand_and_compared_each_by_itself(install, name, mask):
    install(FILES[name])
    lengths = {"q_lengths": [24, 7, 1], "k_lengths": [24, 7, 1]}
    config = RunConfig(f"{name}_varlen", AttentionShape(3, 4, 24, 24, 16, kv_heads=2, mask=mask), parameters=lengths)
    row = row_of(config)
    assert row["status"] == "ok" and row["error_relative"] <= 2 * row["error_eager_relative"] and row["median_ns"] > 0
    assert json.loads(row["parameters"]) == lengths
    q, k, v = inputs.of(config, "cpu", 0)
    given = bind(config, q, k, v).call(no_stage)
    assert given.shape == (24 + 7 + 1, 4, 16)  # packed: what is behind a sequence's end is not computed


def test_packed_peers_take_as_many_keys_as_queries_and_nothing_else(install):
    install(FILES["fa4"])
    for given, said in (({"q_lengths": [24], "k_lengths": [7]}, "as many keys as queries"),
                        ({"q_lengths": [24], "block_m": 64}, "no tuning parameters, got block_m")):
        assert said in row_of(RunConfig("fa4_varlen", shape(), parameters=given))["status"]
    assert "got q_lengths" in row_of(RunConfig("fa4", shape(), parameters={"q_lengths": [24]}))["status"]


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_float8_is_compared_with_its_own_values_in_float64(install, mask):
    install(FILES["fa3"])
    row = row_of(RunConfig("fa3", shape(mask, dtype="fp8")))
    # The stand-in keeps P in fp32, so it is far nearer than P rounded to three bits: 2**-4 / 3**0.5 at most for each.
    assert row["status"] == "ok" and row["error_relative"] < 5e-3
    assert 5e-3 < row["error_eager_relative"] < 2**-4 / 3**0.5


def test_a_build_that_left_a_part_out_says_so_before_it_is_called(install):
    install(FILES["fa3"])
    for config, part in (
        (RunConfig("fa3", shape(dtype="fp16")), "fp16"), (RunConfig("fa3", shape(), "backward"), "the backward"),
        (RunConfig("fa3", shape("window:3,0")), "windows"), (RunConfig("fa3_varlen", shape(dtype="fp16")), "fp16"),
    ):
        assert row_of(config)["status"] == f"refused: this build of fa3 was made without {part}"


def test_a_right_result_is_at_most_a_tenth_off_unless_eager_is_too():
    # 10 × 3e-3; 10 × 0.02 would be 0.2; 2 × 0.09.
    assert [timing.most(eager) for eager in (0.0, 3e-3, 0.02, 0.09)] == pytest.approx([1e-3, 3e-2, 0.1, 0.18])


def test_what_a_peer_does_not_take_is_refused_with_its_reason(install):
    install({**FILES["flashinfer"], **FILES["xformers"]})
    for config, said in (
        (RunConfig("xformers", shape(kv_heads=2)), "grouped heads"),
        (RunConfig("fa3", shape(dtype="fp32")), "takes fp16, bf16, fp8, got fp32"),
        (RunConfig("flashinfer", shape(), "backward"), "has forward only"),
        (RunConfig("fa2", shape(), parameters={"block_m": 64}), "no tuning parameters"),
    ):
        status = row_of(config)["status"]
        assert status.startswith("refused: ") and said in status


def test_the_gradient_goes_through_the_layout_of_the_package(install):
    install(FILES["fa2"])
    config = RunConfig("fa2", shape(kv_heads=2), "backward")
    tensors = inputs.of(config, "cpu", 0)
    bound = bind(config, *tensors)
    given = bound.call(no_stage)
    assert given[0].shape == (1, 24, 4, 16)  # as the package has it, so that no layout is changed in the timed call
    found = gradients.expect(*tensors, True).compare(bound.unpack(given))
    assert found["error_relative"] < 2 * found["error_eager_relative"]


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_flex_attention_is_ours_to_the_mask(mask, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # eager says what it computes
    config = RunConfig("flex_attention", shape(mask, kv_heads=2, nq=20, dtype="fp32"))
    q, k, v = inputs.of(config, "cpu", 0)
    found = accuracy.expect(q, k, v, mask == "causal").compare(bind(config, q, k, v).call(no_stage))
    assert found["error_relative"] < 1e-5


def test_which_backend_torch_takes_by_itself_is_noted():
    assert "left to itself, torch chooses " in row_of(RunConfig("sdpa_math", shape(dtype="fp32")))["note"]


def test_the_suite_holds_every_peer_on_the_same_shapes():
    configs = suites.peers()
    names = {config.implementation for config in configs}
    assert set(peers.PEERS) - set(peers.PACKED) <= names and {"flash2", "sdpa_flash", "sdpa_cudnn"} <= names
    assert {(s.batch * s.nq, s.heads * s.head_dim) for s in (config.shape for config in configs)} == {(16384, 2048)}
    bf16 = [config for config in configs if config.shape.dtype == "bf16"]
    assert len(bf16) == len(names) * 3 * 2 * 2
    backward = suites.suite("peers", "backward")
    assert {config.direction for config in backward} == {"backward"} and {"fa4", "sdpa_cudnn"} <= {
        config.implementation for config in backward} and not {c.shape.dtype for c in backward} - {"bf16", "fp16"}


def test_ours_are_judged_by_the_best_of_the_others_on_the_same_shape():
    def row(name, ns, low=0.9, high=1.2, nq=1):
        return {"implementation": name, "median_ns": ns, "p20_ns": ns and low * ns, "p80_ns": ns and high * ns,
                **{key: None for key in bench.SHAPE}, "nq": nq}

    rows = [row("flash2", 100.0), row("hopper", 50.0), row("fa4", 80.0), row("fa3", 90.0), row("gone", None),
            row("flash2", 10.0, nq=2)]
    found = {entry["implementation"]: entry for entry in bench.against_best(rows)}
    assert set(found) == {"flash2", "hopper"} and {entry["peer"] for entry in found.values()} == {"fa4"}
    assert found["flash2"]["ratio"] == 0.8 and found["hopper"]["ratio"] == 1.6
    # fa4 between 72 and 96, ours between 90 and 120: 72 / 120 to 96 / 90.
    assert (found["flash2"]["least"], found["flash2"]["most"]) == pytest.approx((0.6, 96 / 90))


def timed(config, ns, low=0.9, high=1.2):
    return {**config.key(), "parameters": parameters_text(config.parameters), "median_ns": ns, "p20_ns": low * ns,
            "p80_ns": high * ns}


def test_what_a_window_grouped_heads_and_packing_cost_is_told_by_the_plain_call():
    """4 tokens, causal: 10 pairs plain, 7 in a window of one key before, 6 + 1 in sequences of 3 and 1."""
    def one(name, ns, batch=1, n=4, kv_heads=2, mask="causal", **parameters):
        return timed(RunConfig(name, AttentionShape(batch, 2, n, n, 8, kv_heads, mask=mask), parameters=parameters), ns)

    lengths, halves = ({f"{x}_lengths": list(some) for x in "qk"} for some in ((3, 1), (2, 2)))
    plain = [one("hopper", 100.0), one("hopper", 60.0, batch=2, n=2), one("fa3", 50.0), one("hopper", 1.0, mask="full"),
             one("hopper", 130.0, turns=False), one("flash2", 900.0, batch=2, n=2)]
    costs = [one("hopper", 80.0, mask="window:1,0"), one("hopper", 125.0, kv_heads=1),
             one("flash_varlen", 84.0, batch=2, n=3, **lengths), one("flash_varlen", 75.0, batch=2, n=2, **halves),
             one("fa4_varlen", 75.0, batch=2, n=2, **halves)]  # whose plain call was not timed
    found = bench.against_plain([*costs, *plain])
    assert [(e["implementation"], e["plain"], e["plain_n"], round(e["ratio"], 6)) for e in found] == [
        ("hopper", "hopper", 4, 0.875),  # (7 / 80) / (10 / 100)
        ("hopper", "hopper", 4, 0.8),
        ("flash_varlen", "hopper", 2, round(7 / 84 / (6 / 60), 6)), ("flash_varlen", "hopper", 4, round(70 / 84, 6)),
        ("flash_varlen", "hopper", 2, 0.8)]
    assert (found[0]["least"], found[0]["most"]) == pytest.approx((0.7 * 90 / 96, 0.7 * 120 / 72))
    said = bench._result(table.make("timings", [{**row, "status": "ok"} for row in (*costs, *plain)]), [], {})
    assert "H2/1" in bench.text(said) and "0.875× the FLOP/s of plain hopper at N 4" in bench.text(said)


def test_packed_calls_are_compared_with_packed_calls_of_the_same_lengths():
    shape, lengths = AttentionShape(2, 2, 4, 4, 8), ({"q_lengths": [4, 4]}, {"q_lengths": [4, 1]})
    rows = [timed(RunConfig(name, shape, parameters=given), ns) for name, given, ns in (
        ("fa3", {}, 10.0), ("hopper", {}, 20.0), ("flash_varlen", lengths[0], 30.0), ("fa3_varlen", lengths[0], 60.0),
        ("flash_varlen", lengths[1], 40.0), ("fa3_varlen", lengths[1], 50.0))]
    found = [(e["implementation"], e["peer"], e["ratio"]) for e in bench.against_best(rows)]
    assert found == [("hopper", "fa3", 0.5), ("flash_varlen", "fa3_varlen", 2.0), ("flash_varlen", "fa3_varlen", 1.25)]


def test_ratios_and_spread_are_worked_out_from_the_rows():
    def row(name, n, ns, **more):
        return {"implementation": name, "nq": n, "median_ns": ns, "status": "ok" if ns else "missing: x", **more}

    rows = [row("flash2", 1, 100.0), row("peer", 1, 200.0), row("flash2", 2, 100.0), row("peer", 2, 50.0),
            row("gone", 1, None)]
    for entry in rows:
        entry.update({name: None for name in bench.SHAPE if name not in entry})
    found = bench.ratios(rows)
    # 200/100 and 50/100: a geometric mean of √(2 · 0.5) = 1 between 0.5 and 2.
    assert found == [{"implementation": "peer", "over": "flash2", "shapes": 2, "geometric_mean": 1.0, "least": 0.5,
                      "most": 2.0}]
    assert bench.spread({"p20_ns": 90.0, "p80_ns": 120.0, "median_ns": 100.0}) == pytest.approx(30.0)
    assert bench.spread({"p20_ns": None, "p80_ns": None, "median_ns": None}) is None


def test_a_fixed_order_of_sums_is_a_row_of_its_own():
    both = [c for c in suites.suite("peers", "backward") if c.implementation == "hopper"]
    assert len(both) == 2 * len({config.shape for config in both})
    rows = [{"implementation": "hopper", "parameters": text, "median_ns": ns, "p20_ns": ns, "p80_ns": ns,
             **{name: None for name in bench.SHAPE}} for text, ns in (("{}", 100.0), ('{"deterministic":true}', 200.0))]
    rows += [{**rows[0], "implementation": "fa4", "median_ns": 150.0, "p20_ns": 150.0, "p80_ns": 150.0}]
    assert [entry["ratio"] for entry in bench.against_best(rows)] == [1.5, 0.75]
    assert [entry["geometric_mean"] for entry in bench.ratios(rows)] == pytest.approx([1.5])
