"""Tensor-core operations: which counters hold them on each architecture, and the dense peak that belongs to each.

The counters count 2 a multiply-add already. Integer operations are operations, not FLOPs, and kept apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiler.metrics.reader import Reader, applies

# Tensor operations: names after sm__ops_path_tensor_, by operand type, as NVIDIA's metric library has them for each
# chip.
TENSOR_PREFIX = "sm__ops_path_tensor_"
HALF = 0.5


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One way to count the operations on an operand type. The first rule of a type of which any part is there counts.

    parts: disjoint counters, added. A name without _sparsity holds _sparsity_off and _sparsity_on together.
    peaks: for each part, the counter whose peak_sustained is the dense peak, and the factor that makes it dense.
    integer: operations, not FLOPs.
    """

    dtype: str
    parts: tuple[str, ...]
    since: float = 0.0
    until: float = 99.0
    peaks: tuple[tuple[str, float], ...] = ()
    ask: bool = False
    integer: bool = False


def _both(*names: str) -> tuple[str, ...]:
    """A counter's two parts by sparsity."""
    return tuple(f"{name}{suffix}" for name in names for suffix in ("_sparsity_off", "_sparsity_on"))


def _dense(*names: str) -> tuple[tuple[str, float], ...]:
    return tuple((f"{name}_sparsity_off", 1.0) for name in names)


def _wide_types() -> tuple[TensorRule, ...]:
    """bf16 and tf32, which accumulate in fp32 only. On sm_90 the peak of the whole name is measured to be the sparse
    one."""
    found: list[TensorRule] = []
    for t in ("bf16", "tf32"):
        d = f"{t}_dst_fp32"
        found += [
            TensorRule(t, (f"src_{d}",), 8.0, 9.0, _dense(f"src_{d}"), ask=True),
            TensorRule(t, (f"src_{d}",), 9.0, 10.0, ((f"src_{d}", HALF),), ask=True),
            TensorRule(t, (f"src_{d}",), 10.0, 12.0, _dense(f"op_utchmma_src_{d}"), ask=True),
            TensorRule(t, (f"src_{d}",), 12.0, peaks=_dense(f"op_hmma_src_{d}"), ask=True),
            TensorRule(t, _both(f"src_{d}"), 8.0, 9.0, (*_dense(f"src_{d}"),) * 2),
            TensorRule(t, (f"op_hmma_src_{d}", f"op_hgmma_src_{d}"), 9.0, 10.0, _dense(f"op_hgmma_src_{d}") * 2),
            TensorRule(t, _both(f"op_hmma_src_{d}", f"op_hgmma_src_{d}"), 9.0, 10.0, _dense(f"op_hgmma_src_{d}") * 4),
        ]
    return tuple(found)


