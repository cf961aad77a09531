"""flash_attention on float8 tensors where there is no Hopper: what it refuses by name, and what would work."""

import pytest
import torch

from kernels import UnsupportedCall, api, explain, flash_attention, hopper_fp8_plan


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(torch.float8_e4m3fn)


def given(**changes):
    q, k = fp8(2, 4, 100, 128), fp8(2, 2, 300, 128)
    return {"q": q, "k": k, "v": k.clone(), **changes}


@pytest.mark.parametrize(("change", "says"), [
    ({}, "q: expected compute capability 9.0 .*bfloat16"),
    ({"implementation": "flash2"}, "implementation: expected 'auto' or 'hopper_fp8'.*'flash2'"),
    ({"implementation": "hopper"}, "implementation: expected 'auto' or 'hopper_fp8'"),
    ({"window": (5, 0)}, r"window: .*hopper_fp8 takes causal, scale.*in bfloat16"),
    ({"softcap": 3.0}, "softcap: "), ({"tuning": {"block_m": 64}}, "tuning: "),
    ({"block_mask": torch.ones(1, 1, dtype=torch.bool)}, "block_mask: "),
    ({"k": torch.zeros(2, 2, 300, 128)}, "k: expected the dtype of q"),
    ({"k_scale": 2.0}, "expected float32 tensors"),
    ({"q_scale": torch.ones(2, 4, requires_grad=True)}, "no backward"),
    ({"causal": 1}, "causal: ")], ids=str)
def test_what_is_refused_by_name(change, says, monkeypatch):
    monkeypatch.setattr(api, "capability", lambda _: (8, 0))
    for function in (flash_attention, explain):
        with pytest.raises(UnsupportedCall, match=says):
            function(**given(**change))


def test_float8_asked_for_by_name_with_other_tensors():
    q = torch.zeros(1, 1, 8, 64)
    with pytest.raises(UnsupportedCall, match=r"q: expected one of torch\.float8_e4m3fn"):
        flash_attention(q, q, q, implementation="hopper_fp8")


def test_a_scale_with_other_tensors():
    q = torch.zeros(1, 1, 8, 64)
    with pytest.raises(UnsupportedCall, match=r"q_scale: .*torch\.float8_e4m3fn"):
        flash_attention(q, q, q, q_scale=torch.ones(1))


def test_on_a_hopper_the_call_reaches_the_kernel(monkeypatch):
    calls = []

    def forward(*tensors, **options):
        calls.append((tensors, options))
        return torch.zeros(2, 4, 100, 128, dtype=torch.bfloat16), torch.zeros(2, 4, 100)

    monkeypatch.setattr(api, "capability", lambda _: (9, 0))
    monkeypatch.setattr(hopper_fp8_plan, "forward", forward)
    call = given(q_scale=torch.ones(1), k_scale=torch.ones(2, 2, 3), causal=True)
    out, lse = flash_attention(**call, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.shape == (2, 4, 100)
    (tensors, options), = calls
    assert all(a is call[name] for a, name in zip(tensors, "qkv"))
    assert options["k_scale"] is call["k_scale"] and options["v_scale"] is None and options["causal"] is True
    assert options["scale"] == pytest.approx(128**-0.5)
    told = explain(**call)
    assert (told.implementation, told.path, told.tuning["block_scales"]) == ("hopper_fp8", "tma", True)
    with pytest.raises(UnsupportedCall, match="head sizes 64, 128, 256, not 96"):
        flash_attention(fp8(1, 1, 8, 96), fp8(1, 1, 8, 96), fp8(1, 1, 8, 96))
