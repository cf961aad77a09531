"""What a kernel does in attention, proposed from its name and range; and kernel names as people say them.

The proposals are for reports of other libraries (ours carry their stage). They are proposals: a page lets the user
change them.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

SCORES, SCALE, MASK, SOFTMAX, VALUES, ATTENTION, MERGE = ("scores", "scale", "mask", "softmax", "values", "attention",
                                                         "merge")
ROLES = (SCORES, SCALE, MASK, SOFTMAX, VALUES, ATTENTION, MERGE)
GENERIC = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel", "run_kernel", "kernel_entry"))
LONGEST = 64


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
MATMUL = re.compile(r"gemm|nvjet|_matmul|cutlass.*tensorop|xmma|\bmma_kernel|s16816|wgmma", re.IGNORECASE)
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
        if match and (stage not in (SCORES, VALUES) or MATMUL.search(name)
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
