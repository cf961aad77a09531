"""Kernel names of other libraries: what they are called for short, and which role is proposed."""

from __future__ import annotations

import pytest

from profiler import roles
from profiler.errors import BadInput
from profiler.roles import LONGEST, propose, short_name
from tests.figures.samples import BUNDLE

FA2 = ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)128, (int)4, (bool)0, "
       "cutlass::bfloat16_t>, (bool)0, (bool)1>(pytorch_flash::Flash_fwd_params)")
FA3 = ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<"
       "(int)2>>>>(T1::Params)")
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_cga1x1x1_kernel0_0"


@pytest.mark.parametrize("kernel, short", [
    (FA2, "flash_fwd_kernel"), (FA3, "device_kernel<FlashAttnFwdSm90>"), ("_attn_fwd", "_attn_fwd"),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float>, "
     "std::array<char *, (unsigned long)2>>(int, T2, T3)", "vectorized_elementwise_kernel"),
    ("(anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 10, false>(float*, int)",
     "softmax_warp_forward"),
    ("<unnamed>::saxpy(float, const float *)", "saxpy"),
    ("void scale<(int)4, Pair<float, int>>(float *, const float *, int)", "scale"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(T1::Params)",
     "Kernel2<cutlass_80_tensorop_bf16_s16816gemm>"),
    ("Kernel", "Kernel"), ("", ""), (None, ""), ("void k(int (*)(float))", "k"),
])
def test_short_names(kernel, short):
    assert short_name(kernel) == short


@pytest.mark.parametrize("kernel",
                         [CUDNN, "k" * 9000, "void a<" + "b<" * 4000, ">" * 100 + "x", "((((", "a::", "<>",
                          "void f<(int)1>"])
def test_any_name_has_a_short_one(kernel):
    assert 0 < len(short_name(kernel)) <= LONGEST


@pytest.mark.parametrize("kernel, stage, direction, library", [
    (FA2, "attention", "forward", "FlashAttention"), (FA3, "attention", "forward", "FlashAttention"),
    ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>(y)", "attention", "backward", "FlashAttention"),
    (CUDNN, "attention", "forward", "cuDNN"), (CUDNN.replace("fprop", "bprop"), "attention", "backward", "cuDNN"),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(AttentionKernel::Params)", "attention", "forward", "xFormers"),
    ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(x)", "attention", "backward", "xFormers"),
    ("void vllm::paged_attention_v2_kernel<unsigned short, (int)128>(int)", "attention", "forward", "vLLM"),
    ("kernel_unified_attention_2d", "attention", "forward", "vLLM"),
    ("_fwd_grouped_kernel_stage1", "attention", "forward", "SGLang"),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<x>(y)", "attention", "forward", "FlashInfer"),
    ("void masked_multihead_attention_kernel<unsigned short, (int)128>(x)", "attention", "forward", "TensorRT-LLM"),
    ("fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel", "attention", "forward", "TensorRT-LLM"),
    ("_attn_fwd", "attention", "forward", "Triton"), ("_attn_bwd", "attention", "backward", "Triton"),
    ("void (anonymous namespace)::cunn_SoftMaxForward<x>(y)", "softmax", "forward", ""),
    ("void softmax_warp_backward<x>(y)", "softmax", "backward", ""),
    ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o11101213",
     "attention", "forward", "FlashAttention"),
    ("void flash::flash_fwd_splitkv_kernel<x>(flash::Flash_fwd_params)", "attention", "forward", "FlashAttention"),
    ("void flash::flash_fwd_splitkv_combine_kernel<x>(flash::Flash_fwd_params)", "merge", "forward", "FlashAttention"),
    ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<x>>>(y)", "attention", "backward",
     "FlashAttention"),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H64PagedKvCausalP64VarSeqQ128Kv128PersistentContext", "attention", "forward",
     "TensorRT-LLM"),
    ("kernel_mha", "attention", "forward", "TensorRT-LLM"),
    ("_ZN10flashinfer33BatchDecodeWithPagedKVCacheKernelILNS_15PosEncodingModeE0ELj2E", "attention", "forward",
     "FlashInfer"),
    ("_fwd_kernel_splitK_0d1d2d34d5d6de", "attention", "forward", "xFormers"),
    ("void vllm::merge_attn_states_kernel<x>(y)", "merge", "forward", "vLLM"),
    ("kernel_unified_attention_3d", "attention", "forward", "vLLM"),
    ("_fwd_kernel_stage2", "merge", "forward", "SGLang"),
])
def test_roles_by_name(kernel, stage, direction, library):
    role = propose(kernel)
    assert (role.stage, role.direction, role.library) == (stage, direction, library) and role.why


