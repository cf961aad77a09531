"""Split-KV flash decoding (Dao, Haziza, Massa, Sizov 2023, "Flash-Decoding"): few queries against a long KV cache.

With 1 to 16 queries a sequence the work is reading the cache once; what counts is that enough programs read at once.
So the visible keys of a sequence are cut into `splits` parts, one program each, and a second small kernel merges the
partial results through their log-sum-exps. The query heads that share a KV head form the rows of one tile, so the cache
is read once a group, not once a head.

Three kernels: `_append` writes new keys and values into the cache, `_attend` reads the cache, `_merge` joins the parts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensor

from kernels.checks import check_flag, resolve_scale
from kernels.errors import UnsupportedCall

LOG2_E = tl.constexpr(math.log2(math.e))
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_QUERIES = 16
MAX_HEAD_DIM = 256
MAX_SPLITS = 256
MAX_KEYS = 2**30  # key positions plus a window stay inside int32
MIN_PAGE_SIZE = 16


@triton.jit
def _places(keys, inside, table, stride_page, stride_n, PAGE_SIZE: tl.constexpr):
    """Element offsets (int64) of key positions inside one head's cache; PAGE_SIZE 0 means not paged."""
    if PAGE_SIZE == 0:
        places = keys.to(tl.int64) * stride_n
    else:
        page = tl.load(table + keys // PAGE_SIZE, mask=inside, other=0)
        places = page.to(tl.int64) * stride_page + (keys % PAGE_SIZE).to(tl.int64) * stride_n
    return places


@triton.jit(do_not_specialize=["batches", "nq", "n_new", "kv_heads", "group", "splits", "row_blocks", "capacity",
                               "left", "right"])
def _attend(q, k, v, o, lse, lengths, table, scale, softcap, stride_qb, stride_qh, stride_qn, stride_kb,
            stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_tb, batches, nq, n_new, kv_heads, group,
            splits, row_blocks, capacity, left, right, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
            HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """One part of one sequence's keys for BLOCK_M of the group·nq rows that share a KV head.

    stride_kb and stride_vb step over sequences, or over pages when PAGE_SIZE > 0. Writes a normalised partial output
    and its natural log-sum-exp at index `split` of contiguous (splits, B, Hq, Nq[, D]); a part without visible keys
    writes 0 and -inf.
    """
    program = tl.program_id(0)
    row_block = program % row_blocks  # neighbours read the same keys, the second time from L2
    split = program // row_blocks % splits
    batch_head = program // row_blocks // splits
    batch = (batch_head // kv_heads).to(tl.int64)
    kv_head = batch_head % kv_heads

    old_length = tl.load(lengths + batch)
    valid = (old_length >= 0) & (old_length <= capacity - n_new)
    length = tl.where(valid, old_length + n_new, 0)
    low = tl.maximum(length - nq - left, 0)  # the oldest key that the first query sees
    part = tl.cdiv(tl.cdiv(length - low, splits), BLOCK_N) * BLOCK_N
    begin = low + split * part
    end = tl.minimum(begin + part, length)

    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = rows < group * nq
    query = rows % nq
    head = (kv_head * group + rows // nq).to(tl.int64)
    middle = query + length - nq  # bottom-right: the last query stands at the last key
    offsets_d = tl.arange(0, BLOCK_D)
    in_columns = (offsets_d < HEAD_DIM)[None, :]
    q_rows = q + batch * stride_qb + head * stride_qh + query * stride_qn
    q_tile = tl.load(q_rows[:, None] + offsets_d[None, :], mask=in_rows[:, None] & in_columns, other=0.0)

    k += kv_head.to(tl.int64) * stride_kh
    v += kv_head.to(tl.int64) * stride_vh
    table += batch * stride_tb
    if PAGE_SIZE == 0:
        k += batch * stride_kb
        v += batch * stride_vb
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < end
        # What lies behind the length may be NaN, and 0 · NaN is NaN: never load it, neither K nor V.
        loaded = inside[:, None] if HEAD_DIM == BLOCK_D else inside[:, None] & in_columns
        places = _places(keys, inside, table, stride_kb, stride_kn, PAGE_SIZE)
        k_tile = tl.load(k + places[:, None] + offsets_d[None, :], mask=loaded, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        if SOFTCAP:
            # cap · tanh(x / cap) with tanh(y) = 1 - 2 / (1 + exp(2y)), which overflows to the right limits.
            s = softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * s / softcap)))
        distance = keys[None, :] - middle[:, None]
        s = tl.where(inside[None, :] & (distance <= right) & (distance >= -left), s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        # A row that has seen no key yet has m = -inf, and -inf - (-inf) is NaN: subtract 0 instead, every term is 0.
        reference = tl.where(m_new == float("-inf"), 0.0, m_new)
        # Subtract before going to base 2: scores far from 0 but close to each other keep their difference exactly.
        p = tl.exp2((s - reference[:, None]) * LOG2_E)
        alpha = tl.exp2((m - reference) * LOG2_E)
        total = total * alpha + tl.sum(p, 1)
        places = _places(keys, inside, table, stride_vb, stride_vn, PAGE_SIZE)
        v_tile = tl.load(v + places[:, None] + offsets_d[None, :], mask=loaded, other=0.0)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
        m = m_new

    # A length that does not fit the cache cannot be refused without waiting for the device; it must not pass unseen.
    unknown = tl.where(valid, 0.0, float("nan"))
    lines = ((split * batches + batch) * (kv_heads * group) + head) * nq + query
    tl.store(lse + lines, m + tl.log(total) + unknown, mask=in_rows)
    o_tile = acc / tl.where(total == 0.0, 1.0, total)[:, None] + unknown
    tl.store(o + lines[:, None] * HEAD_DIM + offsets_d[None, :], o_tile.to(o.dtype.element_ty),
             mask=in_rows[:, None] & in_columns)


@triton.jit(do_not_specialize=["splits", "rows"])
def _merge(partial_o, partial_lse, o, lse, splits, rows, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
           BLOCK_S: tl.constexpr, ALL_SPLITS: tl.constexpr):
    """One row: O = Σ exp(lse_s - LSE) · O_s with LSE = ln Σ exp(lse_s) over splits s; (splits, rows, D) → (rows, D)."""
    row = tl.program_id(0).to(tl.int64)
    every = tl.arange(0, ALL_SPLITS)
    parts = tl.load(partial_lse + every.to(tl.int64) * rows + row, mask=every < splits, other=float("-inf"))
    m = tl.max(parts, 0)
    reference = tl.where(m == float("-inf"), 0.0, m)
    total = tl.sum(tl.exp(parts - reference), 0)

    offsets_d = tl.arange(0, BLOCK_D)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in tl.range(0, splits, BLOCK_S):
        some = start + tl.arange(0, BLOCK_S)
        lines = some.to(tl.int64) * rows + row
        weight = tl.exp(tl.load(partial_lse + lines, mask=some < splits, other=float("-inf")) - reference)
        part = tl.load(partial_o + lines[:, None] * HEAD_DIM + offsets_d[None, :],
                       mask=(some < splits)[:, None] & (offsets_d < HEAD_DIM)[None, :], other=0.0)
        acc += tl.sum(weight[:, None] * part, 0)
    tl.store(lse + row, reference + tl.log(total))
    tl.store(o + row * HEAD_DIM + offsets_d, (acc / tl.where(total == 0.0, 1.0, total)).to(o.dtype.element_ty),
             mask=offsets_d < HEAD_DIM)


@triton.jit(do_not_specialize=["n_new", "kv_heads", "capacity"])
def _append(k_new, v_new, k, v, lengths, table, stride_xb, stride_xh, stride_xn, stride_yb, stride_yh, stride_yn,
            stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_tb, n_new, kv_heads, capacity,
            PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """One new token of one head: key and value go to position lengths[batch] + token, never outside the cache."""
    program = tl.program_id(0)
    kv_head = (program % kv_heads).to(tl.int64)
    token = program // kv_heads % n_new
    batch = (program // kv_heads // n_new).to(tl.int64)
    old_length = tl.load(lengths + batch)
    inside = (old_length >= 0) & (old_length <= capacity - n_new)
    offsets_d = tl.arange(0, BLOCK_D)
    mask = offsets_d < tl.where(inside, HEAD_DIM, 0)
    position = old_length + token + tl.zeros([BLOCK_D], tl.int32)
    table += batch * stride_tb
    k += kv_head * stride_kh
    v += kv_head * stride_vh
    if PAGE_SIZE == 0:
        k += batch * stride_kb
        v += batch * stride_vb
    token = token.to(tl.int64)
    x = tl.load(k_new + batch * stride_xb + kv_head * stride_xh + token * stride_xn + offsets_d, mask=mask)
    y = tl.load(v_new + batch * stride_yb + kv_head * stride_yh + token * stride_yn + offsets_d, mask=mask)
    tl.store(k + _places(position, mask, table, stride_kb, stride_kn, PAGE_SIZE) + offsets_d, x, mask=mask)
    tl.store(v + _places(position, mask, table, stride_vb, stride_vn, PAGE_SIZE) + offsets_d, y, mask=mask)


@dataclass(frozen=True)
class Tuning:
    """How `_attend` is compiled: rows and keys of a tile, warps of a program, stages of the load pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def choose_tuning(rows: int, head_dim: int, element_bytes: int, paged: bool) -> Tuning:
    """Key and value tiles of 16 KiB, two of each in flight: 72 KiB of shared memory a program, three programs an SM."""
    block_n = 16 * 1024 // (_block_d(head_dim) * element_bytes)
    block_m = 16 if element_bytes == 4 or rows <= 16 else 32  # 64 rows would spill
    # float32 multiplies without tensor cores and needs more warps; a page number is one more load ahead of the tile's.
    return Tuning(block_m, min(128, max(16, block_n)), 8 if element_bytes == 4 else 4, 5 if paged else 3)


def choose_splits(tiles: int, keys: int, sm_count: int) -> int:
    """Parts to cut `keys` into, each of at least 256 keys, so that `tiles` · parts programs fill the device.

    Fewer tiles than SMs: two programs an SM; on an H200 more only add partials to merge (B4 N16k: 70 µs with 8 parts,
    84 with 61; B1 N32k: 41 with 32, 52 with 128). Otherwise at least four waves of three programs an SM, so that
    sequences of different lengths even out, and of those the fullest last wave.
    """
    most = min(MAX_SPLITS, max(1, keys // 256))
    if tiles < sm_count:
        return min(most, 2 * sm_count // tiles)
    slots = 3 * sm_count
    wanted = min(most, triton.cdiv(4 * slots, tiles))

    def idle(splits: int) -> float:
        waves = tiles * splits / slots
        return math.ceil(waves) / waves

    return min(range(wanted, min(most, 2 * wanted) + 1), key=idle)


def _block_d(head_dim: int) -> int:
    return max(16, triton.next_power_of_2(head_dim))


@lru_cache
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _expect(holds: bool, argument: str, expected: str, got: object, remedy: str = "") -> None:
    if not holds:
        raise UnsupportedCall(argument, expected, str(got), remedy)


def _check_tensors(q, k_cache, v_cache, cache_seqlens, page_table, k_new, v_new) -> None:
    """Refuses by name what shapes, dtypes, devices and strides show; lengths and page numbers stay on the device."""
    named = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "cache_seqlens": cache_seqlens, "page_table": page_table,
             "k_new": k_new, "v_new": v_new}
    optional = ("page_table", "k_new", "v_new")
    for name, tensor in named.items():
        _expect(isinstance(tensor, torch.Tensor) or (tensor is None and name in optional), name, "a torch.Tensor",
                type(tensor).__name__)
    _expect(q.ndim == 4, "q", "shape (B, Hq, Nq, D)", tuple(q.shape))
    batch, heads, nq, head_dim = q.shape
    _expect(1 <= nq <= MAX_QUERIES, "q", f"1 to {MAX_QUERIES} queries a sequence", f"Nq = {nq}",
            "flash_attention takes longer queries.")
    _expect(1 <= head_dim <= MAX_HEAD_DIM, "q", f"a head size of 1 to {MAX_HEAD_DIM}", f"D = {head_dim}")
    _expect(q.dtype in DTYPES, "q", "dtype float16, bfloat16 or float32", q.dtype)
    if isinstance(_attend, triton.JITFunction):
        _expect(q.is_cuda, "q", "a CUDA tensor", f"one on {q.device}",
                "Set TRITON_INTERPRET=1 before Triton is imported.")
        cc = torch.cuda.get_device_capability(q.device)
        _expect(cc >= (8, 0), "q", "a GPU of compute capability 8.0 or later", f"{cc[0]}.{cc[1]}")
    else:
        _expect(q.dtype != torch.bfloat16, "q", "float16 or float32 in Triton's interpreter", q.dtype,
                "Its dot product is wrong for bfloat16.")

    _expect(k_cache.ndim == 4, "k_cache", "4 dimensions", tuple(k_cache.shape))
    if page_table is None:
        kv_heads, capacity = k_cache.shape[1:3]
        shape = (batch, kv_heads, capacity, head_dim)
        _expect(tuple(k_cache.shape) == shape, "k_cache", f"shape (B, Hk, N, D) with B = {batch}, D = {head_dim}",
                tuple(k_cache.shape))
    else:
        pages, page_size, kv_heads = k_cache.shape[:3]
        shape = (pages, page_size, kv_heads, head_dim)
        _expect(tuple(k_cache.shape) == shape, "k_cache", f"shape (P, page_size, Hk, D) with D = {head_dim}",
                tuple(k_cache.shape))
        _expect(page_size >= MIN_PAGE_SIZE, "k_cache", f"pages of at least {MIN_PAGE_SIZE} tokens", page_size)
        _expect(page_table.ndim == 2 and page_table.shape[0] == batch, "page_table", f"shape ({batch}, max_pages)",
                tuple(page_table.shape))
        _expect(page_table.dtype == torch.int32, "page_table", "dtype torch.int32", page_table.dtype)
        capacity = page_table.shape[1] * page_size
    _expect(tuple(v_cache.shape) == shape, "v_cache", f"the shape of k_cache, {shape}", tuple(v_cache.shape))
    _expect(kv_heads > 0 and heads % kv_heads == 0, "k_cache", f"a number of heads that divides Hq = {heads}", kv_heads)
    _expect(capacity <= MAX_KEYS, "k_cache", f"at most {MAX_KEYS} keys a sequence", capacity)

    _expect(tuple(cache_seqlens.shape) == (batch,), "cache_seqlens", f"shape ({batch},)", tuple(cache_seqlens.shape))
    _expect(cache_seqlens.dtype == torch.int32, "cache_seqlens", "dtype torch.int32", cache_seqlens.dtype)
    _expect((k_new is None) == (v_new is None), "v_new" if v_new is None else "k_new",
            "both k_new and v_new, or neither", "None")
    if k_new is not None:
        _expect(k_new.ndim == 4 and 1 <= k_new.shape[2] <= capacity, "k_new",
                f"shape ({batch}, {kv_heads}, Nnew, {head_dim}) with Nnew of 1 to {capacity}", tuple(k_new.shape))
        new = (batch, kv_heads, k_new.shape[2], head_dim)
        for name in ("k_new", "v_new"):
            _expect(tuple(named[name].shape) == new, name, f"shape {new}", tuple(named[name].shape))
    for name, tensor in named.items():
        if tensor is None:
            continue
        _expect(tensor.device == q.device, name, f"the device of q, {q.device}", tensor.device)
        _expect(tensor.shape[-1] <= 1 or tensor.stride(-1) == 1, name, "a last dimension of stride 1",
                f"strides {tensor.stride()}", "tensor.contiguous() gives one.")
        if tensor.is_floating_point():
            _expect(tensor.dtype == q.dtype, name, f"the dtype of q, {q.dtype}", tensor.dtype)
            _expect(not (torch.is_grad_enabled() and tensor.requires_grad), name,
                    "no gradient to be asked for: decoding has none", "requires_grad=True",
                    "Call it under torch.no_grad(), or use flash_attention.")


def _check_options(num_splits, window, softcap, tuning) -> None:
    """Refuses by name options outside their range."""
    def whole(value: object, low: int, high: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    _expect(isinstance(window, (tuple, list)) and len(window) == 2 and all(whole(x, -1, MAX_KEYS) for x in window),
            "window", "(left, right), each a whole number of keys, or -1 for unlimited", window)
    _expect(isinstance(softcap, (int, float)) and math.isfinite(softcap) and softcap >= 0, "softcap",
            "a finite number, 0 for none", softcap)
    _expect(num_splits is None or whole(num_splits, 1, MAX_SPLITS), "num_splits",
            f"a whole number of 1 to {MAX_SPLITS}, or None to let it be chosen", num_splits)
    names = [field.name for field in fields(Tuning)]
    for name, value in (tuning or {}).items():
        _expect(name in names, "tuning", f"keys among {', '.join(names)}", repr(name))
        _expect(whole(value, 1, 256), f"tuning[{name!r}]", "a whole number of 1 to 256", repr(value))
        _expect(name == "num_stages" or value & (value - 1) == 0, f"tuning[{name!r}]", "a power of two", value)
        _expect(not name.startswith("block") or value >= 16, f"tuning[{name!r}]", "at least 16", value)


def _choose(q: torch.Tensor, kv_heads: int, capacity: int, paged: bool, left: int, num_splits: int | None,
            tuning: Mapping[str, Any] | None) -> tuple[Tuning, int]:
    """How `_attend` is compiled and into how many parts the keys are cut; left as resolved, at most capacity + Nq."""
    batch, heads, nq, head_dim = q.shape
    rows = heads // kv_heads * nq
    chosen = replace(choose_tuning(rows, head_dim, q.element_size(), paged), **(tuning or {}))
    tiles = max(1, batch * kv_heads * triton.cdiv(rows, chosen.block_m))
    return chosen, num_splits or choose_splits(tiles, min(capacity, left + nq), _sm_count(q.device))


def explain(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, **options: Any) -> dict[str, int]:
    """What `flash_attention_decode` would run with: num_splits, the fields of Tuning, page_size where paged.

    Raises what it would raise for its tensors and these options; launches nothing."""
    known = flash_attention_decode.__kwdefaults__
    for name in options:
        _expect(name in ("cache_seqlens", *known), name, "an option of flash_attention_decode", "an unknown name")
    settings = {**known, **options}
    table, window = settings["page_table"], settings["window"]
    _check_tensors(q, k_cache, v_cache, settings["cache_seqlens"], table, settings["k_new"], settings["v_new"])
    _check_options(settings["num_splits"], window, settings["softcap"], settings["tuning"])
    if table is None:
        kv_heads, capacity, paged = *k_cache.shape[1:3], {}
    else:
        kv_heads, capacity, paged = k_cache.shape[2], table.shape[1] * k_cache.shape[1], {"page_size": k_cache.shape[1]}
    left = min(window[0] if window[0] >= 0 else capacity + q.shape[2], capacity + q.shape[2])
    chosen, splits = _choose(q, kv_heads, capacity, table is not None, left, settings["num_splits"], settings["tuning"])
    return {"num_splits": splits, **asdict(chosen), **paged}


def flash_attention_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor | None = None,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    num_splits: int | None = None,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scale: float | None = None,
    return_lse: bool = False,
    tuning: Mapping[str, Any] | None = None,
    stage: Callable[[str], contextlib.AbstractContextManager] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of a few new queries to a key/value cache with a length per sequence. Inference only: no gradient.

    q: (B, Hq, Nq, D), Nq 1 to 16, D 1 to 256; float16, bfloat16 or float32. The Nq queries are the last positions of
        their sequence: query i sees keys j <= i + length - Nq when causal.
    k_cache, v_cache: (B, Hk, N, D), or pages (P, page_size, Hk, D) with page_size >= 16; Hk divides Hq. Any strides
        with a unit last one.
    cache_seqlens: (B,) int32, keys already in the cache, 0 allowed. It is not changed.
    page_table: (B, max_pages) int32; page j of a sequence holds its keys j·page_size and up. Entries behind the
        length are never read.
    k_new, v_new: (B, Hk, Nnew, D): written into the cache at positions cache_seqlens and up before attention; the
        length is then cache_seqlens + Nnew.
    num_splits: parts to cut the keys of a sequence into; None chooses by the device and the cache's capacity.
    window: (left, right) keys around query i's own position i + length - Nq, inclusive; -1 is unlimited.
    softcap: c > 0 replaces a score x by c·tanh(x / c). scale: of the scores; None is 1 / sqrt(D).
    tuning: any of block_m, block_n, num_warps, num_stages, for measurements; the rest is chosen.
    stage: called with "append" (new keys), "attention" and "merge" (more than one part), gives the context each launch
        runs in.

    Returns O (B, Hq, Nq, D) in q's dtype and, if asked, LSE (B, Hq, Nq), float32, natural logarithm. A query that sees
    no key gets 0 and -inf. A length below 0, or beyond the cache once Nnew is added, makes that sequence's output and
    LSE NaN and leaves its cache as it was: lengths live on the device, and checking them sooner means waiting for it.
    Raises UnsupportedCall before any launch. torch.compile takes it whole (kernels.decode_operator; no stages then).
    """
    if torch.compiler.is_compiling() or type(q) is FakeTensor:
        from kernels import decode_operator

        o, lse = decode_operator.call(q, k_cache, v_cache, cache_seqlens=cache_seqlens, page_table=page_table,
                                      k_new=k_new, v_new=v_new, num_splits=num_splits, causal=causal, window=window,
                                      softcap=softcap, scale=scale, tuning=tuning)
        return (o, lse) if return_lse else o
    _check_tensors(q, k_cache, v_cache, cache_seqlens, page_table, k_new, v_new)
    _check_options(num_splits, window, softcap, tuning)
    for name, flag in (("causal", causal), ("return_lse", return_lse)):
        check_flag(name, flag)
    scale = resolve_scale(scale, q.shape[3])
    batch, heads, nq, head_dim = q.shape
    if page_table is None:
        table, stride_tb, page_size = cache_seqlens, 0, 0  # not read
        kv_heads, capacity = k_cache.shape[1:3]
        k_strides, v_strides = k_cache.stride()[:3], v_cache.stride()[:3]
    else:
        table, stride_tb, page_size = page_table, page_table.stride(0), k_cache.shape[1]
        kv_heads, capacity = k_cache.shape[2], page_table.shape[1] * page_size
        k_strides, v_strides = (tuple(x.stride(axis) for axis in (0, 2, 1)) for x in (k_cache, v_cache))

    group = heads // kv_heads
    n_new = 0 if k_new is None else k_new.shape[2]
    left, right = (side if side >= 0 else capacity + nq for side in window)
    left, right = min(left, capacity + nq), 0 if causal else min(right, capacity + nq)
    chosen, splits = _choose(q, kv_heads, capacity, page_table is not None, left, num_splits, tuning)
    row_blocks = triton.cdiv(group * nq, chosen.block_m)
    stage = stage or (lambda name: contextlib.nullcontext())
    block_d = _block_d(head_dim)

    o = torch.empty((batch, heads, nq, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, nq), dtype=torch.float32, device=q.device)
    part_o, part_lse = o, lse
    if splits > 1:
        part_o = torch.empty((splits, *o.shape), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((splits, *lse.shape), dtype=torch.float32, device=q.device)
    if batch == 0:
        return (o, lse) if return_lse else o

    with torch.cuda.device_of(q):
        if k_new is not None and v_new is not None:
            with stage("append"):
                _append[(batch * n_new * kv_heads,)](
                    k_new, v_new, k_cache, v_cache, cache_seqlens, table, *k_new.stride()[:3], *v_new.stride()[:3],
                    *k_strides, *v_strides, stride_tb, n_new, kv_heads, capacity, PAGE_SIZE=page_size,
                    HEAD_DIM=head_dim, BLOCK_D=block_d, num_warps=1)
        with stage("attention"):
            _attend[(batch * kv_heads * splits * row_blocks,)](
                q, k_cache, v_cache, part_o, part_lse, cache_seqlens, table, scale, float(softcap), *q.stride()[:3],
                *k_strides, *v_strides, stride_tb, batch, nq, n_new, kv_heads, group, splits, row_blocks, capacity,
                left, right, SOFTCAP=softcap > 0, PAGE_SIZE=page_size, HEAD_DIM=head_dim, BLOCK_M=chosen.block_m,
                BLOCK_N=chosen.block_n, BLOCK_D=block_d, num_warps=chosen.num_warps, num_stages=chosen.num_stages)
        if splits > 1:
            with stage("merge"):
                _merge[(batch * heads * nq,)](
                    part_o, part_lse, o, lse, splits, batch * heads * nq, HEAD_DIM=head_dim, BLOCK_D=block_d,
                    BLOCK_S=16, ALL_SPLITS=triton.next_power_of_2(splits), num_warps=4)
    return (o, lse) if return_lse else o
