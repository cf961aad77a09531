"""flash_attention's Hopper kernels on a real GPU, by name and by "auto": output, LSE and gradients against float64,
masks, sizes, strides, float8, determinism, graphs.

Allowed and computed as tests.gpu.test_kernels_gpu says, over its processes; the last test prints the cases and the
worst ratio of error to allowed error.
"""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import pytest

from tests.gpu.check_hopper import JUMPED, JUMPS, jump

torch = pytest.importorskip("torch")
from tests.gpu.test_kernels_gpu import (  # noqa: E402  needs torch
    DEVICE,
    FLOOR,
    WORKERS,
    Case,
    against_float64,
    gradients,
    graphed,
    make,
    ratio,
    result,
    work,
)
from tests.kernels import option_cases  # noqa: E402

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]


def _cases() -> list[Case]:
    every = [Case(dtype, (2, 4, 2, 413, 503, d), causal) for d in (256, 192, 128, 96, 64, 40, 8)
             for dtype in ("bf16", "fp16") for causal in (True, False)]
    shapes = [(1, 1, 1, 1, 1), (2, 2, 2, 5, 2), (1, 2, 2, 2, 5), (1, 2, 2, 63, 63), (1, 2, 2, 64, 64),
              (1, 2, 2, 65, 65), (1, 2, 2, 127, 129), (1, 2, 2, 128, 128), (1, 1, 1, 1023, 1024), (1, 2, 2, 3, 799),
              (1, 8, 2, 96, 160), (1, 6, 2, 200, 100), (1, 8, 1, 257, 257), (1, 2, 2, 1024, 1088)]
    every += [Case("bf16", (*shape, d), causal) for d in (64, 128) for shape in shapes for causal in (True, False)]
    every += [Case(dtype, (1, 2, 2, 2311, 2311, d), causal) for d in (64, 128) for dtype in ("bf16", "fp16")
              for causal in (True, False)]
    every += [Case("bf16", (1, 4, 2, *sizes, d), causal, options={"window": window}) for d in (64, 128)
              for sizes, causal, window in (
                  ((700, 700), True, (255, -1)), ((700, 700), True, (0, -1)), ((640, 640), False, (64, -1)),
                  ((700, 700), False, (100, 40)), ((300, 700), False, (-1, 30)), ((700, 300), False, (30, 5)),
                  ((512, 640), True, (129, -1)))]
    every += [Case("bf16", (2, 4, 4, 350, 350, d), True, layout) for d in (64, 128) for layout in
              ("tokens before heads", "fused qkv", "transposed tokens", "dout of a sum", "dout transposed",
               "dout not unit stride")]
    every += [Case("bf16", (2, 4, 2, 413, 503, 128), True, options={"deterministic": True}),
              Case("fp16", (1, 2, 2, 300, 340, 64), True, options={"scale": 0.7})]
    return every


CASES = _cases()


def measure(case: Case, implementation: str) -> dict[str, float]:
    """Error over allowed error of out, lse, dq, dk, dv."""
    from kernels import flash_attention

    q, k, v, dout = make(case)
    named = {"causal": case.causal, **case.options}
    flags = {"deterministic": named.pop("deterministic", False)}
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    exact, exact_lse = option_cases.formula(*doubles, **named)
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    eager, _ = option_cases.formula(*own, **named)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = flash_attention(*leaves, return_lse=True, implementation=implementation, **flags, **named)
    blind = torch.isinf(exact_lse)
    if not bool((torch.isneginf(lse) == blind).all()) or bool(out[blind].any()):
        return {"rows without keys": math.inf}
    found = {"out": ratio(out, exact, eager, 2, FLOOR[case.dtype]),
             "lse": ratio(lse[~blind], exact_lse[~blind], exact_lse[~blind].float(), 2, 1e-5)}
    for name, *three in zip(("dq", "dk", "dv"), gradients(out, leaves, dout), gradients(exact, doubles, dout.double()),
                            gradients(eager, own, dout)):
        found[name] = ratio(*three, 3, FLOOR[case.dtype])
    return found


def asked(implementation: str, *tensors: torch.Tensor, **options: Any) -> Any:
    from kernels import explain, flash_attention

    assert explain(*tensors, implementation=implementation, **options).implementation == "hopper"
    return flash_attention(*tensors, implementation=implementation, **options)


def deterministic(*tensors: torch.Tensor, **options: Any) -> Any:
    return asked("hopper", *tensors, deterministic=True, **options)


