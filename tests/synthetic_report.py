"""A made-up Nsight Compute CSV of attention on another GPU, to try the whole way from upload to compare without one.

Nothing in it was measured, and its file name, GPU name, process name and first line say so. Amounts follow from
B1 H16 N4096 D64 bf16 by hand; times are the slower of two A100 roofs over a made-up efficiency; a seeded jitter keeps
the figures from looking exact. Written anew by ``python -m tests.synthetic_report``.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.parse.forms import Launch, wide

FILE = Path(__file__).parents[1] / "data" / "reports" / "SYNTHETIC_not_measured_a100.csv"
GPU = "SYNTHETIC, as an A100-SXM4-80GB"
SAID = "SYNTHETIC REPORT: made up by tests/synthetic_report.py, nothing in it was measured on any GPU."
CALL = "SYNTHETIC B1 H16 N4096 D64 bf16 full"
SMS, SM_HZ, L2_BYTES = 108, 1.41e9, 41_943_040
DRAM_BYTES_A_CYCLE, DRAM_HZ = 1280, 1.593e9
XBAR_SECTORS_A_CYCLE = 80
FLOPS_A_CYCLE_AND_SM = 2048  # bf16 operands, dense
HEADS, N, D = 16, 4096, 64
Q = HEADS * N * D * 2  # bytes of Q, K, V or O
S = HEADS * N * N * 2  # bytes of S or P
PAIRS = HEADS * N * N
STAYS = 0.6 * L2_BYTES  # of what a kernel wrote, still in L2 when it ends

# kernel, reads, writes, tensor FLOPs, exponentials, bytes from L2 to the SMs, efficiency, warps active in per cent
KERNELS = (
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 2 * Q, S, 2 * PAIRS * D, 0, 33 * Q, 0.62, 24.1),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16, c10::BFloat16, "
     "c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char *, 2>>(int, T2, T3)", S, S, 0,
     0, S, 0.88, 86.0),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, at::native::"
     "(anonymous namespace)::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)", S, S, 0, PAIRS, S, 0.71, 92.3),
    ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn", S + Q, Q, 2 * PAIRS * D, 0, S + 33 * Q,
     0.66, 21.7),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, 0, 0, cutlass::bfloat16_t>, 0, 0, "
     "0, 1, 1, 0>(pytorch_flash::Flash_fwd_params)", 3 * Q, Q, 4 * PAIRS * D, PAIRS,
     HEADS * (N // 128) * 2 * N * D * 2 + Q, 0.61, 11.8),
)


def launches(seed: int = 4) -> list[Launch]:
    """The five launches: naive attention in four steps, then FlashAttention-2."""
    rng = random.Random(seed)
    return [_launch(rng, *kernel) for kernel in KERNELS]


def _launch(rng: random.Random, kernel: str, reads: int, writes: int, flops: int, exps: int, from_l2: int,
            efficiency: float, warps: float) -> Launch:
    read = reads * (1 + rng.uniform(0.001, 0.012))
    written = max(0.2 * writes, writes - STAYS * rng.uniform(0.8, 1.0))
    dram, tensor = DRAM_BYTES_A_CYCLE * DRAM_HZ, FLOPS_A_CYCLE_AND_SM * SMS * SM_HZ
    seconds = max((read + written) / dram, flops / tensor) / efficiency * (1 + rng.uniform(-0.01, 0.01))
    core = exps + flops // 1024  # thread-level additions; as many multiply-adds, half as many products
    counters = {
        "device__attribute_display_name": (GPU, ""), "device__attribute_multiprocessor_count": (SMS, ""),
        "device__attribute_l2_cache_size": (L2_BYTES, ""), "device__attribute_compute_capability_major": (8, ""),
        "device__attribute_compute_capability_minor": (0, ""), "gpu__time_duration.sum": (seconds * 1e9, "ns"),
        "dram__bytes_read.sum": (read // 32 * 32, "byte"), "dram__bytes_write.sum": (written // 32 * 32, "byte"),
        "dram__bytes.sum.peak_sustained": (DRAM_BYTES_A_CYCLE, "byte/cycle"),
        "dram__bytes.sum.per_second": ((read + written) / seconds, "byte/s"),
        "dram__cycles_elapsed.avg.per_second": (DRAM_HZ, "hz"),
        "lts__t_bytes.sum": (1.1 * from_l2 // 32 * 32, "byte"),
        "lts__lts2xbar_cycles_active.sum": (from_l2 * 1.02 // 32, "cycle"),
        "lts__lts2xbar_cycles_active.sum.peak_sustained": (XBAR_SECTORS_A_CYCLE, ""),
        "lts__cycles_elapsed.avg.per_second": (SM_HZ, "hz"),
        "l1tex__m_xbar2l1tex_read_bytes.sum": (from_l2 * (1 + rng.uniform(0.0002, 0.0008)) // 32 * 32, "byte"),
        "l1tex__m_l1tex2xbar_write_bytes.sum": (writes * 1.001 // 32 * 32, "byte"),
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": (flops, ""),
        "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum.peak_sustained": (FLOPS_A_CYCLE_AND_SM * SMS, ""),
        "sm__ops_path_tensor_src_int8.sum": (0, ""),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": (100 * flops / seconds / tensor, "%"),
        "sm__cycles_elapsed.avg.per_second": (SM_HZ, "hz"),
        "smsp__inst_executed_pipe_xu.sum": (exps * 1.03 // 32, "inst"),
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": (core, "inst"),
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": (core // 2, "inst"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": (core, "inst"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": (warps, "%"),
    }
    printed = {name: (value if isinstance(value, str) else f"{value:.0f}" if float(value) % 1 == 0 else f"{value:.2f}",
                      unit) for name, (value, unit) in counters.items()}
    return Launch(kernel, "8.0", "(16, 32, 1)", "(128, 1, 1)", printed,
                  f'77  "attention:{CALL}:none:none:none:none:ASCII:{CALL}" ')


def text() -> str:
    """The file: a line of the program's output that says what it is, then the table."""
    table = wide(launches()).replace('"app"', '"SYNTHETIC"').replace('"127.0.0.1"', '"SYNTHETIC"')
    return f"{SAID}\n==PROF== {SAID}\n{table}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