FP16 = ("src_fp16_dst_fp32", "src_fp16_dst_fp16")
HMMA16 = ("op_hmma_src_fp16_dst_fp32", "op_hmma_src_fp16_dst_fp16")
TENSOR: tuple[TensorRule, ...] = (
    TensorRule("fp16", FP16, until=7.5, peaks=tuple((n, 1.0) for n in FP16), ask=True),
    TensorRule("fp16, bf16 or tf32", ("src_fp16_bf16_tf32_dst_fp32",), 7.5, 8.0,
               (("src_fp16_bf16_tf32_dst_fp32", 1.0),), ask=True),
    TensorRule("fp16", ("src_fp16_dst_fp16",), 7.5, 8.0, (("src_fp16_dst_fp16", 1.0),), ask=True),
    TensorRule("fp16", FP16, 8.0, 9.0, _dense(*FP16), ask=True),
    TensorRule("fp16", ("src_fp16",), 9.0, 10.0, (("src_fp16", HALF),), ask=True),
    TensorRule("fp16", (*HMMA16, "op_hgmma_src_fp16"), 9.0, 10.0, _dense("op_hgmma_src_fp16") * 3),
    TensorRule("fp16", _both(*HMMA16, "op_hgmma_src_fp16"), 9.0, 10.0, _dense("op_hgmma_src_fp16") * 6),
    TensorRule("fp16", FP16, 10.0, 12.0, _dense(*(f"op_utchmma_{n}" for n in FP16)), ask=True),
    TensorRule("fp16", FP16, 12.0, peaks=_dense(*(f"op_hmma_{n}" for n in FP16)), ask=True),
    *_wide_types(),
    TensorRule("fp8", ("src_fp8",), 8.9, 10.0, _dense("src_fp8"), ask=True),
    TensorRule("fp4, fp6 or fp8", ("src_fp4_fp6_fp8_dst_fp32", "src_fp4_fp6_fp8_dst_fp16"), 10.0, 10.3,
               _dense("op_utcqmma_src_fp4_fp6_fp8_dst_fp32", "op_utcqmma_src_fp4_fp6_fp8_dst_fp16"), ask=True),
    TensorRule("fp8", ("src_fp8_dst_fp32", "src_fp8_dst_fp16"), 10.3, 11.0,
               _dense("op_utcqmma_src_fp8_dst_fp32", "op_utcqmma_src_fp8_dst_fp16"), ask=True),
    TensorRule("fp4, fp6 or fp8", ("src_fp4_fp6_fp8_dst_fp32", "src_fp4_fp6_fp8_dst_fp16"), 11.0, 12.0,
               _dense("op_utcqmma_src_fp4_fp6_fp8_dst_fp32", "op_utcqmma_src_fp4_fp6_fp8_dst_fp16"), ask=True),
    TensorRule("fp8", ("src_fp8_dst_fp32", "src_fp8_dst_fp16"), 12.0,
               peaks=_dense("src_fp8_dst_fp32", "src_fp8_dst_fp16"), ask=True),
    TensorRule("fp4", ("src_fp4_dst_fp32",), 10.0),
    TensorRule("fp4 or fp6", ("src_fp4_fp6_dst_fp32", "src_fp4_fp6_dst_fp16"), 10.3),
    TensorRule("fp64", ("src_fp64",), 8.0),
    TensorRule("int8", ("src_int8",), 7.2, ask=True, integer=True),
    TensorRule("int4", ("src_int4",), 7.5, 9.0, integer=True),
    TensorRule("int1", ("src_int1",), 7.5, 10.0, integer=True),
    TensorRule("int8", _both("src_int8"), 8.0, 9.0, integer=True),
    TensorRule("int4", _both("src_int4"), 8.0, 9.0, integer=True),
)

# When any of these is exactly 0 the tensor cores did nothing, whatever operations were counted.
TENSOR_IDLE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.sum", "smsp__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tensor.sum",
)
# Its instances are warp-level executions by opcode with modifiers; the reader hands them over as OPCODES[opcode].
OPCODES = "sass__inst_executed_per_opcode_with_modifier_all"


@dataclass(slots=True)
class _Counted:
    """Operations on one operand type: total, the names it came from, the rule, and which of its parts did most."""

    total: float
    names: tuple[str, ...]
    rule: TensorRule
    most: int


def resolve(reader: Reader, cc: float | None) -> None:
    """tensor_flops, tensor_ops, tensor_dtype and the dense peak of that type."""
    by_type: dict[str, _Counted] = {}
    for rule in TENSOR:
        if rule.dtype in by_type or not applies(rule, cc):
            continue
        parts = [(i, found) for i, part in enumerate(rule.parts)
                 if (found := reader.counter(TENSOR_PREFIX + part, "sm"))]
        if parts:
            names = tuple(dict.fromkeys(n for _, found in parts for n in found.names))
            most = max(parts, key=lambda part: part[1].value)[0]
            by_type[rule.dtype] = _Counted(sum(found.value for _, found in parts), names, rule, most)
    for integer, column in ((False, "tensor_flops"), (True, "tensor_ops")):
        mine = [counted for counted in by_type.values() if counted.rule.integer == integer]
        if mine:
            names = tuple(dict.fromkeys(n for counted in mine for n in counted.names))
            kind = "measured" if all(n.endswith(".sum") for n in names) else "derived"
            reader.out.put(column, sum(counted.total for counted in mine), names, kind)
    from_opcodes = _tensor_from_opcodes(reader, cc)
    _idle(reader)
    dtype, most_done = max(by_type.items(), key=lambda item: item[1].total, default=("", None))
    if most_done is not None and most_done.total > 0:
        reader.out.put("tensor_dtype", dtype, most_done.names, "derived")
        _dense_peak(reader, most_done, cc)
    elif from_opcodes:
        dtype = max(from_opcodes, key=lambda t: from_opcodes[t][0])
        reader.out.put("tensor_dtype", dtype, from_opcodes[dtype][1], "derived")


