"""`flash_attention_varlen`: its checks, and its kernels as PyTorch operators, so that torch.compile and fake tensors
take it whole."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels import hopper_varlen, varlen
from kernels.api import DTYPES, HEAD_DIMS, _autocast, _traced, capability
from kernels.autograd import OPTIONS
from kernels.checks import check_flag, check_inputs, check_like, resolve_scale
from kernels.errors import UnsupportedCall
from kernels.launch import backward_tuning, on_device, parameters, pointer_tuning
from kernels.options import Options
from kernels.options import check as check_options

LATER = ("attn_bias", "key_padding_mask", "block_mask", "q_scale", "k_scale", "v_scale")
_PLACES = "Tensor cu_q, Tensor cu_k, int max_q, int max_k, float scale, int[] tuning"
_TUNING = ("block_m", "block_n", "num_warps", "num_stages")


def flash_attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, *, attn_bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None, causal: bool = False, scale: float | None = None,
    window: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None, block_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
    seed: int | None = None, q_scale: torch.Tensor | None = None, k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None, deterministic: bool = False, return_lse: bool = False,
    tuning: Mapping[str, Any] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q·kᵀ·scale)·v of each of S packed sequences by itself, differentiable once.

    q (Tq, H, D); k, v (Tk, Hk, D), Hk dividing H; float16, bfloat16 or float32; D 1 to 256; any strides with unit last
    stride. cu_seqlens_q, cu_seqlens_k: (S + 1,) int32 on their device, rising from 0 to Tq and to Tk; a sequence may
    be empty, on either side. max_seqlen_q, max_seqlen_k: at least the longest; tokens beyond them are not computed.
    causal and window are aligned bottom-right in each sequence. A query that sees no key is 0, its LSE -inf.
    Returns out (Tq, H, D), contiguous, and with return_lse also the natural-log LSE, float32 (H, Tq).

    window, softcap, alibi_slopes (H,) or (S, H), sinks (H,), dropout_p and seed as in flash_attention; dropout counts
    rows and columns from the start of each sequence, and the sequence is its batch index. Gradients reach q, k, v and
    sinks, from out and from the LSE, in one order of summation: deterministic or not, results are bitwise the same.
    On compute capability 9.0 the forward is kernels.hopper's where that takes the call: float16 or bfloat16, head sizes
    64, 128 and 256, no option but causal and window, no tuning, strides that TMA takes; a tuning is flash2's.
    attn_bias, key_padding_mask, block_mask and float8 scales raise UnsupportedCall, as everything that does not fit.
    """
    q, k, v = _autocast(q, k, v)
    given = dict(attn_bias=attn_bias, key_padding_mask=key_padding_mask, window=window, softcap=softcap,
                 alibi_slopes=alibi_slopes, sinks=sinks, block_mask=block_mask, dropout_p=dropout_p, seed=seed,
                 q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    check_flag("deterministic", deterministic)
    check_flag("return_lse", return_lse)
    scale, options = check(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, given, causal=causal,
                           scale=scale, tuning=tuning)
    numbers = [int(tuning[name]) if tuning and name in tuning else -1 for name in _TUNING]
    call = operator if _traced(q, k, v, *options.tensors) else _launch
    out, lse = call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale, numbers, *options)
    return (out, lse) if return_lse else out


