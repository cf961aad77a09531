"""What a kernel does in attention, proposed from its name and range; and kernel names as people say them.

The proposals are for reports of other libraries (ours carry their stage). They are proposals: a page lets the user
change them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiler.errors import BadInput
from profiler.spec import ELEMENT_BYTES, AttentionShape, Mask, RunConfig

SCORES, SCALE, MASK, SOFTMAX, VALUES, ATTENTION, MERGE = ("scores", "scale", "mask", "softmax", "values", "attention",
                                                         "merge")
ROLES = (SCORES, SCALE, MASK, SOFTMAX, VALUES, ATTENTION, MERGE)
GENERIC = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel", "run_kernel", "kernel_entry"))
LONGEST = 64
NONE = "none"  # how a link says that a kernel has no role in attention
ONE_SIDED = 2.0  # times the bytes one way, against the other, that tell a matmul with an N×N operand or result


@dataclass(frozen=True, slots=True)
class Role:
    """stage: one of ROLES; direction: "forward" or "backward"; library: whose kernel, "" when the name does not say;
    why: what in the name or range said so."""

    stage: str
    direction: str
    library: str
    why: str


# (pattern in the kernel's full name, stage, direction, library). The first that matches counts, so the special ones
# stand first.
_KERNELS: tuple[tuple[str, str, str, str], ...] = (
    (r"flash_fwd_splitkv_combine|FlashAttnFwdCombine|flash_fwd_mla_combine|FlashAttentionForwardCombine", MERGE,
     "forward", "FlashAttention"),
    (r"merge_attn_states|reduce_segments", MERGE, "forward", "vLLM"),
    (r"_fwd_kernel_stage2", MERGE, "forward", "SGLang"),
    (r"_splitK_reduce", MERGE, "forward", "xFormers"),
    (r"fmhaReductionKernel", MERGE, "forward", "TensorRT-LLM"),
    (r"VariableLengthMergeStates|(?:Persistent|Attention)?MergeStates?\w*Kernel", MERGE, "forward", "FlashInfer"),
    # what writes the cache, turns Q and K, picks experts or makes a loss is no attention
    (r"AppendPagedKVCache|reshape_and_cache|set_mla_kv_buffer|applyMLARope|fusedQKRoPE|topk\w*softmax|log_?softmax",
     "", "", ""),
    (r"flashinfer.*(?:BatchPrefill|SinglePrefill|BatchDecode|SingleDecode|PersistentKernel|BatchMLA)|"
     r"(?:BatchPrefill|SinglePrefill|BatchDecode|SingleDecode)With\w*Cache", ATTENTION, "forward", "FlashInfer"),
    (r"fmha_cutlassB|fmha.*AttentionBackwardKernel|attention_kernel_backward_batched", ATTENTION, "backward",
     "xFormers"),
    (r"_fwd_kernel_splitK|fmha_cutlassF|fmha.*AttentionKernel\b|attention_kernel_batched|xformers.*fmha", ATTENTION,
     "forward", "xFormers"),
    (r"cudnn.*(?:sdpa|flash|mha|fmha).*(?:bprop|bwd|backward)", ATTENTION, "backward", "cuDNN"),
    (r"cudnn.*(?:sdpa|flash|mha|fmha)", ATTENTION, "forward", "cuDNN"),
    (r"masked_multihead_attention|mmha|xqa|kernel_mha|tensorrt_llm.*(?:fmha|attention)|fmha_v2|fmhaSm\d+|"
     r"fused_multihead_attention",
     ATTENTION, "forward", "TensorRT-LLM"),
    (r"paged_attention_v[12]|paged_attention_ll4mi|vllm.*attention|kernel_unified_attention",
     ATTENTION, "forward", "vLLM"),
    (r"_fwd_grouped_kernel_stage[12]|_fwd_kernel_stage1|extend_attention|_fwd_kernel_flash_decode", ATTENTION,
     "forward", "SGLang"),
    (r"flash_attention_?(?:backward|bwd)|FlashAttentionBackward", ATTENTION, "backward", "FlashAttention"),
    (r"FlashAttnBwd|FlashAttentionBackward|flash_bwd|flash.*bwd", ATTENTION, "backward", "FlashAttention"),
    (r"FlashAttnFwd|flash_fwd|FlashAttentionForward|flash_attn.*(?:fwd|forward)|flash::.*combine", ATTENTION, "forward",
     "FlashAttention"),
    (r"_attn_bwd(?:_|\b)|_bwd_kernel_one_col_block|_bwd_kernel\b|_attn_bwd_(?:dkdv|dq|preprocess)", ATTENTION,
     "backward", "Triton"),
    (r"_attn_fwd(?:_|\b)|triton_.*flex_attention(?!_backward)|triton_tem_fused.*(?:sdpa|flex)", ATTENTION, "forward",
     "Triton"),
    (r"flex_attention_backward", ATTENTION, "backward", "Triton"),
    (r"(?:scaled_dot_product|sdpa|attention|attn).*(?:bwd|backward|bprop)", ATTENTION, "backward", ""),
    (r"fmha|flash_?attn|flash_?attention|fused_?attention|(?:scaled_dot_product|sdpa)_(?:flash|efficient|attention)|attention_fwd|"
     r"mha_fwd|attn_fwd", ATTENTION, "forward", ""),
    (r"softmax.*(?:backward|bwd)", SOFTMAX, "backward", ""),
    (r"softmax", SOFTMAX, "forward", ""),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), stage, direction, library)
                  for pattern, stage, direction, library in _KERNELS)
_MATMUL = re.compile(r"gemm|nvjet|_matmul|cutlass.*tensorop|xmma|\bmma_kernel|s16816|wgmma", re.IGNORECASE)
_RANGES = (
    (re.compile(r"\b(?:scores?|qk|q_?k_?t|q@k|query_key)\b", re.IGNORECASE), SCORES),
    (re.compile(r"\b(?:values?|pv|p@v|av|attn_?v|weighted_sum)\b", re.IGNORECASE), VALUES),
    (re.compile(r"\bsoftmax\b", re.IGNORECASE), SOFTMAX), (re.compile(r"\bscale\b", re.IGNORECASE), SCALE),
    (re.compile(r"\bmask\b", re.IGNORECASE), MASK),
)
_IN_NAME = ((re.compile(r"(?:^|_)(?:qk|qkt|score|scores)(?:_|$)", re.IGNORECASE), SCORES),
            (re.compile(r"(?:^|_)(?:pv|av|attn_v)(?:_|$)", re.IGNORECASE), VALUES))


@functools.lru_cache(maxsize=8192)
def propose(kernel: str | None, range_name: str | None = None) -> Role | None:
    """The role of a kernel, or None when neither its name nor its NVTX range says one.

    A plain matmul is the score or the value matmul only where its range says so: the name of a GEMM does not.
    """
    name = (kernel or "")[:4096]
    said = (range_name or "")[:512].replace("_", " ")
    for pattern, stage, direction, library in _COMPILED:
        match = pattern.search(name)
        if match:
            return Role(stage, direction, library, f"kernel name has {match[0][:40]!r}") if stage else None
    backward = "backward" if re.search(r"\b(?:bwd|backward)\b", said, re.IGNORECASE) else "forward"
    for pattern, stage in _RANGES:
        match = pattern.search(said)
        if match and (stage not in (SCORES, VALUES) or _MATMUL.search(name)
                      or _IN_NAME[stage == VALUES][0].search(short_name(kernel))):
            return Role(stage, backward, "", f"range has {match[0]!r}")
    for pattern, stage in _IN_NAME:
        match = pattern.search(short_name(kernel))
        if match:
            return Role(stage, backward, "", f"kernel name has {match[0]!r}")
    return None


@functools.lru_cache(maxsize=8192)
def short_name(kernel: str | None) -> str:
    """A kernel's name as people say it: no return type, namespaces, template arguments or parameters; at most 64
    characters.

    A name that says nothing alone keeps the short name of its first template argument:
    ``device_kernel<FlashAttnFwdSm90>``.
    """
    if not kernel:
        return ""
    text = kernel[:16384].replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous").strip()
    head, arguments = _split(text)
    words = head.split()
    name = (words[-1] if words else text).split("::")[-1] or text
    if re.fullmatch(r"enable_sm\w+", name) and arguments:  # a wrapper that only says for which GPU
        return short_name(arguments)
    if name in GENERIC and arguments:
        inner = short_name(arguments)
        if inner and inner not in GENERIC and not inner.isdigit():
            name = f"{name}<{inner}>"
    return name if len(name) <= LONGEST else f"{name[:LONGEST - 21]}…{name[-20:]}"


def _split(text: str) -> tuple[str, str]:
    """(the qualified name without template arguments and parameters, the first template argument of its last part)."""
    head: list[str] = []
    argument: list[str] = []
    depth = 0
    for at, char in enumerate(text):
        if char == "<" and not text[:at].endswith("operator"):
            depth += 1
            if depth == 1:
                argument = []
                done = False
                continue
        elif char == ">" and depth:
            depth -= 1
            if depth == 0:
                continue
        elif char == "(" and depth == 0:
            break
        if depth == 0:
            head.append(char)
        elif not (depth == 1 and char == ",") and not done:
            argument.append(char)
        elif depth == 1 and char == ",":
            done = True
    return "".join(head), "".join(argument).strip()


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of one kernel in one range. first: number of its first launch, its name in a link; launches: how many.

    proposed: the role that names, ranges or counters suggest; None where nothing does.
    """

    first: int
    kernel: str
    range: str
    launches: int
    proposed: Role | None