def many_heads() -> dict[str, float]:
    """B·H = 65,600 and 2.15·10⁹ elements a tensor: the first, a middle and the last heads."""
    q, k, v, dout = (torch.randn(65_600, 1, 512, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    assert q.numel() > 2**31
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = asked("auto", *leaves, causal=True, return_lse=True)
    grads = torch.autograd.grad(out, leaves, dout)
    some = torch.tensor([0, 1, 32_767, 32_768, 65_535, 65_536, 65_599], device=DEVICE)
    return against_float64([x.detach()[some] for x in (q, k, v)], dout[some], out[some], lse[some],
                           [g[some] for g in grads])


def far_tokens() -> dict[str, float]:
    """Two heads of a fused (1, N, 3, 1024, 64) tensor whose last token lies beyond 2³¹ elements."""
    tokens = 11_000
    fused = torch.empty(1, tokens, 3, 1024, 64, device=DEVICE, dtype=torch.bfloat16)
    fused[:, :, :, -2:] = torch.randn(1, tokens, 3, 2, 64, device=DEVICE)
    leaves = [fused[:, :, i, -2:].transpose(1, 2).requires_grad_() for i in range(3)]
    assert leaves[0].stride(2) * (tokens - 1) > 2**31
    dout = torch.randn(1, tokens, 2, 64, device=DEVICE).bfloat16().transpose(1, 2)
    out, lse = asked("auto", *leaves, causal=True, return_lse=True)
    return against_float64([x.detach() for x in leaves], dout, out, lse, torch.autograd.grad(out, leaves, dout))


def thirty_runs() -> int:
    """How many of 30 runs with deterministic=True differ from the first: GQA 8/2, causal and a window."""
    q, k, v, dout = make(Case("bf16", (2, 8, 2, 777, 1000, 128)))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def once() -> list[torch.Tensor]:
        found = []
        for window in ((-1, -1), (200, -1)):
            out, lse = asked("hopper", *leaves, causal=True, window=window, deterministic=True, return_lse=True)
            found += [out, lse, *torch.autograd.grad(out, leaves, dout)]
        return found

    first = once()
    return sum(not all(torch.equal(a, b) for a, b in zip(first, once())) for _ in range(29))


def large_scores() -> dict[str, float]:
    """Scores that grow from the block that is seen first to the last, so that its maximum must give way: by so little
    that the sum shows it in time, and by so much that P overflows and the tile is done again."""
    worst: dict[str, float] = {}
    for dtype in (torch.bfloat16, torch.float16):
        for top in (2.0, 12.0, 60.0):
            for causal in (False, True):
                torch.manual_seed(0)
                q = torch.rand(1, 2, 1000, 128, device=DEVICE).to(dtype)
                slope = torch.linspace(top, -top, 1000, device=DEVICE)[:, None]
                k, v = (slope * torch.rand(1, 2, 1000, 128, device=DEVICE)).to(dtype), torch.randn_like(q)
                exact, exact_lse = option_cases.formula(*(x.double() for x in (q, k, v)), causal=causal)
                eager, _ = option_cases.formula(q, k, v, causal=causal)
                out, lse = asked("hopper", q, k, v, causal=causal, return_lse=True)
                floor = FLOOR["bf16" if dtype == torch.bfloat16 else "fp16"]
                name = f"{dtype} {top} {'causal' if causal else 'full'}"
                worst[name] = max(ratio(out, exact, eager, 2, floor), ratio(lse, exact_lse, exact_lse.float(), 2, 1e-5))
    return worst


def jumps() -> dict[str, float]:
    """float16, whose P may overflow where a row's scores jump between blocks by 2^16 and more: by 2^10 to 2^40, at keys
    that are met second, last and between; plain, and as the middle one of three packed sequences."""
    from kernels import flash_attention_varlen

    worst: dict[str, float] = {}
    for d in (64, 128):
        for (nq, nk), causal, window in (JUMPED[i] for i in (0, 1, 2, 4)):
            for where, keys in JUMPS.items():
                torch.manual_seed(0)
                q, k, v = (torch.randn(1, 2, n, d, device=DEVICE, dtype=torch.float16) for n in (nq, nk, nk))
                jump(q, k, keys)
                mask = {"causal": causal, "window": window}
                exact, exact_lse = option_cases.formula(q.double(), k.double(), v.double(), **mask)
                eager, _ = option_cases.formula(q, k, v, **mask)
                calls = {"plain": asked("hopper", q, k, v, **mask, return_lse=True)}
                ends = [torch.tensor([0, 70, 70 + n, 270 + n], dtype=torch.int32, device=DEVICE) for n in (nq, nk)]
                others = [torch.randn(270, 2, d, device=DEVICE, dtype=torch.float16) for _ in range(3)]
                out, lse = flash_attention_varlen(
                    *(torch.cat((x[:70], y[0].transpose(0, 1), x[70:])) for x, y in zip(others, (q, k, v))), *ends,
                    max(200, nq), max(200, nk), **mask, return_lse=True)
                calls["packed"] = out[70:70 + nq].transpose(0, 1)[None], lse[:, 70:70 + nq][None]
                for form, (out, lse) in calls.items():
                    worst[f"{d} {nk} {causal} {window} {where} {form}"] = max(
                        ratio(out, exact, eager, 2, FLOOR["fp16"]), ratio(lse, exact_lse, exact_lse.float(), 2, 1e-5))
    return worst


def empty() -> dict[str, bool]:
    """Nothing to attend to, or nobody to attend: shapes, zeros and -inf."""
    found = {}
    for batch, nq, nk in ((0, 5, 5), (2, 0, 5), (2, 5, 0)):
        q, k, v = (torch.randn(batch, 2, n, 64, device=DEVICE, dtype=torch.bfloat16) for n in (nq, nk, nk))
        out, lse = asked("hopper", q, k, v, return_lse=True)
        found[f"{batch} {nq} {nk}"] = (out.shape == q.shape and lse.shape == q.shape[:3] and not bool(out.any())
                                       and bool(torch.isneginf(lse).all()))
    return found


def compiled() -> dict[str, float]:
    """torch.compile, whole graph, inductor: largest difference of values and gradients from the plain call."""
    from kernels import flash_attention

    q, k, v, _ = make(Case("bf16", (2, 4, 2, 200, 200, 64)))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = flash_attention(q * 2, k, v, causal=True, return_lse=True, implementation="hopper")
        return out.float().square().sum() + lse.sum()

    results = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        value = function(*leaves)
        results.append([value.detach(), *torch.autograd.grad(value, leaves)])
    return {name: ((a - b).abs().max() / b.abs().max()).item()
            for name, a, b in zip(("value", "dq", "dk", "dv"), *reversed(results))}


def in_float8() -> dict[str, float]:
    """Error over allowed of the public call: out 4% of its size (root mean square; e4m3 has 3 bits of mantissa), LSE
    5e-3; plain, compiled, by head and by block."""
    from kernels import flash_attention

    def attend(*tensors: torch.Tensor, **options: Any) -> Any:
        return flash_attention(*tensors, causal=True, return_lse=True, **options)

    worst = {}
    for d, shape, function in ((64, (), attend), (128, (2, 2), attend), (128, (2, 2, 5), attend), (256, (), attend),
                               (128, (2, 2), torch.compile(attend, fullgraph=True))):
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 2, 577, d, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(3))
        scales = {f"{name}_scale": 0.5 + torch.rand(shape or (1,), device=DEVICE) for name in "qkv"}
        out, lse = function(q, k, v, **scales)
        whole = [x.double() * (scales[f"{name}_scale"].double() if not shape else scales[f"{name}_scale"].double().view(
            2, 2, -1, 1).repeat_interleave(128 if len(shape) == 3 else 577, 2)[:, :, :577])
            for name, x in zip("qkv", (q, k, v))]
        exact, exact_lse = option_cases.formula(*whole, causal=True)
        error = ((out.double() - exact).square().mean() / exact.square().mean()).sqrt().item()
        name = f"D {d} scales {shape} {'compiled' if function is not attend else ''}"
        worst[name] = max(error / 0.04, (lse.double() - exact_lse).abs().max().item() / 5e-3)
    return worst


JOBS: dict[str, tuple[Any, ...]] = {
    "many heads": (many_heads,), "far tokens": (far_tokens,), "thirty runs": (thirty_runs,),
    "large scores": (large_scores,), "jumps": (jumps,), "empty": (empty,), "compiled": (compiled,),
    "graphed": (graphed, deterministic), "float8": (in_float8,),
}


@pytest.fixture(scope="module")
def started():
    """name -> Future of every case and job."""
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {name: pool.submit(work, *job) for name, job in JOBS.items()}
        yield jobs | {str(case): pool.submit(work, measure, case, ("hopper", "auto")[index % 2])
                      for index, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_lse_and_gradients_against_float64(case, started: dict[str, Future]):
    ratios = result(started, str(case))
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("name", ["many heads", "far tokens"])
def test_beyond_32_bits(name, started):
    ratios = result(started, name)
    assert set(ratios) == {"out", "lse", "dq", "dk", "dv"} and max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("name", ["large scores", "jumps", "float8"])
def test_values_that_are_hard(name, started):
    ratios = result(started, name)
    assert max(ratios.values()) <= 1, ratios


def test_thirty_runs_agree_bitwise(started):
    assert result(started, "thirty runs") == 0


def test_empty_tensors(started):
    assert all(result(started, "empty").values())


def test_torch_compile(started):
    assert max(result(started, "compiled").values()) < 1e-2


def test_cuda_graph(started):
    assert all(result(started, "graphed").values())


def test_report(started, capsys):
    rows = {str(case): started[str(case)].result()[0] or {"not run": math.inf} for case in CASES}
    rows |= {name: result(started, name) for name in ("many heads", "far tokens", "large scores", "jumps", "float8")}
    worst = max((max(ratios.values()), name) for name, ratios in rows.items())
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}: {len(rows)} cases, error over allowed "
              f"error at worst {worst[0]:.2f}: {worst[1]}")
    assert worst[0] <= 1
