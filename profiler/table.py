"""The tidy tables: their columns, units and meaning; making, checking, reading and writing them.

One row of ``launches`` is one kernel launch, one row of ``metrics`` one raw counter of a launch, one row of ``timings``
one configuration timed without a profiler. Base units everywhere (bytes, nanoseconds, hertz, per cent of 100).
A value that was not measured is null, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_float_dtype

from profiler.errors import BadInput, DamagedFile, FlashScopeError
from profiler.spec import CONFIG_KEY

TEXT, WHOLE, REAL, FLAG = "string", "Int64", "Float64", "boolean"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: pandas dtype, unit ("" for none), what it means, and how its value comes about.

    kind: "identity" (which launch), "measured" (a counter as read), "derived" (computed from counters or attributes).
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    kind: str = "measured"


def _key_columns() -> tuple[Column, ...]:
    whole = {"batch", "heads", "kv_heads", "nq", "nk", "head_dim"}
    meaning = {
        "config_id": "configuration this row belongs to", "implementation": "name in the kernel registry, or a peer",
        "stage": "step of the implementation (scores, scale, mask, softmax, values; attention when it is one)",
        "direction": "forward or backward", "dtype": "element type of Q, K and V", "batch": "batch size",
        "heads": "query heads", "kv_heads": "key/value heads", "nq": "queries", "nk": "keys", "head_dim": "head size",
        "mask": "full, causal or window:LEFT,RIGHT", "range_path": "NVTX ranges from outermost to innermost",
    }
    return tuple(Column(n, WHOLE if n in whole else TEXT, "", meaning[n], "identity") for n in CONFIG_KEY)


LAUNCHES: tuple[Column, ...] = (
    Column("source", TEXT, "", "file or bundle the row came from", "identity"),
    Column("launch", WHOLE, "", "order of the launch in its source, from 0", "identity"),
    Column("range", TEXT, "", "name of the innermost NVTX range", "identity"),
    Column("domain", TEXT, "", "NVTX domain of that range", "identity"),
    Column("kernel", TEXT, "", "demangled kernel name", "identity"),
    Column("device", TEXT, "", "GPU name as reported", "identity"),
    Column("cc", TEXT, "", "compute capability, as 9.0", "identity"),
    Column("grid", TEXT, "blocks", "x,y,z", "identity"),
    Column("block", TEXT, "threads", "x,y,z", "identity"),
    Column("duration_ns", REAL, "ns", "GPU time of the launch under the profiler"),
    Column("dram_read_bytes", REAL, "B", "bytes read from device memory"),
    Column("dram_write_bytes", REAL, "B", "bytes written to device memory"),
    Column("dram_bytes_per_second", REAL, "B/s", "achieved device-memory bandwidth"),
    Column("l2_bytes", REAL, "B", "bytes of all L2 requests"),
    Column("l2_to_xbar_bytes", REAL, "B", "bytes from L2 into the crossbar: the traffic of the L2 roof", "derived"),
    Column("l2_to_sm_bytes", REAL, "B", "bytes that arrived at the SMs from L2"),
    Column("sm_to_l2_bytes", REAL, "B", "bytes that left the SMs for L2"),
    Column("tensor_flops", REAL, "FLOP", "floating-point operations of the tensor cores, a multiply-add counts 2"),
    Column("tensor_ops", REAL, "op", "integer operations of the tensor cores"),
    Column("tensor_dtype", TEXT, "", "operand type of most tensor operations", "derived"),
    Column("fp32_flops", REAL, "FLOP", "CUDA-core fp32 operations, fadd + fmul + 2·ffma", "derived"),
    Column("fp16_flops", REAL, "FLOP", "CUDA-core fp16 operations, both lanes", "derived"),
    Column("fp64_flops", REAL, "FLOP", "CUDA-core fp64 operations", "derived"),
    Column("special_ops", REAL, "op", "thread-level special-function operations, exponentials and the like", "derived"),
    Column("tensor_pipe_pct", REAL, "%", "cycles the tensor pipe was active, of elapsed cycles"),
    Column("achieved_occupancy_pct", REAL, "%", "active warps, of the most an SM can hold"),
    Column("theoretical_occupancy_pct", REAL, "%", "most active warps that the launch's resources allow"),
    Column("occupancy_limiter", TEXT, "", "resource that sets the theoretical occupancy", "derived"),
    Column("registers_per_thread", REAL, "registers", "registers a thread"),
    Column("shared_bytes_per_block", REAL, "B", "shared memory a block"),
    Column("waves_per_sm", REAL, "waves", "grid size over the blocks that are resident at once"),
    Column("spill_requests", REAL, "requests", "local-memory requests caused by register spills"),
    Column("sm_clock_hz", REAL, "Hz", "average SM clock during the launch"),
    Column("dram_peak_bytes_per_s", REAL, "B/s", "device-memory peak at the measured clock", "derived"),
    Column("l2_peak_bytes_per_s", REAL, "B/s", "L2 → crossbar peak at the measured clock", "derived"),
    Column("tensor_peak_flops_per_s", REAL, "FLOP/s", "dense peak for tensor_dtype at the measured clock", "derived"),
    Column("l2_size_bytes", REAL, "B", "L2 size"),
    Column("sm_count", REAL, "SMs", "streaming multiprocessors"),
    *_key_columns(),
    Column("parameters", TEXT, "", "tuning parameters as JSON: block_m, block_n, num_warps, ...", "identity"),
)

METRICS: tuple[Column, ...] = (
    Column("launch", WHOLE, "", "row of launches this belongs to", "identity"),
    Column("metric", TEXT, "", "name as Nsight Compute writes it", "identity"),
    Column("unit", TEXT, "", "unit as it came", "identity"),
    Column("value", TEXT, "", "value as it came, as text (numbers keep all their digits)"),
    Column("used_for", TEXT, "", "launches columns that use it, separated by spaces; null when none does", "identity"),
)

TIMINGS: tuple[Column, ...] = (
    *_key_columns(),
    Column("parameters", TEXT, "", "tuning parameters as JSON", "identity"),
    Column("status", TEXT, "", "ok, or why there is no value (out of memory, refused: ...)", "identity"),
    Column("median_ns", REAL, "ns", "median of CUDA-event times, L2 flushed before each call"),
    Column("p20_ns", REAL, "ns", "20th percentile of the same"),
    Column("p80_ns", REAL, "ns", "80th percentile of the same"),
    Column("warm_median_ns", REAL, "ns", "median without the flush"),
    Column("repetitions", WHOLE, "", "timed calls"),
    Column("peak_memory_bytes", REAL, "B", "peak allocation above the inputs during one call, output included"),
    Column("error_max_abs", REAL, "", "largest |output − float64 reference|"),
    Column("error_relative", REAL, "", "‖output − reference‖ / ‖reference‖, float64 reference"),
    Column("error_eager_relative", REAL, "", "the same of eager PyTorch in the same dtype"),
    Column("error_rows", TEXT, "", "rows compared: all, or which sample"),
    Column("sm_clock_hz", REAL, "Hz", "SM clock read right after the timed calls"),
    Column("power_w", REAL, "W", "board power read right after the timed calls"),
    Column("temperature_c", REAL, "°C", "GPU temperature read right after the timed calls"),
    Column("throttle", TEXT, "", "what held the clock down then, as NVML says it: power cap, heat, ...; none: nothing"),
    Column("gpu", TEXT, "", "which GPU of several: the first digits of its UUID", "identity"),
    Column("note", TEXT, "", "anything a reader must know of this row", "identity"),
)

TABLES: Mapping[str, tuple[Column, ...]] = {"launches": LAUNCHES, "metrics": METRICS, "timings": TIMINGS}


def column(table: str, name: str) -> Column:
    """The schema entry of one column."""
    for entry in TABLES[table]:
        if entry.name == name:
            return entry
    raise KeyError(f"{table} has no column {name!r}")


def make(table: str, rows: Iterable[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """A table of the schema from dicts; absent keys become null, unknown keys are a programming error."""
    schema = TABLES[table]
    names = {c.name for c in schema}
    rows = list(rows)
    unknown = {key for row in rows for key in row} - names
    if unknown:
        raise KeyError(f"{table} has no column {sorted(unknown)}")
    return pd.DataFrame(
        {c.name: pd.array([row.get(c.name) for row in rows], dtype=c.dtype) for c in schema},
        columns=[c.name for c in schema],
    )


def validate(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` in the schema's column order and dtypes: missing columns added as null, unknown ones refused."""
    schema = TABLES[table]
    unknown = [str(name) for name in frame.columns if name not in {c.name for c in schema}]
    if unknown:
        raise BadInput(
            f"table {table}: unknown column {', '.join(unknown)}.",
            remedy="Was the table written by a later FlashScope? Update, or import the original reports again.",
        )
    out = {}
    for c in schema:
        values: Any = frame[c.name] if c.name in frame.columns else [None] * len(frame)
        try:
            series = pd.Series(values)
            if c.dtype == WHOLE and is_float_dtype(series) and (series.dropna() % 1 != 0).any():
                raise ValueError("a fraction")  # a cast would cut it off
            out[c.name] = series.astype(c.dtype).reset_index(drop=True)
        except (TypeError, ValueError) as error:
            got = str(error)[:120]
            raise BadInput(f"table {table}, column {c.name}: expected {c.dtype} values, got {got}.") from error
    return pd.DataFrame(out, columns=[c.name for c in schema])


