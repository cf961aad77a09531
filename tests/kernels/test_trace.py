"""`python -m kernels check --trace`: faults put into a kernel's step are named, with their block."""

import pytest
import torch
import triton.language as tl

from kernels import UnsupportedCall, check, trace
from kernels.__main__ import main
from tests.kernels.oracle import tensors

SHAPE = (1, 2, 1, 40, 70, 32)  # blocks of 32: queries 0 to 31 and 32 to 39; keys 0 to 31, 32 to 63 and 64 to 69
BLOCK = 32  # the first key of the block where a fault begins


def by_block(right, wrong):
    """A step of flash1 that is ``right`` but for the block of keys that begins at BLOCK."""
    def step(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
        first = int(columns.handle.data.min())
        made = wrong if first == BLOCK else right
        return made(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal)
    return step


def scale_forgotten(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    return RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, 1.0, causal)


def mask_forgotten(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    return RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, False)


def maximum_too_high(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    """m, l and P all belong to a maximum that is 1 too high: the output would even be right."""
    o_new, m_new, l_new = RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal)
    return o_new, m_new + 1.0, l_new * 0.36787944117


def alpha_forgotten(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    """l grows by what it was, not by alpha times that."""
    o_new, m_new, _ = RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal)
    return o_new, m_new, RIGHT(o, m, l_i * 0, q, k, v, rows, columns, nk, highest, scale, causal)[2] + l_i


def sum_off(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    """1 more in the sum, whatever it was before."""
    o_new, m_new, l_new = RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal)
    return o_new * l_new[:, None] / (l_new + 1)[:, None], m_new, l_new + 1


def accumulator_off(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal):
    """What was in the accumulator before is taken twice; a probe with none before does not see it."""
    o_new, m_new, l_new = RIGHT(o, m, l_i, q, k, v, rows, columns, nk, highest, scale, causal)
    return o_new + o, m_new, l_new


RIGHT = trace._visit
FAULTS = {"S": scale_forgotten, "S, mask": mask_forgotten, "m": maximum_too_high, "alpha": alpha_forgotten,
          "l": sum_off, "accumulator": accumulator_off}


@pytest.fixture
def interpreted(device):
    if device == "cuda":
        pytest.skip("a compiled step cannot be replaced; the interpreter's can")
    return device


@pytest.mark.parametrize("fault", FAULTS)
def test_the_quantity_and_the_block_of_a_fault_are_named(fault, interpreted, monkeypatch):
    monkeypatch.setattr(trace, "_visit", by_block(RIGHT, FAULTS[fault]))
    found = trace.trace("flash1", *tensors(*SHAPE, torch.float32, interpreted), causal=True, scale=0.3)
    assert found is not None and found.quantity == fault.split(",")[0]
    assert (found.batch, found.head, found.queries, found.keys) == (0, 0, (0, 31), (BLOCK, BLOCK + 31))
    assert str(found).startswith(f"{found.quantity} first differs at batch 0, head 0, queries 0 to 31, keys 32 to 63:")


def test_a_forgotten_causal_mask_of_flash2_shows_in_the_first_block_that_crosses_the_diagonal(interpreted, monkeypatch):
    """Query i sees keys up to i + 37: the first 32 queries see all of keys 0 to 31, and not all of 32 to 63."""
    real = trace._walk

    def not_causal(*arguments):
        *rest, _, masked = arguments
        return real(*rest, False, masked)

    monkeypatch.setattr(trace, "_walk", not_causal)
    found = trace.trace("flash2", *tensors(1, 1, 1, 33, 70, 32, torch.float32, interpreted), causal=True)
    assert (found.quantity, found.queries, found.keys) == ("S", (0, 31), (32, 63)) and found.expected == -torch.inf


def test_m_that_starts_at_zero_is_named_where_scores_are_negative(interpreted, monkeypatch):
    real = trace._walk

    def from_zero(acc, l_i, m, *rest):
        return real(acc, l_i, tl.maximum(m, 0.0), *rest)

    monkeypatch.setattr(trace, "_walk", from_zero)
    q, k, v = tensors(1, 1, 1, 33, 33, 32, torch.float32, interpreted)
    found = trace.trace("flash2", q.abs(), -k.abs(), v)
    assert (found.quantity, found.queries, found.keys) == ("m", (0, 31), (0, 31)) and found.got == 0 > found.expected


@pytest.mark.parametrize("name", trace.TRACED)
def test_our_steps_are_right(name, device):
    steps = check.ladder((33,))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    right, said = check.trace(name, steps, dtype=dtype, device=device, head_dim=16)
    assert right, said
    assert said == f"{name}: S, m, alpha, l, accumulator and out are right in every block of 4 steps"


def test_a_fault_after_the_loop_is_told_apart(device, monkeypatch):
    real = trace.registry.call
    monkeypatch.setattr(trace.registry, "call", lambda *arguments, **options: real(*arguments, **options) * 1.1)
    found = trace.trace("flash2", *tensors(1, 1, 1, 20, 20, 16, torch.float32, device))
    assert found.quantity == "out" and "every step is right, yet out is" in str(found)


def test_from_the_command_line_and_what_has_no_trace(device, capsys):
    assert main(["check", "--trace", "--implementation", "flash1", "--lengths", "20", "--head-dim", "16", "--dtype",
                 "float16"]) == 0
    assert "flash1: S, m, alpha" in capsys.readouterr().out
    assert main(["check", "--trace", "--implementation", "naive", "--lengths", "20"]) == 1
    assert "naive: refused at N 20, full: implementation: expected one of flash1, flash2" in capsys.readouterr().out
    with pytest.raises(UnsupportedCall, match="head_dim 16 to 256, got 8"):
        trace.trace("flash1", *tensors(1, 1, 1, 8, 8, 8, torch.float32, device))