def groups(launches: Any) -> list[Group]:
    """The launches table by kernel and range, in the order of first launches, each with a proposed role.

    Counters speak where names are silent: before a softmax the matmul that writes far more than it reads is the score
    matmul, after it the one that reads far more than it writes is the value matmul.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    columns = ["launch", "kernel", "range", "tensor_flops", "dram_read_bytes", "dram_write_bytes"]
    for row in launches[columns].astype(object).to_dict("records"):
        row = {k: None if v is None or v != v or str(v) == "<NA>" else v for k, v in row.items()}
        found.setdefault((row["kernel"] or "", row["range"] or ""), []).append(row)
    rows = [(kernel, said, mine, propose(kernel, said)) for (kernel, said), mine in found.items()]
    proposed = [role for *_, role in rows]
    for i, role in enumerate(proposed):
        if role is not None and role.stage == SOFTMAX and role.direction == "forward":
            for stage, order in ((SCORES, range(i - 1, -1, -1)), (VALUES, range(i + 1, len(rows)))):
                if stage not in [r.stage for r in proposed if r]:
                    at = next((j for j in order if proposed[j] is None and _matmul(rows[j][0], rows[j][2][0])), None)
                    if at is not None and _one_sided(rows[at][2][0], stage):
                        way = "writes" if stage == SCORES else "reads"
                        proposed[at] = Role(stage, "forward", "", f"matmul beside a softmax, {way} most of its bytes")
    return [Group(int(mine[0]["launch"]), short_name(kernel), said, len(mine), role)
            for (kernel, said, mine, _), role in zip(rows, proposed)]


def _matmul(kernel: str, row: Mapping[str, Any]) -> bool:
    return bool(_MATMUL.search(kernel)) or bool(row["tensor_flops"])


def _one_sided(row: Mapping[str, Any], stage: str) -> bool:
    read, written = row["dram_read_bytes"], row["dram_write_bytes"]
    if read is None or written is None:
        return False
    return bool(written >= ONE_SIDED * read if stage == SCORES else read >= ONE_SIDED * written)


def chosen(text: str | None) -> dict[int, str]:
    """Roles as a link holds them, ``0.scores_3.attention_7.none``: first launch of a group -> role, "" for none."""
    found = {}
    for part in (text or "").split("_"):
        number, _, role = part.partition(".")
        if number.isdigit() and len(number) < 10 and role in (*ROLES, NONE):
            found[int(number)] = "" if role == NONE else role
    return found


def link(roles: Mapping[int, str]) -> str:
    """The same, from roles by first launch."""
    return "_".join(f"{first}.{role or NONE}" for first, role in sorted(roles.items()))


def implementation(stages: Iterable[str], kernel: str | None = None) -> str:
    """What an implementation is called whose launches have these stages: the unfused forms, or the library's kernel."""
    stages = set(stages)
    if not stages <= {ATTENTION, MERGE}:
        return "naive" if SCALE in stages else "naive_folded"
    name = kernel or ""
    for pattern, known in _FUSED:
        if re.search(pattern, name, re.IGNORECASE):
            return known
    role = propose(name)
    return re.sub(r"\W+", "_", role.library.lower()) if role and role.library else "fused"


