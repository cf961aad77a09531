"""Split-KV decoding against float64 attention written out here, one sequence and one query at a time."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from kernels import decode
from kernels.decode import choose_splits, choose_tuning, flash_attention_decode
from kernels.errors import UnsupportedCall

NAN = float("nan")


def oracle(q, k, v, lengths, *, causal=True, window=(-1, -1), softcap=0.0, scale=None):
    """float64 O and LSE; k, v (B, Hk, N, D), of which the first lengths[b] keys count."""
    batch, heads, nq, dim = q.shape
    out = torch.zeros(batch, heads, nq, dim, dtype=torch.float64)
    lse = torch.full((batch, heads, nq), float("-inf"), dtype=torch.float64)
    scale = dim**-0.5 if scale is None else scale
    left, right = window[0], 0 if causal else window[1]
    for b, length in enumerate(lengths):
        for h in range(heads):
            keys, values = (x[b, h // (heads // k.shape[1]), :length].double() for x in (k, v))
            for i in range(nq):
                place = i + length - nq
                low = 0 if left < 0 else max(0, place - left)
                high = length if right < 0 else min(length, place + right + 1)
                if low < high:
                    x = keys[low:high] @ q[b, h, i].double() * scale
                    x = softcap * torch.tanh(x / softcap) if softcap else x
                    out[b, h, i] = torch.softmax(x, 0) @ values[low:high]
                    lse[b, h, i] = torch.logsumexp(x, 0)
    return out, lse


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def assert_close(got, want):
    """float32: 2e-6 of the largest reference value; float16: 1e-3, as P and O are rounded to 2^-11."""
    (o, lse), (o_want, lse_want) = got, want
    tolerance = (2e-6 if o.dtype == torch.float32 else 1e-3) * max(1.0, o_want.abs().max().item())
    torch.testing.assert_close(o.double(), o_want, rtol=0, atol=tolerance)
    torch.testing.assert_close(lse.double(), lse_want, rtol=2e-7, atol=2e-5)  # -inf only against -inf, NaN never


def check(q, k, v, lengths, **options):
    names = ("causal", "window", "softcap", "scale")
    got = flash_attention_decode(q, k, v, cache_seqlens=int32(lengths), return_lse=True, **options)
    assert_close(got, oracle(q, k, v, lengths, **{name: options[name] for name in names if name in options}))


def paged(k, v, page_size, seed=0, spare=3):
    """The caches (B, Hk, N, D) cut into pages in shuffled order; pages that nobody owns hold NaN."""
    batch, kv_heads, n, dim = k.shape
    per = math.ceil(n / page_size)
    order = torch.randperm(batch * per + spare, generator=torch.Generator().manual_seed(seed))[:batch * per]
    table = order.reshape(batch, per)
    pages = [torch.full((batch * per + spare, page_size, kv_heads, dim), NAN, dtype=k.dtype) for _ in range(2)]
    for b in range(batch):
        for key in range(n):
            for store, cache in zip(pages, (k, v)):
                store[table[b, key // page_size], key % page_size] = cache[b, :, key]
    return pages[0], pages[1], table.to(torch.int32)


def test_worked_by_hand():
    # One query, head size 1, scale 1: scores ln 1, ln 2, ln 5 give weights 1/8, 2/8, 5/8 and the sum 8.
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor([1.0, 2.0, 5.0, 7.0]).log().reshape(1, 1, 4, 1)
    v = torch.tensor([8.0, 16.0, -8.0, 100.0]).reshape(1, 1, 4, 1)
    for splits in (1, 2):
        o, lse = flash_attention_decode(q, k, v, cache_seqlens=int32([3]), scale=1.0, num_splits=splits,
                                        return_lse=True)
        assert o.item() == pytest.approx(1 + 4 - 5, abs=1e-6)
        assert lse.item() == pytest.approx(math.log(8), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (6, 2), (3, 3)], ids=["8/2", "6/2", "3/3"])
@pytest.mark.parametrize("nq", [1, 3, 16])
def test_ragged_lengths_and_groups(dtype, heads, kv_heads, nq):
    lengths = [75, 0, 2]  # 0 and 2: rows that see nothing
    k, v = (random(3, kv_heads, 75, 32, dtype=dtype, seed=s) for s in (1, 2))
    check(random(3, heads, nq, 32, dtype=dtype), k, v, lengths, tuning={"block_n": 32}, num_splits=2)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("splits", [1, 3])
def test_lengths_around_the_tile(n, splits):
    k, v = (random(1, 1, n, 16, seed=s) for s in (1, 2))
    check(random(1, 2, 1, 16), k, v, [n], tuning={"block_n": 16}, num_splits=splits)


@pytest.mark.parametrize("dim", [1, 8, 40, 59, 80, 128, 256])
def test_head_sizes(dim):
    k, v = (random(1, 1, 40, dim, seed=s) for s in (1, 2))
    check(random(1, 2, 2, dim), k, v, [40], num_splits=2)


@pytest.mark.parametrize("options", [
    {"causal": False}, {"window": (6, -1)}, {"window": (0, 0)}, {"causal": False, "window": (20, 1)},
    {"causal": False, "window": (-1, 3)}, {"softcap": 3.0}, {"scale": 0.5}, {"scale": -0.3},
    {"softcap": 2.0, "scale": 4.0},
], ids=str)
def test_options(options):
    k, v = (random(2, 2, 70, 16, seed=s) for s in (1, 2))
    check(random(2, 4, 5, 16), k, v, [70, 3], tuning={"block_n": 16}, num_splits=3, **options)


@pytest.mark.parametrize("page_size", [16, 24])
def test_pages_in_any_order(page_size):
    k, v = (random(3, 2, 90, 16, dtype=torch.float16, seed=s) for s in (1, 2))
    q, lengths = random(3, 4, 2, 16, dtype=torch.float16), [90, 0, 41]
    k_pages, v_pages, table = paged(k, v, page_size)
    table[1] = 2**30  # entries behind a length are never followed
    table[2, math.ceil(41 / page_size):] = -1
    for splits in (1, 2):
        got = flash_attention_decode(q, k_pages, v_pages, cache_seqlens=int32(lengths), page_table=table,
                                     num_splits=splits, tuning={"block_n": 32}, return_lse=True)
        assert_close(got, oracle(q, k, v, lengths))


def test_splits_agree():
    k, v = (random(2, 1, 130, 16, seed=s) for s in (1, 2))
    q, lengths = random(2, 4, 1, 16), [130, 20]  # 20 keys in 7 parts: most parts are empty
    for splits in (1, 2, 7, None):
        check(q, k, v, lengths, num_splits=splits, tuning={"block_n": 16})


def test_scores_far_below_zero():
    """Scores one apart, inside a tile and between tiles: their differences must stay exact."""
    steps = torch.arange(33) // 11 * 2**-10  # times 16 · 64: scores -239616, -239615 and -239614, exact in float32
    k = (steps - 234.0)[None, None, :, None].repeat(1, 1, 1, 16)
    q = torch.full((1, 1, 1, 16), 64.0)
    v = random(1, 1, 33, 16)
    check(q, k, v, [33], num_splits=1, tuning={"block_n": 16}, scale=1.0)
    o, lse = flash_attention_decode(q, k, v, cache_seqlens=int32([33]), scale=1.0, num_splits=3, return_lse=True,
                                    tuning={"block_n": 16})
    o_want, lse_want = oracle(q, k, v, [33], scale=1.0)
    step = 2**-6  # of float32 at 239614: the parts' log-sum-exps are rounded to it, and so are their weights
    torch.testing.assert_close(o.double(), o_want, rtol=0, atol=step * v.abs().max().item())
    torch.testing.assert_close(lse.double(), lse_want, rtol=0, atol=step)


@pytest.mark.parametrize("splits", [1, 3])
def test_nan_behind_the_length_does_not_leak(splits):
    k, v = (random(3, 2, 64, 16, seed=s) for s in (1, 2))
    lengths = [50, 0, 17]
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = NAN, NAN
    check(random(3, 4, 2, 16), k, v, lengths, num_splits=splits, tuning={"block_n": 16})


def test_keys_before_the_window_are_not_read():
    k, v = (random(1, 1, 64, 16, seed=s) for s in (1, 2))
    k[:, :, :64 - 2 - 8], v[:, :, :64 - 2 - 8] = NAN, NAN  # the first of 2 queries stands at key 62 and sees 54 and up
    check(random(1, 1, 2, 16), k, v, [64], window=(8, -1), num_splits=2, tuning={"block_n": 16})


@pytest.mark.parametrize("page_size", [0, 24])
def test_append(page_size):
    """New keys land behind the old ones and nowhere else, and count in the length."""
    lengths, n_new = [0, 30, 45], 3
    k, v = (random(3, 2, 48, 16, seed=s) for s in (1, 2))
    k_new, v_new = (random(3, n_new, 2, 16, seed=s).transpose(1, 2) for s in (3, 4))
    k_want, v_want = k.clone(), v.clone()
    for b, length in enumerate(lengths):
        k_want[b, :, length:length + n_new], v_want[b, :, length:length + n_new] = k_new[b], v_new[b]
    q, seqlens = random(3, 4, n_new, 16), int32(lengths)
    if page_size:
        k_cache, v_cache, table = paged(k, v, page_size)
        k_after, v_after = k_cache.clone(), v_cache.clone()
        for b, length in enumerate(lengths):
            for t in range(n_new):
                place = table[b, (length + t) // page_size].item(), (length + t) % page_size
                k_after[place], v_after[place] = k_new[b, :, t], v_new[b, :, t]
    else:
        k_cache, v_cache, table = k.clone(), v.clone(), None
        k_after, v_after = k_want, v_want
    got = flash_attention_decode(q, k_cache, v_cache, cache_seqlens=seqlens, page_table=table, k_new=k_new, v_new=v_new,
                                 num_splits=2, return_lse=True, tuning={"block_n": 16})
    assert_close(got, oracle(q, k_want, v_want, [length + n_new for length in lengths]))
    torch.testing.assert_close(k_cache, k_after, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v_cache, v_after, rtol=0, atol=0, equal_nan=True)
    assert seqlens.tolist() == lengths


def test_lengths_that_do_not_fit_show():
    """A length beyond the cache, or below 0, gives NaN there and only there; the cache stays as it was."""
    k, v = (random(3, 1, 32, 16, seed=s) for s in (1, 2))
    before = k.clone(), v.clone()
    new = random(3, 1, 2, 16, seed=3)
    q = random(3, 2, 1, 16)
    for splits in (1, 2):
        k, v = before[0].clone(), before[1].clone()
        o, lse = flash_attention_decode(q, k, v, cache_seqlens=int32([31, -1, 5]), k_new=new, v_new=new,
                                        num_splits=splits, return_lse=True, tuning={"block_n": 16})
        assert o[:2].isnan().all() and lse[:2].isnan().all()
        assert_close((o[2:], lse[2:]), oracle(q[2:], k[2:], v[2:], [7]))
        assert torch.equal(k[:2], before[0][:2]) and torch.equal(v[:2], before[1][:2])


def test_strides():
    """Caches stored (B, N, H, D), K and V as slices of one fused tensor, Q transposed."""
    fused = random(2, 40, 2, 3, 16)
    k, v = fused[..., 1, :].transpose(1, 2), fused[..., 2, :].transpose(1, 2)
    assert k.stride() != v.contiguous().stride()
    check(random(2, 3, 4, 16).transpose(1, 2), k, v, [40, 21], num_splits=2)


def test_empty_batch_and_empty_cache():
    o = flash_attention_decode(torch.zeros(0, 2, 1, 16), torch.zeros(0, 1, 8, 16), torch.zeros(0, 1, 8, 16),
                               cache_seqlens=int32([]))
    assert o.shape == (0, 2, 1, 16)
    check(random(1, 2, 1, 16), torch.zeros(1, 1, 0, 16), torch.zeros(1, 1, 0, 16), [0])


def call(**changes):
    given = {"q": torch.zeros(2, 4, 1, 16), "k_cache": torch.zeros(2, 2, 32, 16), "v_cache": torch.zeros(2, 2, 32, 16),
             "cache_seqlens": int32([1, 2]), **changes}
    return flash_attention_decode(given.pop("q"), given.pop("k_cache"), given.pop("v_cache"), **given)


PAGES = torch.zeros(5, 16, 2, 16)


@pytest.mark.parametrize("argument, changes", [
    ("q", {"q": torch.zeros(2, 4, 17, 16)}),
    ("q", {"q": torch.zeros(2, 4, 0, 16)}),
    ("q", {"q": torch.zeros(2, 4, 16)}),
    ("q", {"q": torch.zeros(2, 4, 1, 272)}),
    ("q", {"q": torch.zeros(2, 4, 1, 16, dtype=torch.float64)}),
    ("q", {"q": torch.zeros(2, 4, 1, 16, dtype=torch.bfloat16)}),
    ("q", {"q": torch.zeros(2, 4, 1, 16, requires_grad=True)}),
    ("q", {"q": torch.zeros(2, 4, 1, 32)[..., ::2]}),
    ("k_cache", {"q": torch.zeros(2, 3, 1, 16)}),
    ("k_cache", {"k_cache": torch.zeros(3, 2, 32, 16)}),
    ("k_cache", {"k_cache": torch.zeros(2, 2, 32, 16, dtype=torch.float16)}),
    ("v_cache", {"v_cache": torch.zeros(2, 2, 31, 16)}),
    ("v_cache", {"v_cache": torch.zeros(2, 2, 16, 32).transpose(2, 3)}),
    ("v_cache", {"v_cache": None}),
    ("cache_seqlens", {"cache_seqlens": torch.tensor([1, 2])}),
    ("cache_seqlens", {"cache_seqlens": int32([1])}),
    ("cache_seqlens", {"cache_seqlens": torch.zeros(2, dtype=torch.int32, device="meta")}),
    ("page_table", {"k_cache": PAGES, "v_cache": PAGES, "page_table": torch.zeros(2, 2)}),
    ("page_table", {"k_cache": PAGES, "v_cache": PAGES, "page_table": int32([0, 1])}),
    ("k_cache", {"k_cache": PAGES[:, :15], "v_cache": PAGES[:, :15], "page_table": int32([[0], [1]])}),
    ("v_new", {"k_new": torch.zeros(2, 2, 1, 16)}),
    ("k_new", {"v_new": torch.zeros(2, 2, 1, 16)}),
    ("k_new", {"k_new": torch.zeros(2, 2, 33, 16), "v_new": torch.zeros(2, 2, 33, 16)}),
    ("v_new", {"k_new": torch.zeros(2, 2, 1, 16), "v_new": torch.zeros(2, 1, 1, 16)}),
    ("window", {"window": (-2, 0)}),
    ("window", {"window": 3}),
    ("softcap", {"softcap": -1.0}),
    ("scale", {"scale": float("inf")}),
    ("num_splits", {"num_splits": 0}),
    ("num_splits", {"num_splits": 1.0}),
    ("causal", {"causal": None}),
    ("tuning", {"tuning": {"blocks": 3}}),
    ("tuning['block_n']", {"tuning": {"block_n": 48}}),
])
def test_refused_by_name(argument, changes, monkeypatch):
    monkeypatch.setattr(decode, "_attend", None)  # nothing may be launched
    with pytest.raises(UnsupportedCall) as caught:
        call(**changes)
    assert caught.value.argument == argument
    assert caught.value.expected and caught.value.got


def test_choose_splits():
    assert choose_splits(tiles=4096, keys=32768, sm_count=132) == 1 or choose_splits(4096, 32768, 132) == 2
    assert choose_splits(tiles=8, keys=200, sm_count=132) == 1  # too short to cut
    assert choose_splits(tiles=8, keys=32768, sm_count=132) == 33  # 8 · 33 = two programs on each of 132 SMs
    assert choose_splits(tiles=8, keys=4096, sm_count=132) == 16  # parts of 256 keys
    many = choose_splits(tiles=256, keys=32768, sm_count=132)
    waves = 256 * many / (3 * 132)
    assert waves >= 4 and waves / math.ceil(waves) > 0.95


COMPILE = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels import decode

names = decode._attend.arg_names
for cubin, capability, element, head_dim, page_size, tuning in json.load(sys.stdin):
    constants = dict(SOFTCAP=False, PAGE_SIZE=page_size, HEAD_DIM=head_dim, BLOCK_M=tuning["block_m"],
                     BLOCK_N=tuning["block_n"], BLOCK_D=decode._block_d(head_dim))
    types = {"q": "*" + element, "k": "*" + element, "v": "*" + element, "o": "*fp32", "lse": "*fp32",
             "lengths": "*i32", "table": "*i32", "scale": "fp32", "softcap": "fp32",
             **dict.fromkeys(constants, "constexpr")}
    signature = {name: types.get(name, "i32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names)
               if signature[name][0] == "*" or name.startswith("stride")}
    source = ASTSource(decode._attend, signature, {(names.index(k),): v for k, v in constants.items()}, aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32),
                            options={"num_warps": tuning["num_warps"], "num_stages": tuning["num_stages"]})
    open(cubin, "wb").write(kernel.asm["cubin"])
    print(kernel.metadata.shared)
"""
COMPILED = [(capability, "bf16", 128, 4, 0) for capability in (80, 89, 90, 100)] + [
    (90, "bf16", 128, 4, 24), (90, "fp16", 256, 64, 0), (89, "fp16", 256, 64, 0), (89, "fp32", 128, 4, 0),
    (90, "fp32", 128, 4, 0)]  # capability, element, head size, rows, page size


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """{configuration: (machine code as text, bytes of shared memory)}, compiled without a GPU by a process without
    the interpreter."""
    import triton.backends.nvidia as backend

    folder = tmp_path_factory.mktemp("cubin")
    plan = [(str(folder / f"{i}.cubin"), capability, element, head_dim, page_size,
             asdict(choose_tuning(rows, head_dim, 4 if element == "fp32" else 2, bool(page_size))))
            for i, (capability, element, head_dim, rows, page_size) in enumerate(COMPILED)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], input=json.dumps(plan), capture_output=True, text=True,
                          cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cuobjdump = Path(backend.__file__).parent / "bin" / "cuobjdump"
    sass = [subprocess.run([cuobjdump, "-sass", row[0]], capture_output=True, text=True, check=True).stdout
            for row in plan]
    return dict(zip(COMPILED, zip(sass, map(int, done.stdout.split()))))


@pytest.mark.parametrize("configuration", COMPILED, ids=str)
def test_compiles_without_spills(configuration, compiled):
    """Nothing spilled, 16-byte asynchronous loads, tensor cores but for float32, shared memory that sm_89 has."""
    sass, shared = compiled[configuration]
    assert not re.findall(r"\b(?:STL|LDL)\b", sass)
    assert "LDGSTS.E.BYPASS.128" in sass
    assert configuration[1] == "fp32" or "HMMA" in sass
    assert shared <= 99 * 1024
