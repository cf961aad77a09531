"""Which raw Nsight Compute metrics give each column of ``launches``, in order of preference. Names live here and
nowhere else.

A rule lists the names that it needs, all of them, and how they make the value; the first rule whose names are all there
wins, so two names of one thing are never added. A rule may hold for a range of compute capabilities only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Formula = Callable[..., float]
PASCAL = 6.0  # names of the versions up to 2019 that profiled it have no suffix (dram__read_bytes); asked for below 7.0


@dataclass(frozen=True, slots=True)
class Rule:
    """names: raw names, all needed; unit: base unit of the value (for the single name of a measured one).

    formula: None when the counter is the value. since, until: compute capabilities it holds for (until is exclusive).
    ask: whether to ask ncu for these names (False: kept for older or partial reports).
    """

    names: tuple[str, ...]
    unit: str = ""
    formula: Formula | None = None
    since: float = 0.0
    until: float = 99.0
    ask: bool = False

    @property
    def kind(self) -> str:
        return "measured" if self.formula is None else "derived"


def ask(name: str, unit: str, since: float = 0.0, until: float = 99.0) -> Rule:
    return Rule((name,), unit, None, since, until, ask=True)


def also(name: str, unit: str, since: float = 0.0, until: float = 99.0) -> Rule:
    return Rule((name,), unit, None, since, until)


def made(formula: Formula, *names: str, since: float = 0.0, until: float = 99.0) -> Rule:
    return Rule(names, "", formula, since, until)


def asked(formula: Formula, *names: str, since: float = 0.0, until: float = 99.0) -> Rule:
    return Rule(names, "", formula, since, until, ask=True)


SECTOR = 32  # bytes
LANES = 32  # threads a warp


def _times(factor: float) -> Formula:
    return lambda value: factor * value


def _product(a: float, b: float) -> float:
    return a * b


COLUMNS: Mapping[str, tuple[Rule, ...]] = {
    "duration_ns": (
        ask("gpu__time_duration.sum", "ns"), also("gpu__time_duration.avg", "ns"), also("gpu__time_duration.max", "ns"),
        ask("gpu__time_duration", "ns", PASCAL, 7.0), also("gpu__time_duration", "ns"), also("Duration", "ns")),
    "dram_read_bytes": (
        ask("dram__bytes_op_read.sum", "byte", since=12.0), ask("dram__bytes_read.sum", "byte", until=12.0),
        also("dram__bytes_read.sum", "byte"), also("dram__bytes_op_read.sum", "byte"),
        ask("dram__read_bytes", "byte", PASCAL, 7.0), also("dram__read_bytes.sum", "byte"),
        also("dram__read_bytes", "byte"),
        made(_times(SECTOR), "dram__sectors_read.sum"), made(_times(SECTOR), "dram__read_sectors"),
        made(lambda rate, ns: rate * ns * 1e-9, "dram__bytes_read.sum.per_second", "gpu__time_duration.sum")),
    "dram_write_bytes": (
        ask("dram__bytes_op_write.sum", "byte", since=12.0), ask("dram__bytes_write.sum", "byte", until=12.0),
        also("dram__bytes_write.sum", "byte"), also("dram__bytes_op_write.sum", "byte"),
        ask("dram__write_bytes", "byte", PASCAL, 7.0), also("dram__write_bytes.sum", "byte"),
        also("dram__write_bytes", "byte"),
        made(_times(SECTOR), "dram__sectors_write.sum"), made(_times(SECTOR), "dram__write_sectors"),
        made(lambda rate, ns: rate * ns * 1e-9, "dram__bytes_write.sum.per_second", "gpu__time_duration.sum")),
    "dram_bytes_per_second": (
        ask("dram__bytes.sum.per_second", "byte/s"), also("Memory Throughput", "byte/s"),
        ask("dram__bytes_per_sec", "byte/s", PASCAL, 7.0), also("dram__bytes_per_sec", "byte/s"),
        made(lambda read, write, ns: (read + write) / ns * 1e9,
             "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"),
        made(lambda read, write, ns: (read + write) / ns * 1e9,
             "dram__bytes_op_read.sum", "dram__bytes_op_write.sum", "gpu__time_duration.sum"),
        made(lambda read, write: read + write, "dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second")),
    "l2_bytes": (ask("lts__t_bytes.sum", "byte"), made(_times(SECTOR), "lts__t_sectors.sum")),
    "l2_to_xbar_bytes": (asked(_times(SECTOR), "lts__lts2xbar_cycles_active.sum"),),
    # Up to Ampere the sectors that L2 counts for the SMs equal the bytes that cross; from Hopper requests are merged
    # on the way.
    "l2_to_sm_bytes": (
        ask("l1tex__m_xbar2l1tex_read_bytes.sum", "byte"), made(_times(SECTOR), "l1tex__m_xbar2l1tex_read_sectors.sum"),
        made(_times(SECTOR), "lts__t_sectors_srcunit_tex_op_read.sum", until=9.0)),
    "sm_to_l2_bytes": (
        ask("l1tex__m_l1tex2xbar_write_bytes.sum", "byte"),
        made(_times(SECTOR), "lts__t_sectors_srcunit_tex_op_write.sum", until=9.0)),
    "tensor_pipe_pct": (
        ask("sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_elapsed", "%", since=8.9, until=9.0),
        ask("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%"),
        also("sm__pipe_tensor_cycles_active.sum.pct_of_peak_sustained_elapsed", "%"),
        also("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", until=8.0),
        also("sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed", "%", since=10.0),
        made(lambda pct, active, elapsed: pct * active / elapsed,
             "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
             "sm__cycles_active.avg", "sm__cycles_elapsed.avg")),
    "achieved_occupancy_pct": (
        ask("sm__warps_active.avg.pct_of_peak_sustained_active", "%"), also("Achieved Occupancy", "%"),
        ask("sm__active_warps_avg_per_active_cycle_pct", "%", PASCAL, 7.0),
        also("sm__active_warps_avg_per_active_cycle_pct", "%")),
    "theoretical_occupancy_pct": (
        ask("sm__maximum_warps_per_active_cycle_pct", "%", PASCAL), also("Theoretical Occupancy", "%")),
    "registers_per_thread": (
        ask("launch__registers_per_thread", "register/thread"), also("Registers Per Thread", "register/thread")),
    "shared_bytes_per_block": (
        ask("launch__shared_mem_per_block", "byte/block"),
        made(lambda a, b, c: a + b + c, "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic",
             "launch__shared_mem_per_block_driver"),
        made(lambda a, b, c: a + b + c, "Static Shared Memory Per Block", "Dynamic Shared Memory Per Block",
             "Driver Shared Memory Per Block"),
        made(lambda a, b: a + b, "launch__shared_mem_per_block_static",
             "launch__shared_mem_per_block_dynamic", until=8.0),
        made(lambda a, b: a + b, "Static Shared Memory Per Block", "Dynamic Shared Memory Per Block", until=8.0)),
    "waves_per_sm": (ask("launch__waves_per_multiprocessor", ""), also("Waves Per SM", "")),
    # Nsight's own spill count comes with its sections only, not by name; local memory is used for little but spills.
    "spill_requests": (
        also("derived__local_spilling_requests", ""),
        asked(lambda loads, stores: loads + stores, "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
              "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum", since=7.0)),
    "sm_clock_hz": (
        ask("sm__cycles_elapsed.avg.per_second", "hz"), also("smsp__cycles_elapsed.avg.per_second", "hz"),
        also("gpc__cycles_elapsed.avg.per_second", "hz"), also("SM Frequency", "hz"),
        ask("gpc__frequency", "hz", PASCAL, 7.0), also("gpc__frequency", "hz")),
    "dram_peak_bytes_per_s": (
        asked(_product, "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
        made(lambda rate, pct: rate / pct * 100 if pct else float("nan"),
             "dram__bytes_read.sum.per_second", "dram__bytes_read.sum.pct_of_peak_sustained_elapsed"),
        made(lambda rate, pct: rate / pct * 100 if pct else float("nan"),
             "dram__read_bytes_per_sec", "dram__read_pct", until=7.0),
        # two transfers a clock on every HBM and GDDR up to GDDR6X; checked against peak_sustained on V100, A100 and
        # H100
        made(lambda bits, hz: bits / 8 * 2 * hz, "device__attribute_global_memory_bus_width",
             "dram__cycles_elapsed.avg.per_second", until=10.0)),
    "l2_peak_bytes_per_s": (
        asked(lambda peak, hz: peak * SECTOR * hz, "lts__lts2xbar_cycles_active.sum.peak_sustained",
              "lts__cycles_elapsed.avg.per_second"),),
    "l2_size_bytes": (also("device__attribute_l2_cache_size", "byte"),),
    "sm_count": (
        also("device__attribute_multiprocessor_count", ""), also("launch__sm_count", "sm"), also("# SMs", "sm")),
    "special_ops": (
        asked(_times(LANES), "smsp__inst_executed_pipe_xu.sum"), made(_times(LANES), "sm__inst_executed_pipe_xu.sum"),
        made(lambda mufu: mufu, "sass__thread_inst_executed_true_per_opcode[MUFU]")),
}

# Resources that limit occupancy: the smallest number of blocks wins. Raw name, name on the details page.
LIMITERS: Mapping[str, tuple[str, ...]] = {
    "registers": ("launch__occupancy_limit_registers", "Block Limit Registers"),
    "shared memory": ("launch__occupancy_limit_shared_mem", "Block Limit Shared Mem"),
    "warps": ("launch__occupancy_limit_warps", "Block Limit Warps"),
    "blocks": ("launch__occupancy_limit_blocks", "Block Limit SM"),
    "barriers": ("launch__occupancy_limit_barriers", "Block Limit Barriers"),
}
BARRIERS_SINCE = 9.0

# CUDA-core FLOPs: add + mul + 2·fma of thread-level instructions; fp16 instructions work on two lanes.
SASS_OPS = "smsp__sass_thread_inst_executed_op_{}_pred_on"
CORE_FLOPS: Mapping[str, tuple[str, int]] = {"fp32_flops": ("f", 1), "fp16_flops": ("h", 2), "fp64_flops": ("d", 1)}

# Identity, for reports that give it as metrics.
DEVICE_NAME = "device__attribute_display_name"
CC_MAJOR, CC_MINOR = "device__attribute_compute_capability_major", "device__attribute_compute_capability_minor"
GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")
PROFILE = {  # key of profile["gpu"]: metric, factor to base units
    "name": (DEVICE_NAME, 1), "sm_count": ("device__attribute_multiprocessor_count", 1),
    "l2_size_bytes": ("device__attribute_l2_cache_size", 1), "memory_bytes": ("device__attribute_total_memory", 1),
    "max_sm_clock_hz": ("device__attribute_clock_rate", 1000),
    "memory_clock_hz": ("device__attribute_memory_clock_rate", 1000),
    "memory_bus_bits": ("device__attribute_global_memory_bus_width", 1),
}
PASSES = "profiler__replayer_passes"

# Chips whose memory is the system's: no dram__ counters exist there. Compute capability → which.
NO_DRAM = {"7.2": "Jetson Xavier", "8.7": "Jetson Orin", "10.1": "Jetson Thor", "11.0": "Jetson Thor", "12.1": "GB10"}
DRAM_COLUMNS = frozenset(("dram_read_bytes", "dram_write_bytes", "dram_bytes_per_second", "dram_peak_bytes_per_s"))
NO_TENSOR_UNTIL = 7.0

# Names of the details page that stand there with more than one meaning, told apart by their unit.
SEVERAL_UNITS = frozenset(("Memory Throughput",))

TEXT_NAMES = frozenset((DEVICE_NAME,))

# Nsight Compute's own rules, kept beside the counters of a binary report: title, and the speed-up in % it estimates.
RULE, RULE_SPEEDUP = "rule[{}]", "rule[{}].speedup"

# What a warp waits for in a cycle in which it issues nothing, and the two states of one that can issue.
STALL_REASONS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait")
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
GMMA_SINCE = 9.0  # the first that has matmuls which a warp waits for

# Raw metrics that pages show beside the columns: kept even when a large report is read in part.
SHOWN_NAMES = frozenset((
    "launch__thread_count", "launch__grid_size", "launch__block_size", "launch__occupancy_limit_barriers",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    *(f"l1tex__lsu_writeback_active{part}.sum" for part in ("", "_mem_lg", "_mem_lgds")),
    "sm__inst_executed_pipe_tensor_op_gmma.sum", "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct",
    *map(STALL.format, STALL_REASONS)))