def check(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any, given: Mapping[str, Any], *,
          causal: bool, scale: float | None, tuning: Mapping[str, Any] | None = None, draw: bool = True
          ) -> tuple[float, Options]:
    """The softmax scale and the options of a call, or UnsupportedCall by name."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.ndim != 3:
            got = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise UnsupportedCall(name, "3 dimensions (tokens, heads, head_dim)", got)
    for name, cu, device in (("cu_seqlens_q", cu_q, q.device), ("cu_seqlens_k", cu_k, q.device)):
        if not isinstance(cu, torch.Tensor) or cu.dtype != torch.int32 or cu.ndim != 1 or len(cu) < 1:
            got = f"{cu.dtype} of shape {tuple(cu.shape)}" if isinstance(cu, torch.Tensor) else type(cu).__name__
            raise UnsupportedCall(name, "an int32 tensor (sequences + 1,)", got)
        if cu.device != device or not cu.is_contiguous():
            raise UnsupportedCall(name, f"a contiguous tensor on {device}", f"one on {cu.device}, {cu.stride()}")
    if len(cu_q) != len(cu_k):
        raise UnsupportedCall("cu_seqlens_k", f"{len(cu_q)} elements as cu_seqlens_q has", f"{len(cu_k)}")
    for name, value in (("max_seqlen_q", max_q), ("max_seqlen_k", max_k)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 30:
            raise UnsupportedCall(name, "a whole number of at least 0 and below 2^30", repr(value))
    check_inputs(*(x.transpose(0, 1)[None] for x in (q, k, v)), dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    check_flag("causal", causal)
    for name in LATER:
        if given.get(name) is not None:
            raise UnsupportedCall(name, "None", f"a {type(given[name]).__name__}", "flash_attention_varlen has no such "
                                  "option; flash_attention on padded sequences has.")
    one, sequences = q.new_empty((1, 1, 1, 1)), len(cu_q) - 1  # the shapes of a batch, without its memory
    options = check_options(one.expand(sequences, q.shape[1], max_q, q.shape[2]),
                            one.expand(sequences, k.shape[1], max_k, q.shape[2]), given, causal=causal, draw=draw)
    if tuning:
        pointer_tuning(varlen.TABLE, q, None, tuning)
    return resolve_scale(scale, q.shape[2]), options


def choose(q: torch.Tensor, options: Options, tuning: Mapping[str, Any] | None) -> Any:
    return pointer_tuning(varlen.SCORED if options.scored else varlen.TABLE, q, capability(q), tuning)


def _on_hopper(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, options: Options,
               scale: float) -> bool:
    """Whether the forward is kernels.hopper_varlen's; else, as the backward, it is kernels.varlen's."""
    return hopper_varlen.supports(q, k, v, cu_q, options, scale, capability(q)) is None


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int,
            max_k: int, scale: float, tuning: list[int], *options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    on = Options(*options)
    if max(tuning, default=-1) < 0 and _on_hopper(q, k, v, cu_q, on, scale):
        return hopper_varlen.forward(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, options=on)
    chosen = choose(q, on, {name: n for name, n in zip(_TUNING, tuning) if n > 0})
    return varlen.forward(q, k, v, cu_q, cu_k, max_q, chosen, scale=scale, options=on)


operator = torch.library.custom_op("flashscope::varlen", _launch, mutates_args=(), schema=(
    f"(Tensor q, Tensor k, Tensor v, {_PLACES}, {OPTIONS}) -> (Tensor, Tensor)"))


@operator.register_fake
def _(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def gradients(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
              lse: torch.Tensor, dlse: torch.Tensor | None, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int,
              max_k: int, scale: float, *options: Any, stage: Callable[[str], Any] | None = None
              ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous, and dsinks (H,) float32, of no element without sinks.

    stage: called with "prepare", "keys" and "queries", gives the context each launch runs in."""
    on = Options(*options)
    dout, dlse = (x if x is None or x.is_contiguous() else x.contiguous() for x in (dout, dlse))
    grads = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    dsinks = q.new_zeros(0 if on.sinks is None else q.shape[1], dtype=torch.float32)
    tuning = backward_tuning(q, k, capability(q), scored=on.scored)
    if 0 in (q.numel(), k.numel(), max_q, max_k):
        return (*grads, dsinks)
    with on_device(q, tuning):
        for name, kernel, programs, arguments, build in varlen.launches(
                dout, q, k, v, out, lse, dlse, cu_q, cu_k, max_q, max_k, grads, tuning=tuning, scale=scale, options=on):
            with stage(name) if stage is not None else contextlib.nullcontext():
                kernel[(programs,)](*arguments, **build)
    if on.sinks is not None:
        p = torch.exp(on.sinks[:, None] - lse).masked_fill_(lse == float("-inf"), 0.0)
        delta = (out.float() * dout.float()).sum(-1).T - (0.0 if dlse is None else dlse)
        dsinks = -(p * delta).sum(1)
    return (*grads, dsinks)


