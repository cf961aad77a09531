"""flash_attention under autograd, torch.compile, fake tensors and autocast, in the interpreter or on a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import UnsupportedCall, autograd, flash2_backward, flash_attention, reference_attention
from tests.kernels.oracle import tensors


def leaves(device, dtype=torch.float32, sizes=(1, 4, 2, 20, 35, 16)):
    return [x.requires_grad_() for x in tensors(*sizes, dtype, device)]


def exact(inputs, loss, **options):
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    value = loss(*reference_attention(*doubles, **options))
    return torch.autograd.grad(value, doubles, allow_unused=True, materialize_grads=True)


LOSSES = {
    "output": lambda out, lse: out.square().sum(),
    "lse": lambda out, lse: lse.sin().sum(),
    "both": lambda out, lse: out.sum() + (lse * lse).sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradients_of_output_and_lse(loss, causal, device):
    inputs = leaves(device)
    out, lse = flash_attention(*inputs, causal=causal, scale=0.3, return_lse=True, deterministic=True)
    found = torch.autograd.grad(loss(out, lse), inputs, allow_unused=True, materialize_grads=True)
    for got, expected in zip(found, exact(inputs, loss, causal=causal, scale=0.3)):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5)


def test_only_the_tensors_that_ask_get_a_gradient(device):
    q, k, v = tensors(1, 2, 2, 9, 9, 16, torch.float32, device)
    flash_attention(q, k.requires_grad_(), v).sum().backward()
    assert q.grad is None and v.grad is None and k.grad.abs().max() > 0


def test_without_a_gradient_the_kernel_is_launched_directly(device, monkeypatch):
    inputs = leaves(device)
    expected = flash_attention(*inputs)
    monkeypatch.setattr(autograd, "flash2", None)
    with torch.no_grad():
        assert torch.equal(flash_attention(*inputs), expected)
    assert torch.equal(flash_attention(*(x.detach() for x in inputs)), expected)
    with pytest.raises(TypeError):
        flash_attention(*inputs)


def test_the_callers_blocks_are_used_with_a_gradient_too(device, monkeypatch):
    from kernels import flash2

    seen, forward = [], flash2.forward

    def watch(q, k, v, plan, **options):
        seen.append(plan.tuning)
        return forward(q, k, v, plan, **options)

    monkeypatch.setattr(flash2, "forward", watch)
    flash_attention(*leaves(device), tuning={"block_m": 64, "tma": False})
    assert seen[0].block_m == 64 and seen[0].tma is False
    for tuning, message in (({"block_q": 1}, "block_q"), ({"num_stages": 1.5}, "num_stages"), ({"block_m": 48}, "48")):
        with pytest.raises(UnsupportedCall, match=message):
            flash_attention(*leaves(device), tuning=tuning)


def test_deterministic_reaches_the_backward(device, monkeypatch):
    asked = []
    launch = flash2_backward.flash2_backward
    monkeypatch.setattr(flash2_backward, "flash2_backward",
                        lambda *a, **o: asked.append(o["deterministic"]) or launch(*a, **o))
    for wanted in (True, False):
        flash_attention(*leaves(device), deterministic=wanted).sum().backward()
    assert asked == [True, False]


def test_a_second_derivative_is_refused(device):
    inputs = leaves(device)
    (grad,) = torch.autograd.grad(flash_attention(*inputs).sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        torch.autograd.grad(grad.sum(), inputs)


def test_compiled_whole_gives_the_same(device):
    inputs = leaves(device)

    def twice(q, k, v):
        out, lse = flash_attention(q * 2, k, v, causal=True, return_lse=True)
        return out.sum(-1) + lse

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    expected = twice(*inputs)
    assert torch.equal(compiled(*inputs), expected)
    for got, wanted in zip(torch.autograd.grad(compiled(*inputs).sum(), inputs),
                           torch.autograd.grad(expected.sum(), inputs)):
        assert torch.equal(got, wanted)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs), expected)


def test_the_operator_keeps_its_promises(device):
    """torch.library.opcheck: schema, fake implementation and autograd agree with what the operator does."""
    torch.library.opcheck(torch.ops.flashscope.flash2.default, (*leaves(device), 0.25, False, [], -1, 0))


def test_fake_tensors_have_shapes_and_launch_nothing(device):
    with FakeTensorMode():
        q, k, v = (torch.empty(2, heads, 7, 16, dtype=torch.float16, device=device) for heads in (4, 2, 2))
        out, lse = flash_attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and out.dtype == torch.float16
    assert lse.shape == (2, 4, 7) and lse.dtype == torch.float32


def test_autocast_decides_the_dtype(device):
    inputs = leaves(device)
    with torch.autocast(device, torch.float16):
        out = flash_attention(*inputs)
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in inputs)
    with torch.no_grad():
        assert torch.equal(out, flash_attention(*(x.half() for x in inputs)))