@pytest.mark.parametrize("kernel, range_name, stage", [
    ("nvjet_tst_128x256_64x4", "scores", "scores"), ("ampere_bf16_s16816gemm_bf16_128x128", "attn/qk", "scores"),
    ("nvjet_tst_128x256_64x4", "attn @ v values", "values"), ("qk_gemm", None, "scores"),
    ("vectorized_elementwise_kernel", "scale", "scale"),
])
def test_roles_by_range(kernel, range_name, stage):
    assert propose(kernel, range_name).stage == stage


@pytest.mark.parametrize("kernel, range_name", [
    ("nvjet_tst_128x256_64x4", None), ("nvjet_tst_128x256_64x4", "mlp"), ("vectorized_elementwise_kernel", "scores"),
    ("copy_kernel", "values"),
    ("reduce_kernel", None), (None, None), ("", ""),
    # beside attention in every server, and no attention: cache writes, rotations, the choice of experts, losses
    ("void vllm::reshape_and_cache_flash_kernel<x>(y)", None), ("flashinfer::AppendPagedKVCacheKernel", None),
    ("void vllm::moe::topkGatingSoftmax<x>(y)", None), ("void cunn_LogSoftMaxForward_log_softmax<x>(y)", None),
    ("applyMLARopeAndAssignQKVKernelGeneration", None)])
def test_a_plain_kernel_has_no_role(kernel, range_name):
    assert propose(kernel, range_name) is None


def foreign(**columns):
    """Launches of a report that is not ours: the first naive ones of the synthetic bundle, as some library calls them.
    """
    rows = BUNDLE.launches.head(4)
    empty = ("implementation", "stage", "config_id", "direction", "mask", "range_path")
    return rows.assign(**{name: rows[name].mask(rows.index >= 0) for name in empty}, range="", **columns)


KERNELS = ["ampere_s16816gemm_a", "vectorized_elementwise_kernel", "cunn_SoftMaxForward", "ampere_s16816gemm_b"]


def test_bytes_tell_the_matmuls_and_the_scale_beside_a_softmax():
    found = roles.groups(foreign(kernel=KERNELS))
    assert [group.proposed.stage for group in found] == ["scores", "scale", "softmax", "values"]
    silent = foreign(kernel=KERNELS)
    silent["dram_write_bytes"] = silent["dram_write_bytes"].mask(silent.index >= 0)
    assert [group.proposed and group.proposed.stage for group in roles.groups(silent)] == [None, None, "softmax", None]


def test_a_choice_goes_before_a_proposal_and_survives_the_link():
    chosen = roles.chosen("1.none_3.merge_x.scores_2.dance")
    assert chosen == {1: "", 3: "merge"} and roles.chosen(roles.link(chosen)) == chosen
    launches = roles.assign(foreign(kernel=KERNELS), chosen)
    assert list(launches["stage"].fillna("")) == ["scores", "", "softmax", "merge"]
    assert list(launches["implementation"].fillna(""))[:3] == ["naive_folded", "", "naive_folded"]  # nothing scales
    assert launches["config_id"].isna().all()  # no call was named


def test_with_the_call_a_report_carries_configurations():
    launches = foreign(kernel=KERNELS)
    named = roles.assign(launches, {}, roles.call("H16/4 Nq1 Nk4096 D64 fp16 causal"))
    assert set(named["config_id"]) == {"naive-forward-fp16-b1-h16-hk4-q1-k4096-d64-causal"}
    assert list(named.dtypes[["nq", "heads", "mask"]]) == list(launches.dtypes[["nq", "heads", "mask"]])
    twice = roles.assign(launches.assign(kernel=["flash_fwd_kernel"] * 4), {}, roles.call("H16 N64 D64"))
    assert list(twice["implementation"].fillna("")) == ["fa2", "", "", ""]  # the first stands for the call


@pytest.mark.parametrize("words", ["", "N64 D64", "H16 N64", "B1 H16 N64 D64 int3", "H16/5 N64 D64", "H0 N64 D64"])
def test_a_call_that_cannot_be_is_refused_with_an_example(words):
    with pytest.raises(BadInput):
        roles.call(words)


def test_a_range_may_name_the_call():
    words = "B2 H32/8 Nq1 Nk4096 D128 bf16 causal"
    assert roles.call_in(["mlp", f"layer 3: {words}"]) == words
    assert roles.call_in(["mlp"]) == ""