backward = torch.library.custom_op("flashscope::varlen_backward", gradients, mutates_args=(), schema=(
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, Tensor cu_q, Tensor cu_k, "
    f"int max_q, int max_k, float scale, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"))


@backward.register_fake
def _(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
      dlse: torch.Tensor | None, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int, max_k: int, scale: float,
      *options: Any) -> tuple[torch.Tensor, ...]:
    sinks = q.new_empty(0 if Options(*options).sinks is None else q.shape[1], dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), sinks


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, cu_q, cu_k, ctx.max_q, ctx.max_k, ctx.scale, _, *options = inputs
    on = Options(*options)
    ctx.options = on._replace(rng=None, bias=None, padding=None, slopes=None, sinks=None)  # tensors: saved, not kept
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k, on.rng, on.bias, on.padding, on.slopes, on.sinks)
    ctx.set_materialize_grads(False)  # an LSE that nobody uses has gradient None, not a tensor of zeros


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, cu_q, cu_k, *tensors = ctx.saved_tensors
    options = (*ctx.options[:-len(tensors)], *tensors)
    nothing = (None,) * (6 + len(options) - 1)
    if dout is None and dlse is None:
        return (None, None, None, *nothing, None)
    dout = torch.zeros_like(out) if dout is None else dout
    *grads, dsinks = backward(dout, q, k, v, out, lse, dlse, cu_q, cu_k, ctx.max_q, ctx.max_k, ctx.scale, *options)
    return (*grads, *nothing, None if tensors[-1] is None else dsinks)


operator.register_autograd(_gradients, setup_context=_save)


def pack(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_lengths: Sequence[int] | None,
         k_lengths: Sequence[int] | None) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """A batch (B, H, N, D), of each sequence the first so many tokens, as packed (q, k, v) and (cu_seqlens_q,
    cu_seqlens_k, max_seqlen_q, max_seqlen_k). None: all tokens."""
    lengths = []
    for name, given, x in (("q_lengths", q_lengths, q), ("k_lengths", k_lengths, k)):
        whole = [x.shape[2]] * x.shape[0] if given is None else list(given)
        if len(whole) != x.shape[0] or any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= x.shape[2]
                                           for n in whole):
            raise UnsupportedCall(name, f"{x.shape[0]} whole numbers from 0 to {x.shape[2]}", repr(given))
        lengths.append(whole)
    cu = [torch.tensor([0, *itertools.accumulate(some)], dtype=torch.int32, device=q.device) for some in lengths]
    if lengths[0] == lengths[1]:
        cu[1] = cu[0]  # one tensor: hopper needs no second mask
    return (_rows(q, lengths[0]), _rows(k, lengths[1]), _rows(v, lengths[1])), (
        *cu, *(max(some, default=0) for some in lengths))


