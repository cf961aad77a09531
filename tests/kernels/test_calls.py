"""Calls that are refused, calls that are explained, and the registry."""

import subprocess
import sys

import pytest
import torch

import kernels
from kernels import UnsupportedCall, explain, flash_attention, naive_attention, plan, reference_attention, registry
from tests.kernels.oracle import Operators, tensors


def good(device, dtype=torch.float16, **sizes):
    shape = {"batch": 2, "heads": 4, "kv_heads": 2, "nq": 8, "nk": 8, "head_dim": 16, **sizes}
    return dict(zip("qkv", tensors(*shape.values(), dtype, device)))


BAD = {
    "three dimensions": (lambda t: t.update(q=t["q"][0]), "q: expected 4 dimensions.*\\(4, 8, 16\\)"),
    "not a tensor": (lambda t: t.update(k=[1.0]), "k: expected a torch.Tensor, got list"),
    "another dtype": (lambda t: t.update(k=t["k"].float()), "k: expected the dtype of q.*float16.*float32"),
    "integers": (lambda t: t.update({n: x.int() for n, x in t.items()}), "q: expected .*float.*int32"),
    "another device": (lambda t: t.update(v=t["v"].to("meta")), "v: expected the device of q.*meta"),
    "another batch": (lambda t: t.update(k=t["k"][:1], v=t["v"][:1]), "k: expected batch 2.*\\(1, 2, 8, 16\\)"),
    "another head_dim": (lambda t: t.update(k=t["k"][..., :8]), "k: expected head_dim 16.*\\(2, 2, 8, 8\\)"),
    "v unlike k": (lambda t: t.update(v=t["v"][:, :, :7]), "v: expected the shape of k.*\\(2, 2, 7, 16\\)"),
    "heads not in groups": (lambda t: t.update(q=t["q"][:, :3]), "k: expected a number of heads that divides the 3"),
}


