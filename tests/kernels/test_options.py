"""Each option of flash_attention against float64: output, LSE, gradients, also of the LSE and the sinks."""

import numpy as np
import pytest
import torch

from kernels import UnsupportedCall, autograd, explain, flash_attention, philox, reference_attention, registry
from tests.kernels import option_cases
from tests.kernels.oracle import FLOOR, tensors

SIZES = (2, 2, 1, 45, 70, 16)
HALF = ("window", "all")


def against(attention, inputs, dtype, options, dout, dlse):
    """out, lse and the gradients of sum(out · dout) + sum(lse · dlse) over rows that see a key."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    extra = [options["sinks"]] if "sinks" in options else []
    out, lse = attention(*leaves, **options)
    seen = torch.where(torch.isinf(lse), 0.0, lse)
    loss = (out * dout.to(dtype)).sum() + (seen * dlse.to(lse.dtype)).sum()
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, leaves + extra)]


@pytest.mark.parametrize("name, dtype", [*((name, torch.float32) for name in option_cases.NAMES),
                                         *((name, torch.float16) for name in HALF)], ids=str)
def test_output_lse_and_gradients_against_float64(name, dtype, device):
    inputs = tensors(*SIZES, dtype, device)
    options = option_cases.build(name, 2, 2, 45, 70, device)
    dout, dlse = torch.randn(2, 2, 45, 16, device=device), torch.randn(2, 2, 45, device=device)
    exact = against(reference_attention, inputs, torch.float64, options, dout, dlse)
    eager = against(option_cases.formula, inputs, dtype, options, dout, dlse)
    found = against(lambda *a, **o: flash_attention(*a, return_lse=True, **o), inputs, dtype, options, dout, dlse)
    blind = torch.isinf(exact[1])
    assert torch.equal(found[1] == -torch.inf, blind) and not found[0][blind].any() and not found[2][blind].any()
    for what, got, right, plain in zip(("out", "lse", "dq", "dk", "dv", "dsinks"), found, exact, eager):
        assert torch.isfinite(got[~blind] if what == "lse" else got).all()
        got, right, plain = (torch.where(torch.isinf(x), 0.0, x).double() for x in (got, right, plain))
        floor = 1e-5 if what == "lse" else FLOOR[dtype]
        times = 0 if what == "lse" else 2 if what == "out" else 3
        allowed = times * (plain - right).abs().max() + floor * right.abs().max()
        assert (got - right).abs().max() <= allowed, what


@pytest.mark.parametrize("name", option_cases.NAMES)
def test_two_ways_to_write_the_definition_agree(name):
    inputs = tensors(2, 2, 1, 13, 21, 8, torch.float64, "cpu")
    options = option_cases.build(name, 2, 2, 13, 21, "cpu")
    for a, b in zip(reference_attention(*inputs, **options), option_cases.formula(*inputs, **options)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("counter, key, words", [  # published with the generator (Random123, kat_vectors)
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1))])
def test_philox_is_the_published_generator(counter, key, words):
    got = philox.philox(tuple(np.array(word) for word in counter), key[1] << 32 | key[0])
    assert tuple(int(word) for word in got) == words


@pytest.mark.parametrize("blocks", [(16, 16), (64, 32)], ids=str)
def test_dropout_keeps_the_same_elements_whatever_the_blocks(blocks, device):
    q, k, _ = tensors(2, 2, 2, 40, 16, 16, torch.float32, device)
    v = torch.eye(16, device=device).expand(2, 2, 16, 16)  # O is then P itself, dropped and scaled
    tuning = dict(zip(("block_m", "block_n"), blocks))
    p = flash_attention(q, k, v, dropout_p=0.4, seed=12345, tuning=tuning)
    keep = np.stack([[philox.kept(12345, 0.4, b, h, np.arange(40), 16) for h in range(2)] for b in range(2)])
    keep = torch.from_numpy(keep).to(device)
    assert torch.equal(p != 0, keep) and 0.55 < keep.float().mean() < 0.65
    torch.testing.assert_close(p, torch.softmax(q @ k.mT / 4, -1) * keep / 0.6, rtol=1e-5, atol=1e-6)


def test_a_seed_is_drawn_where_none_is_given(device):
    q, k, v = tensors(1, 1, 1, 8, 8, 16, torch.float32, device)

    def once(**options):
        return flash_attention(q, k, v, dropout_p=0.5, **options)

    assert not torch.equal(once(), once())
    torch.manual_seed(3)
    first = once()
    torch.manual_seed(3)
    assert torch.equal(once(), first)
    on_device = torch.tensor([9], device=device)
    assert torch.equal(once(seed=9), once(seed=on_device)) and not torch.equal(once(seed=9), once(seed=10))


def test_blocks_outside_the_window_are_not_read(device):
    """Queries 64 to 95 with a window of 16 to the left see no key below 48: blocks of 32 below 32 hold NaN here."""
    q, k, v = tensors(1, 1, 1, 32, 96, 16, torch.float32, device)
    expected = flash_attention(q, k, v, window=(16, 0))
    k[:, :, :32], v[:, :, :32] = float("nan"), float("nan")
    tuning = {"block_m": 32, "block_n": 32}
    torch.testing.assert_close(flash_attention(q, k, v, window=(16, 0), tuning=tuning), expected)
    assert torch.isnan(flash_attention(q, k, v, window=(40, 0), tuning=tuning)).any()


def test_what_a_hidden_key_holds_does_not_matter(device):
    inputs = tensors(1, 2, 1, 20, 40, 16, torch.float32, device)
    mask = torch.arange(40, device=device)[None] % 3 > 0
    poisoned = [x.clone() for x in inputs]
    poisoned[1][:, :, ~mask[0]], poisoned[2][:, :, ~mask[0]] = float("nan"), float("inf")
    results = []
    for given in (inputs, poisoned):
        leaves = [x.clone().requires_grad_() for x in given]
        out = flash_attention(*leaves, key_padding_mask=mask)
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    for clean, got in zip(*results):
        assert torch.equal(clean, got)


def test_a_row_without_keys_is_zero_even_with_a_sink(device):
    inputs = [x.requires_grad_() for x in tensors(2, 2, 2, 5, 9, 16, torch.float32, device)]
    sinks = torch.ones(2, device=device, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.bool, device=device)
    mask[1] = False
    out, lse = flash_attention(*inputs, key_padding_mask=mask, sinks=sinks, return_lse=True)
    assert not out[1].any() and (lse[1] == -torch.inf).all() and torch.isfinite(lse[0]).all()
    grads = torch.autograd.grad(out.sum() + lse[0].sum(), [*inputs, sinks])
    assert all(torch.isfinite(g).all() for g in grads) and not any(g[1].any() for g in grads[:3])
    assert grads[3].abs().min() > 0


@pytest.mark.parametrize("shape", [(50,), (45, 50), (1, 45, 1), (2, 1, 45, 50), (1, 2, 1, 50)], ids=str)
def test_a_bias_of_any_strides(shape, device):
    q, k, v = tensors(2, 2, 2, 45, 50, 16, torch.float32, device)
    bias = torch.randn(shape[::-1], device=device).permute(*range(len(shape))[::-1])
    whole = bias.expand(2, 2, 45, 50).contiguous()
    assert torch.equal(flash_attention(q, k, v, attn_bias=bias), flash_attention(q, k, v, attn_bias=whole))


def test_offsets_beyond_32_bits(device):
    """Two tokens, 2³¹ elements and more apart, in q, k, v, dO and the bias: memory that is never touched costs none."""
    if device == "cuda":
        pytest.skip("tests/gpu has tensors of that size")
    far = 2**31 + 64
    base = torch.empty(far + 5 * 16, dtype=torch.float16)
    near = [torch.randn(1, 1, 2, 16).half() for _ in range(4)]
    spread = [base.as_strided((1, 1, 2, 16), (0, 0, far, 1), 16 * i) for i in range(4)]
    bias = base.as_strided((2, 2), (far, 1), 16 * 4)
    small = torch.tensor([[0.5, -1.0], [2.0, 0.25]]).half()
    for place, value in zip([*spread, bias], [*near, small]):
        place.copy_(value)
    results = []
    for (q, k, v, dout), added in ((near, small), (spread, bias)):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = flash_attention(*leaves, attn_bias=added)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, dout)])
    for a, b in zip(*results):
        assert torch.equal(a, b)


WRONG = {
    "attn_bias": [torch.zeros(7, 8), torch.zeros(8, 8, dtype=torch.bool), torch.zeros(8, 8, requires_grad=True), 3],
    "key_padding_mask": [torch.ones(2, 8), torch.ones(1, 8, dtype=torch.bool)],
    "alibi_slopes": [torch.ones(3), torch.ones(4, requires_grad=True), torch.ones(4, dtype=torch.int32)],
    "sinks": [torch.ones(2, 4), torch.ones(2)], "softcap": [-1.0, float("nan"), "x"], "dropout_p": [1.0, -0.1],
    "seed": [-1, 1.5, 2**63, torch.zeros(2, dtype=torch.int64)], "window": [(1,), (-2, 0), (0.5, 0)],
    "block_mask": [torch.ones(1, 1)],
    "q_scale": [torch.ones(1)], "k_scale": [torch.ones(1)], "v_scale": [torch.ones(1)]}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values],
                         ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_what_an_option_cannot_be_is_refused_by_name(name, value, device):
    q, k, v = tensors(2, 4, 2, 8, 8, 16, torch.float32, device)
    value = value.to(device) if isinstance(value, torch.Tensor) else value
    options = {name: value} | ({"dropout_p": 0.5} if name == "seed" else {})
    for attention in (flash_attention, explain):
        with pytest.raises(UnsupportedCall) as refused:
            attention(q, k, v, **options)
        assert refused.value.argument == name and refused.value.expected


def test_explain_names_the_options(device):
    q, k, v = tensors(2, 4, 2, 8, 8, 16, torch.float32, device)
    said = " ".join(explain(q, k, v, window=(3, 0), softcap=5.0, dropout_p=0.1).why)
    assert "window (3, 0): blocks of keys outside it are skipped" in said and "softcap, dropout_p" in said
    assert "sinks" not in said and "window" not in " ".join(explain(q, k, v, causal=True).why)


def test_the_registry_knows_who_takes_an_option(device):
    q, k, v = tensors(1, 2, 1, 8, 8, 16, torch.float32, device)
    options = {"softcap": 5.0, "window": (4, 0)}
    assert torch.equal(registry.call("flash2", q, k, v, **options), flash_attention(q, k, v, **options))
    with pytest.raises(UnsupportedCall, match=r"softcap: expected no such option .*Use flash2"):
        registry.call("naive", q, k, v, softcap=5.0)
    sinks = torch.ones(2, device=device)
    *grads, dsinks = registry.prepare_backward("flash2", q, k, v, q, sinks=sinks, dropout_p=0.2, seed=4)()
    leaves = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    out = flash_attention(*leaves[:3], sinks=leaves[3], dropout_p=0.2, seed=4)
    for got, expected in zip((*grads, dsinks), torch.autograd.grad(out, leaves, q)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_options_compile_whole(device):
    q, k, v = (x.requires_grad_() for x in tensors(2, 2, 1, 20, 30, 16, torch.float32, device))
    options = option_cases.build("all", 2, 2, 20, 30, device)

    def layer(q, k, v):
        return flash_attention(q * 2, k, v, **options).square().sum()

    expected = layer(q, k, v)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v)
    assert torch.equal(compiled, expected)
    wanted = [q, k, v, options["sinks"]]
    for got, right in zip(torch.autograd.grad(compiled, wanted), torch.autograd.grad(expected, wanted)):
        assert torch.equal(got, right)
    drawn = torch.compile(lambda: flash_attention(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(drawn(), drawn())


def test_the_operator_keeps_its_promises_with_options(device):
    leaves = [x.requires_grad_() for x in tensors(1, 2, 1, 5, 7, 16, torch.float32, device)]
    bias = torch.zeros(1, 2, 5, 7, device=device)
    padding = torch.ones(1, 7, dtype=torch.bool, device=device)
    slopes, sinks = torch.ones(1, 2, device=device), torch.ones(2, device=device, requires_grad=True)
    rng = torch.tensor([5], device=device)
    torch.library.opcheck(torch.ops.flashscope.flash2.default,
                          (*leaves, 0.25, False, [], 3, 0, 4.0, 0.1, rng, bias, padding, slopes, sinks))
    assert autograd.OPTIONS.count(",") == 8