def _dense_peak(reader: Reader, counted: _Counted, cc: float | None) -> None:
    """Dense FLOP/s of the operand type and accumulator that did most, at the clock of the launch.

    Only for a known architecture: whether a name's peak is the dense or the sparse one depends on it.
    """
    clock = "sm__cycles_elapsed.avg.per_second"
    hz = reader.number(clock, "hz")
    if hz is None or cc is None or counted.rule.integer or not counted.rule.peaks:
        return
    choices = [counted.rule.peaks[counted.most]]
    if 9.0 <= cc < 10.0:  # Hopper has one dense peak a type, whatever the instruction and accumulator
        choices += [peak for rule in TENSOR if rule.dtype == counted.rule.dtype and applies(rule, cc)
                    for peak in rule.peaks]
    for counter, factor in choices:
        name = f"{TENSOR_PREFIX}{counter}.sum.peak_sustained"
        value = reader.number(name)
        if value is not None:
            reader.out.put("tensor_peak_flops_per_s", value * factor * hz, (name, clock), "derived")
            return


def _tensor_from_opcodes(reader: Reader, cc: float | None) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Tensor operations from executed instructions, where no counter gives them: each says its shape and types.

    A warp-level IMMA.16832.S8.S8 does 2·16·8·32 integer operations. Volta's HMMA.884 comes in steps of unlike size
    and is left.
    """
    listed = [name for name in reader.raw if name.startswith(OPCODES + "[")]
    if not listed or "tensor_flops" in reader.out.values:
        return {}
    totals: dict[tuple[bool, str], float] = {}
    names: dict[tuple[bool, str], tuple[str, ...]] = {}
    for name in listed:
        opcode = name[len(OPCODES) + 1:-1]
        if not opcode.split(".")[0].endswith("MMA"):
            continue
        work = instruction_ops(opcode)
        if work is None:
            return {}
        ops, dtype, integer = work
        value = reader.number(name)
        if value is None:
            return {}
        key = (integer, dtype)
        totals[key] = totals.get(key, 0.0) + ops * value
        names[key] = (*names.get(key, ()), name)
    for integer, column in ((False, "tensor_flops"), (True, "tensor_ops")):
        mine = [key for key in totals if key[0] == integer]
        used = tuple(n for key in mine for n in names[key]) or (OPCODES,)
        if column not in reader.out.values:
            reader.out.put(column, sum(totals[key] for key in mine), used, "derived")
    return {key[1]: (value, names[key]) for key, value in totals.items() if value}


OPERANDS = {"BF16": "bf16", "TF32": "tf32", "E4M3": "fp8", "E5M2": "fp8", "S8": "int8", "U8": "int8", "S4": "int4",
            "U4": "int4"}
SHAPES = {"16832": (16, 8, 32), "16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "8816": (8, 8, 16),
          "8832": (8, 8, 32), "884": (8, 8, 4), "16864": (16, 8, 64), "168128": (16, 8, 128), "168256": (16, 8, 256),
          "88128": (8, 8, 128)}


def instruction_ops(opcode: str) -> tuple[int, str, bool] | None:
    """(operations of one warp-level execution, operand type, integer) of a tensor instruction; None when its name
    does not say.

    A multiply-add counts 2. A sparse instruction (``.SP``) computes the full depth it names. HGMMA is issued by four
    warps, each doing a quarter of the 64-row tile.
    """
    head, *parts = opcode.split(".")
    integer = head.lstrip("U").startswith(("I", "B"))
    group = re.fullmatch(r"(\d+)x(\d+)x(\d+)", next((p for p in parts if "x" in p), ""))
    if group:
        m, n, k = (int(v) for v in group.groups())
        ops = 2 * m * n * k // 4
    else:
        shape = SHAPES.get(next((p for p in parts if p.isdigit()), ""))
        if shape is None or any(p.startswith("STEP") for p in parts) or (shape == (8, 8, 4) and head != "DMMA"):
            return None
        ops = 2 * shape[0] * shape[1] * shape[2]
    dtype = next((OPERANDS[p] for p in parts if p in OPERANDS), "")
    if not dtype:
        dtype = "fp64" if head == "DMMA" else "int1" if head.startswith("B") else "int8" if integer else "fp16"
    return ops, dtype, integer


def _idle(reader: Reader) -> None:
    for column in ("tensor_flops", "tensor_ops"):
        if column in reader.out.values:
            continue
        for name in TENSOR_IDLE:
            if reader.number(name) == 0:
                reader.out.put(column, 0.0, (name,), "derived")
                break
