"""What the registry says of the Hopper kernels, where no GPU is needed: switches, backward, what is refused by name."""

import pytest
import torch

from kernels import UnsupportedCall, hopper_plan, registry
from kernels import hopper_backward_plan as backward
from kernels.options import Options


def test_a_switch_turns_off_one_field_and_nothing_else():
    q = torch.empty(1, 2, 4096, 128, dtype=torch.bfloat16, device="meta")
    plain = hopper_plan.choose(q, q, Options())
    for name in hopper_plan.SWITCHES:
        off = hopper_plan.choose(q, q, Options(), {name: False})
        assert {**plain.parameters, name: False} == off.parameters and plain.parameters[name] is True
        assert hopper_plan.choose(q, q, Options(), {name: True}) == plain
    for tuning in ({"block_m": 64}, {"turns": 0}, {"ahead": False}):
        with pytest.raises(UnsupportedCall, match="tuning: expected any of turns, overlap, fixed, true or false"):
            hopper_plan.choose(q, q, Options(), tuning)


def test_a_backward_is_named_as_flash2s_is():
    """128 queries a step and 2 · 64 keys a tile, dQ added by TMA; then in two passes of 3 · 64."""
    one = registry._hopper_parameters(backward.parameters(backward.Tuning(128, "reduce")), False)
    assert {"key_block_m": 128, "key_block_n": 128, "one_pass": True, "deterministic": False}.items() <= one.items()
    assert not any(name.startswith("query_") for name in one)
    two = registry._hopper_parameters(backward.parameters(backward.Tuning(
        64, "none", consumers=3, query_consumers=3, block_n=64, query_stages=4)), True)
    assert {"key_block_n": 192, "query_block_m": 192, "query_block_n": 64, "query_num_stages": 4, "one_pass": False,
            "deterministic": True}.items() <= two.items()
    info = registry.get("hopper")
    assert info.stages_for(True, "backward", one_pass=True) == ("prepare", "keys", "finish")
    assert info.stages_for(True, "backward") == ("prepare", "keys", "queries")
    assert all(isinstance(value, (bool, int)) for value in (one | two).values())


def test_what_the_backward_does_not_take_is_named_before_anything_runs(device):
    q = torch.zeros(1, 2, 64, 64, dtype=torch.float16, device=device)
    with pytest.raises(UnsupportedCall, match="tuning: expected any of block_m"):
        registry.prepare_backward("hopper", q, q, q, q, tuning={"key_block_m": 64})
    if device == "cpu":
        with pytest.raises(UnsupportedCall, match="interpreter does not run Gluon"):
            registry.prepare_backward("hopper", q, q, q, q)


def test_a_prepared_backward_runs_the_forward_once_and_hands_on_what_it_was_given(monkeypatch):
    """The kernels stand aside: what they are called with is what is looked at."""
    q, k = torch.randn(1, 4, 8, 64, dtype=torch.float16), torch.randn(1, 2, 8, 64, dtype=torch.float16)
    dout, seen = torch.randn_like(q), []
    monkeypatch.setattr(registry, "parameters", lambda *given, **named: seen.append(("parameters", named)) or {})
    monkeypatch.setattr(registry, "call", lambda *given, **named: seen.append(("call", named)) or (q + 1, q[..., 0]))
    monkeypatch.setattr(backward, "supports", lambda *given: None)
    monkeypatch.setattr(backward, "backward", lambda *given, **named: seen.append((given, named)) or given)
    ready = registry.prepare_backward("hopper", q, k, k, dout, causal=True, deterministic=True)
    assert ready.stages[0] == "prepare" and ready.parameters["deterministic"] is True
    assert [name for name, _ in seen] == ["parameters", "call"] and seen[1][1]["return_lse"] is True
    ready()
    ready("stage")
    (given, named), (_, staged) = seen[2:]
    assert given[0] is dout and torch.equal(given[4], q + 1) and torch.equal(given[5], q[..., 0])
    assert named["scale"] == 64**-0.5 and named["causal"] and named["deterministic"] and staged["stage"] == "stage"
    assert len(seen) == 4