def _rows(x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """(B, H, N, D) -> (tokens, H, D) contiguous."""
    return torch.cat([one[:, :n].transpose(0, 1) for one, n in zip(x, lengths)] or [x.new_empty((0, *x.shape[1::2]))])


def unpack(x: torch.Tensor, cu: torch.Tensor, like: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """(tokens, H, …) -> (B, H, N, …) as `like` has them; what is behind a sequence's end is ``fill``."""
    out = x.new_full((like.shape[0], like.shape[2], *x.shape[1:]), fill)
    places = [out.new_empty(0, dtype=torch.int64)]
    ends = cu.tolist()
    for b, (begin, end) in enumerate(itertools.pairwise(ends)):
        places.append(torch.arange(end - begin, device=x.device) + b * like.shape[2])
    flat = out.flatten(0, 1).index_copy(0, torch.cat(places).to(x.device), x)
    return flat.view(out.shape).transpose(1, 2)


def of_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None,
             return_lse: bool = False, q_lengths: Sequence[int] | None = None, k_lengths: Sequence[int] | None = None,
             **options: Any) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`flash_attention_varlen` on a batch of sequences, packed and unpacked here: q (B, H, Nq, D), k and v (B, Hk, Nk,
    D). q_lengths, k_lengths: the tokens of each sequence; O behind a sequence's end is 0, LSE -inf."""
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    packed, places = pack(q, k, v, q_lengths, k_lengths)
    out, lse = flash_attention_varlen(*packed, *places, causal=causal, scale=scale, return_lse=True, **options)
    whole = unpack(out, places[0], q)
    return (whole, unpack(lse.T, places[0], q, float("-inf"))) if return_lse else whole


def explain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
            tuning: Mapping[str, Any] | None = None, q_lengths: Sequence[int] | None = None,
            k_lengths: Sequence[int] | None = None, **options: Any) -> dict[str, int]:
    """The tuning parameters that a call of `of_batch` runs with: flash2's, or those of hopper_plan.Config."""
    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    packed, places = pack(q, k, v, q_lengths, k_lengths)
    scale, on = check(*packed, *places, {**(flash_attention_varlen.__kwdefaults__ or {}), **options}, causal=causal,
                      scale=None, tuning=tuning, draw=False)
    one, two, three = packed
    if not tuning and _on_hopper(one, two, three, places[0], on, scale):
        alike = hopper_varlen.are_alike(*places)
        return hopper_varlen.choose(one, two, places[3], on, alike=alike).parameters
    return parameters(choose(packed[0], on, tuning))


def prepare_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None,
                    tuning: Mapping[str, Any] | None, q_lengths: Sequence[int] | None = None,
                    k_lengths: Sequence[int] | None = None, **options: Any) -> tuple[Callable[[], Any], Any]:
    """The call on tensors that are packed already, and what unpacks its O."""
    packed, places = pack(q, k, v, q_lengths, k_lengths)

    def run() -> Any:
        return flash_attention_varlen(*packed, *places, causal=causal, scale=scale, tuning=tuning, **options)

    return run, lambda out: unpack(out, places[0], q)


def prepare_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, *, causal: bool,
                     scale: float | None = None, q_lengths: Sequence[int] | None = None,
                     k_lengths: Sequence[int] | None = None, **options: Any
                     ) -> tuple[Callable[[Any], Any], Any, dict[str, Any]]:
    """Pack a batch and run the forward; the backward alone as a call that takes a stage, what unpacks its results, and
    its parameters (see kernels.registry)."""
    from kernels import backward_plan

    check_inputs(q, k, v, dtypes=DTYPES, head_dims=HEAD_DIMS, unit_stride=True)
    check_like("dout", dout, q)
    (q_rows, k_rows, v_rows), places = pack(q.detach(), k.detach(), v.detach(), q_lengths, k_lengths)
    do_rows = _rows(dout, [*torch.diff(places[0]).tolist()])
    scale, on = check(q_rows, k_rows, v_rows, *places, {**(flash_attention_varlen.__kwdefaults__ or {}), **options},
                      causal=causal, scale=scale)
    out, lse = _launch(q_rows, k_rows, v_rows, *places, scale, [], *on)

    def run(stage: Any = None) -> tuple[torch.Tensor, ...]:
        return gradients(do_rows, q_rows, k_rows, v_rows, out, lse, None, *places, scale, *on, stage=stage)[:3]

    def unpacked(grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(unpack(x, cu, like) for x, cu, like in zip(grads, (places[0], places[1], places[1]), (q, k, v)))

    chosen = backward_tuning(q_rows, k_rows, capability(q), scored=on.scored)
    return run, unpacked, backward_plan.parameters(chosen)