EXAMPLE = "B1 H16 N4096 D64 bf16 causal"
_FUSED = ((r"pytorch_flash", "sdpa_flash"), (r"cudnn", "sdpa_cudnn"), (r"FlashAttn(?:Fwd|Bwd)\w*", "fa3"),
          (r"flash_attn_?cute|FlashAttention(?:Forward|Backward)Sm\d+", "fa4"), (r"flash_(?:fwd|bwd)", "fa2"),
          (r"fmha_cutlass", "sdpa_efficient"))


def effective(group: Group, roles: Mapping[int, str]) -> str:
    """The role of a group: the one that was chosen, else the one proposed, "" for none."""
    proposed = group.proposed
    return roles.get(group.first, proposed.stage if proposed else "")


def assign(launches: Any, roles: Mapping[int, str], shape: AttentionShape | None = None) -> Any:
    """The launches table with implementation, stage and direction of those groups that ``roles`` or a proposal names.

    shape: the one attention call that all of them make together; with it they carry a whole configuration and every
    page can use them. Of a kernel that was launched several times the first launch then stands for the call.
    """
    found = groups(launches)
    unfused = [stage for g in found if (stage := effective(g, roles)) not in ("", ATTENTION, MERGE)]
    pairs = list(zip(launches["kernel"].fillna(""), launches["range"].fillna("")))
    keys: dict[tuple[str, str], dict[str, Any]] = {}
    first = {}
    for g, pair in zip(found, dict.fromkeys(pairs)):
        stage = effective(g, roles)
        direction = g.proposed.direction if g.proposed else "forward"
        fused = stage in (ATTENTION, MERGE)
        if stage and (fused or direction == "forward"):
            name = implementation([stage] if fused else unfused, pair[0])
            keys[pair], first[pair] = ({"implementation": name, "stage": stage, "direction": direction} if shape is None
                                       else RunConfig(name, shape, direction).key(stage)), g.first
    mine = [keys.get(pair) if shape is None or number == first.get(pair) else None
            for pair, number in zip(pairs, launches["launch"])]
    out = launches.copy()
    for column in next(iter(keys.values()), {}):
        values = [was if key is None else key[column] for key, was in zip(mine, launches[column].astype(object))]
        out[column] = launches[column].__class__(values, index=launches.index, dtype=launches[column].dtype)
    return out