@pytest.mark.parametrize("spoil, message", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("attention", [flash_attention, naive_attention, reference_attention, explain],
                         ids=lambda f: f.__name__)
def test_tensors_that_do_not_fit_are_refused_by_name(attention, spoil, message, device):
    arguments = good(device)
    spoil(arguments)
    with pytest.raises(UnsupportedCall, match=message):
        attention(**arguments)


@pytest.mark.parametrize("attention", [flash_attention, naive_attention, reference_attention, explain],
                         ids=lambda f: f.__name__)
@pytest.mark.parametrize("options, message", [
    ({"causal": 1}, "causal: expected True or False, got 1"),
    ({"scale": float("nan")}, "scale: expected a finite number"),
    ({"scale": "1"}, "scale: expected a finite number"), ({"scale": float("inf")}, "scale: .*inf")], ids=str)
def test_options_that_make_no_sense_are_refused(attention, options, message, device):
    with pytest.raises(UnsupportedCall, match=message):
        attention(**good(device), **options)


@pytest.mark.parametrize("options", [{"block_mask": torch.ones(1, 1)}, {"q_scale": torch.ones(1)},
                                     {"implementation": "flash9"}], ids=lambda options: next(iter(options)))
def test_options_not_supported_are_refused_by_name(options, device):
    for attention in (flash_attention, explain):
        with pytest.raises(UnsupportedCall) as refused:
            attention(**good(device), **options)
        assert refused.value.argument == next(iter(options))


def test_what_the_kernel_cannot_take_is_refused(device):
    with pytest.raises(UnsupportedCall, match="head_dim 1 to 256, got 257"):
        flash_attention(**good(device, head_dim=257))
    with pytest.raises(UnsupportedCall, match="float64"):
        flash_attention(**good(device, torch.float64))
    arguments = good(device)
    arguments["v"] = arguments["v"].mT.contiguous().mT
    with pytest.raises(UnsupportedCall, match=r"v: expected stride 1.*v\.contiguous\(\)"):
        flash_attention(**arguments)


@pytest.mark.parametrize("tuning, message", [
    ({"block_q": 64}, "tuning: expected keys among .*'block_q'"), ({"block_m": 48}, "block_m.*power of two, got 48"),
    ({"block_m": 8}, "16 to 256, got 8"), ({"num_warps": 0}, "num_warps.*positive whole number"),
    ({"num_stages": 1.5}, "num_stages.*whole number"), ({"tma": 1}, "tma.*True or False")], ids=str)
def test_tuning_is_used_or_refused(tuning, message, device):
    with pytest.raises(UnsupportedCall, match=message):
        flash_attention(**good(device), tuning=tuning)


def test_bfloat16_is_refused_in_the_interpreter(device):
    if device == "cuda":
        pytest.skip("only Triton's interpreter computes bfloat16 wrongly")
    with pytest.raises(UnsupportedCall, match="float16 or float32 in Triton's interpreter"):
        flash_attention(**good(device, torch.bfloat16))


def test_a_cpu_tensor_without_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setattr("kernels.flash2.INTERPRETED", False)
    monkeypatch.setattr("kernels.masked_softmax.INTERPRETED", False)
    with pytest.raises(UnsupportedCall, match="q: expected a CUDA tensor, got one on cpu"):
        flash_attention(**good("cpu"))
    with pytest.raises(UnsupportedCall, match=r"q: expected a CUDA tensor.*fold_scale=False"):
        naive_attention(**good("cpu"), causal=True, fold_scale=True)


def test_explain_says_what_the_call_does(device):
    told = explain(**good(device), causal=True, tuning={"block_m": 64, "num_stages": 1})
    assert told.implementation == "flash2"
    assert told.tuning["block_m"] == 64 and told.tuning["num_stages"] == 1
    assert any("block_m=64, num_stages=1" in sentence for sentence in told.why)
    with pytest.raises(UnsupportedCall, match="colour"):
        explain(**good(device), colour="red")


@pytest.mark.parametrize("cc", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("head_dim", [1, 16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_every_architecture_has_a_plan(cc, head_dim, causal):
    for dtype in (torch.bfloat16, torch.float32):
        chosen = plan.choose(**good("cpu", dtype, head_dim=head_dim), causal=causal, cc=cc, tuning=None)
        descriptors = dtype == torch.bfloat16 and cc in ((9, 0), (10, 0)) and head_dim % 8 == 0
        assert (chosen.path != "pointer") == descriptors


@pytest.mark.parametrize("spoil, reason", [
    (lambda t: t[..., :16], None),
    (lambda t: t[..., :15], "head size 15 is not a multiple of 16 bytes"),
    (lambda t: torch.nn.functional.pad(t, (0, 1))[..., :16], "stride of 34 bytes"),
    (lambda t: torch.nn.functional.pad(t, (0, 8))[..., 1:17], "address"),
    (lambda t: t[:, :1].expand(-1, 4, -1, -1), "stride of 0"),
])
def test_explain_says_why_not_descriptors(spoil, reason):
    q = spoil(torch.zeros(2, 4, 8, 16, dtype=torch.bfloat16))
    chosen = plan.choose(q, q, q, causal=False, cc=(9, 0), tuning=None)
    assert (chosen.path == "pointer") == (reason is not None)
    assert reason is None or any(reason in sentence for sentence in chosen.why)
    if reason:
        with pytest.raises(UnsupportedCall, match=reason):
            plan.choose(q, q, q, causal=False, cc=(9, 0), tuning={"tma": True})


def test_descriptors_need_the_hardware():
    q = torch.zeros(1, 1, 8, 16, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedCall, match=r"tma.*9\.0 or later, got 8\.9"):
        plan.choose(q, q, q, causal=False, cc=(8, 9), tuning={"tma": True})


ATTENTION = [info for info in registry.KERNELS if info.kind == "attention" and "float32" in info.dtypes]


@pytest.mark.parametrize("info", ATTENTION, ids=lambda info: info.name)
@pytest.mark.parametrize("causal", [False, True])
def test_the_registry_calls_every_implementation_alike(info, causal, device):
    arguments, names = good(device, torch.float32), []

    def stage(name):
        names.append(name)
        return torch.no_grad()

    out = registry.call(info.name, **arguments, causal=causal, scale=0.3, stage=stage)
    expected, _ = reference_attention(**arguments, causal=causal, scale=0.3)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert tuple(names) == info.stages_for(causal)


def test_the_registry_refuses_what_an_implementation_lacks(device):
    arguments = good(device)
    with pytest.raises(UnsupportedCall, match=r"naive, naive_folded, flash1, flash2.*'flash7'"):
        registry.get("flash7")
    with pytest.raises(UnsupportedCall, match=r"tuning.*naive has no tuning"):
        registry.call("naive", **arguments, tuning={"block_m": 64})
    with pytest.raises(UnsupportedCall, match=r"name: .*'decode'\. Use prepare_decode"):
        registry.call("decode", **arguments)
    with pytest.raises(UnsupportedCall, match=r"tuning.*naive_folded has no tuning"):
        registry.prepare_backward("naive_folded", **arguments, dout=arguments["q"], tuning={"key_block_m": 64})
    with pytest.raises(UnsupportedCall, match="return_lse"):
        registry.call("naive", **arguments, return_lse=True)
    out, lse = registry.call("flash2", **arguments, return_lse=True)
    assert out.shape == (2, 4, 8, 16) and lse.shape == (2, 4, 8)


@pytest.mark.parametrize("name", ["naive", "naive_folded", "flash2"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("nq, nk", [(20, 30), (30, 20), (1, 1)], ids=str)
def test_a_prepared_backward_equals_autograd(name, causal, nq, nk, device):
    arguments = good(device, torch.float32, nq=nq, nk=nk)
    dout = torch.randn(2, 4, nq, 16, generator=torch.Generator().manual_seed(5)).to(device)
    leaves = [x.clone().requires_grad_() for x in arguments.values()]
    expected = torch.autograd.grad(registry.call(name, *leaves, causal=causal, scale=0.4), leaves, dout)
    names = []
    prepared = registry.prepare_backward(name, **arguments, dout=dout, causal=causal, scale=0.4)
    got = prepared(lambda stage: names.append(stage) or torch.no_grad())
    assert tuple(names) == prepared.stages == registry.get(name).stages_for(causal, "backward")
    for mine, theirs in zip(got, expected):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name, fold, operators", [
    ("naive", False, ["bmm", "bmm", "_softmax_backward_data", "masked_fill_", "mul", "bmm", "bmm"]),
    ("naive_folded", True, ["bmm", "bmm", "_softmax_backward_data", "baddbmm", "baddbmm"])])
def test_a_prepared_naive_backward_runs_one_operator_a_stage(name, fold, operators, device):
    arguments = good(device, torch.float32)
    prepared = registry.prepare_backward(name, **arguments, dout=torch.ones_like(arguments["q"]), causal=True)
    with Operators() as ran:
        prepared()
    assert [operator for operator, _ in ran.seen] == operators and len(operators) == len(prepared.stages)


def test_a_prepared_backward_says_what_it_runs_with(device):
    arguments = good(device)
    given = {"key_block_m": 16, "key_block_n": 32, "query_block_m": 64, "query_block_n": 16, "tma": False}
    prepared = registry.prepare_backward("flash2", **arguments, dout=arguments["q"], tuning=given)
    assert given.items() <= prepared.parameters.items() and prepared.parameters["one_pass"] is False
    one = registry.prepare_backward("flash2", **arguments, dout=arguments["q"], tuning={"one_pass": True, "tma": False})
    assert one.stages == ("prepare", "keys", "finish") and one.parameters["one_pass"] is True
    for mine, theirs in zip(prepared(), one()):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-3)
    with pytest.raises(UnsupportedCall, match=r"dout: expected shape"):
        registry.prepare_backward("flash2", **arguments, dout=arguments["q"][:, :, :3])


def test_a_prepared_decode_says_what_it_runs_with(device):
    arguments = good(device, torch.float32, nq=1, nk=40)
    lengths = torch.tensor([40, 13], dtype=torch.int32, device=device)
    new = torch.zeros(2, 2, 1, 16, device=device)
    for options, stages in (({}, ("attention", "merge")), ({"k_new": new, "v_new": new}, ("append", "attention"))):
        names = []
        splits = 2 if not options else 1
        prepared = registry.prepare_decode(
            arguments["q"], arguments["k"].clone(), arguments["v"].clone(), cache_seqlens=lengths - len(options) // 2,
            tuning={"num_splits": splits, "block_n": 16}, **options)
        out = prepared(lambda stage, to=names: to.append(stage) or torch.no_grad())
        assert tuple(names) == prepared.stages == stages and out.shape == (2, 4, 1, 16)
        assert prepared.parameters["num_splits"] == splits and prepared.parameters["block_n"] == 16
    pages = torch.zeros(6, 16, 2, 16, device=device)
    table = torch.arange(6, dtype=torch.int32, device=device).view(2, 3)
    prepared = registry.prepare_decode(arguments["q"], pages, pages, cache_seqlens=lengths, page_table=table)
    assert prepared.parameters["page_size"] == 16
    with pytest.raises(UnsupportedCall, match="colour"):
        registry.prepare_decode(arguments["q"], pages, pages, cache_seqlens=lengths, colour=1)


def test_importing_the_package_loads_neither_torch_nor_triton():
    code = "import sys, kernels, kernels.registry; print('torch' in sys.modules, 'triton' in sys.modules, dir(kernels))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("False False") and "flash_attention" in said
    assert kernels.flash_attention is flash_attention and kernels.reference.reference_attention is reference_attention
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kernels.nonsense


def test_blocks_that_do_not_fit_the_device_are_refused(device, monkeypatch):
    from triton.runtime.errors import OutOfResources

    from kernels import flash2

    def launch(*arguments, **options):
        raise OutOfResources(262_144, 232_448, "shared memory")

    monkeypatch.setattr(flash2, "_forward", {(4,): launch})
    with pytest.raises(UnsupportedCall, match=r"tuning: expected blocks that fit.*shared memory"):
        flash_attention(**good(device, batch=1, nq=64, nk=64), tuning={"block_m": 64})