def concat(table: str, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Several tables of one schema as one."""
    frames = [f for f in frames if len(f)]
    return validate(table, pd.concat(frames, ignore_index=True)) if frames else make(table)


def write(table: str, frame: pd.DataFrame, path: Path) -> None:
    """Write ``frame`` as parquet."""
    validate(table, frame).to_parquet(path, index=False, compression="zstd")


def read(table: str, path: Path, launch: int | None = None) -> pd.DataFrame:
    """Read a parquet file and check it against the schema; launch: only the rows of that one."""
    return check(table, validate(table, given(path, launch)))


def given(path: Path, launch: int | None = None) -> pd.DataFrame:
    """A parquet file as it is."""
    filters = None if launch is None else [("launch", "==", launch)]
    with _readable(path):
        return pd.read_parquet(path, dtype_backend="numpy_nullable", filters=filters)


def parts(table: str, path: Path) -> Iterator[pd.DataFrame]:
    """The rows of a parquet file, a row group at a time."""
    from pyarrow import parquet

    with _readable(path), parquet.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield validate(table, file.read_row_group(number).to_pandas())


def read_names(table: str, path: Path) -> None:
    """Check the columns of a parquet file against the schema without reading it."""
    from pyarrow import parquet

    with _readable(path):
        names = parquet.read_schema(path).names
    validate(table, pd.DataFrame(columns=names))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FlashScopeError:
        raise
    except Exception as error:  # pyarrow raises many classes for a damaged file
        raise DamagedFile(f"{path.name}: not a readable parquet table ({str(error)[:120]}).",
                          remedy="Copy the bundle again, or import the original reports again.") from error


LARGEST = {REAL: 1e30, WHOLE: 2**53}  # beyond it sums become infinite, and a browser rounds whole numbers
SMALLEST = 1e-30  # above 0: below it quotients become infinite
_TRIPLE = r"\d{1,10},\d{1,10},\d{1,10}"


def check(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` itself, if its values can be (``faults``)."""
    for row, what in faults(table, frame):
        raise BadInput(f"table {table}, {what} in row {row}.")
    return frame


def faults(table: str, frame: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(number of the row, what is wrong with it) of a validated table: no quantity is negative or beyond LARGEST, every
    launch has a number, grids and blocks are x,y,z, parameters are JSON objects."""
    def found(bad: pd.Series, column: str, expected: str) -> Iterator[tuple[int, str]]:
        for row, value in zip(bad.index, bad):
            got = "none" if value is pd.NA else f"{value[:60]!r}" if isinstance(value, str) else f"{value}"
            yield int(row), f"column {column}: expected {expected}, got {got}"

    for c in TABLES[table]:
        known = frame[c.name].dropna()
        if c.dtype in LARGEST:
            yield from found(known[~possible(known, c.dtype)], c.name, "finite values of 0 or more")
    if table != "timings":
        yield from found(frame["launch"][frame["launch"].isna()], "launch", "a number in every row")
    for name in [name for name in ("grid", "block") if name in frame]:
        sizes = frame[name].dropna()
        if not pd.Series(sizes.unique(), dtype=TEXT).str.fullmatch(_TRIPLE).all():
            yield from found(sizes[~sizes.str.fullmatch(_TRIPLE).astype(bool)], name, "x,y,z")
    if "parameters" in frame:
        texts = frame["parameters"].dropna()
        bad = [text for text in texts.unique() if not _is_object(text)]
        yield from found(texts[texts.isin(bad)], "parameters", "a JSON object")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):
        return False


def possible(value: Any, dtype: str = REAL) -> Any:
    """Whether a number, or each of a column, can be of a quantity: 0, or from SMALLEST to LARGEST."""
    return (value == 0) | ((value >= SMALLEST) & (value <= LARGEST[dtype]))


def _no_constant(name: str) -> None:
    """NaN and Infinity, which JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def rows(path: Path) -> int:
    """Number of rows of a parquet file, without reading them; 0 when it is not one."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return parquet.read_metadata(path).num_rows
    except (ArrowInvalid, OSError):
        return 0


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain dicts for JSON: null stays None, a whole number is an int (counters are)."""
    names = list(frame.columns)
    return [dict(zip(names, row)) for row in zip(*(values(frame[name]) for name in names))]


def values(column: pd.Series) -> list[Any]:
    """One column as plain values, as in ``records``."""
    if column.dtype in (TEXT, WHOLE, FLAG):
        return column.to_numpy(dtype=object, na_value=None).tolist()
    if not is_float_dtype(column):
        return [_one(value) for value in column.to_numpy(dtype=object, na_value=None).tolist()]
    numbers = column.to_numpy(dtype=float, na_value=float("nan"))
    whole = (numbers % 1 == 0) & (abs(numbers) < 2**53)
    return [None if value != value else int(value) if is_whole else value
            for value, is_whole in zip(numbers.tolist(), whole.tolist())]


def _one(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if hasattr(value, "item"):
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