def assigned(bundle: Any, roles: str, text: str = "") -> Any:
    """A bundle whose launches have the roles of a link (see ``chosen``), in the call that ``text`` names, if any."""
    return replace(bundle, launches=assign(bundle.launches, chosen(roles), call(text) if text else None))


def call(text: str) -> AttentionShape:
    """The attention call that ``B1 H16 N4096 D64 bf16 causal`` names: also H16/4, and Nq1 Nk4096 for N.

    Batch 1, bf16 and the full mask need not be said. Raises BadInput for anything else.
    """
    sizes: dict[str, int] = {}
    more: dict[str, str] = {}
    for word in text.split():
        match = re.fullmatch(r"(Nq|Nk|B|H|N|D)=?(\d+)(?:/(\d+))?", word, re.IGNORECASE)
        if match:
            name = match[1].lower()
            sizes[name] = int(match[2])
            if match[3]:
                sizes["hk"] = int(match[3])
        elif word.lower() in ELEMENT_BYTES:
            more["dtype"] = word.lower()
        else:
            more["mask"] = str(Mask.parse(word))
    nq, nk = sizes.get("nq", sizes.get("n")), sizes.get("nk", sizes.get("n"))
    if nq is None or nk is None or "h" not in sizes or "d" not in sizes:
        raise BadInput(f"attention call: expected heads, lengths and head size as in {EXAMPLE!r}, got {text!r:.80}.")
    return AttentionShape(sizes.get("b", 1), sizes["h"], nq, nk, sizes["d"], sizes.get("hk", 0), **more)  # type: ignore[arg-type]


def call_in(ranges: Iterable[str]) -> str:
    """The attention call that an NVTX range names in the same words; "" where none does."""
    for said in ranges:
        words = re.search(r"(?:B\d+ )?H\d+(?:/\d+)? (?:N\d+|Nq\d+ Nk\d+) D\d+(?: \w+)?(?: (?:full|causal))?", said)
        if words:
            return words[0]
    return ""
