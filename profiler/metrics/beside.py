"""What the launches table has no column for, from a bundle's raw metrics: L1 traffic, and the accumulator's type.

Of a bundle whose raw metrics stay on disk nothing is read: that would take longer than the chart may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiler.metrics.tensor import TENSOR_PREFIX

if TYPE_CHECKING:
    import pandas as pd

LINE = 128  # bytes that L1 hands to the SM's registers a cycle: one write-back of the load/store unit
WRITE_BACKS = "l1tex__lsu_writeback_active{}.sum"
SUFFIXES = ("_mem_lgds", "_mem_lg", "")  # narrowest first: with and without what is not memory
GMMA, TMA = "sm__inst_executed_pipe_tensor_op_gmma.sum", "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"
TMA_SINCE = 9.0


def l1_bytes(bundle: Any) -> pd.Series:
    """Bytes that L1 handed to registers, in the order of launches; null where not counted or not the kernel's traffic.

    Loads by TMA and matmuls from shared memory (wgmma) pass this counter by: from compute capability 9.0 on a launch
    has a value only where both are counted as 0.
    """
    import pandas as pd

    launches = bundle.launches
    found = pd.Series(pd.NA, index=launches["launch"], dtype="Float64")
    for suffix in SUFFIXES:
        found = found.fillna(LINE * _values(bundle, WRITE_BACKS.format(suffix)))
    modern = pd.to_numeric(launches["cc"], errors="coerce").ge(TMA_SINCE).to_numpy(dtype=bool, na_value=True)
    clear = (_values(bundle, GMMA).eq(0) & _values(bundle, TMA).eq(0)).fillna(False).to_numpy(dtype=bool)
    return found.mask(modern & ~clear).set_axis(launches.index)


def accumulators(bundle: Any) -> pd.Series:
    """"fp16" where the tensor operations of a launch accumulated in fp16 for the most part, else "fp32"."""
    import pandas as pd

    raw = bundle.metrics
    counters = [name for name in raw["metric"].unique() if str(name).startswith(TENSOR_PREFIX) and "_dst_" in name
                and name.endswith(".sum")]
    mine = raw[raw["metric"].isin(counters)]
    mine = mine[mine["used_for"].fillna("").str.contains("tensor_flops", regex=False).astype(bool)]
    half = mine["metric"].str.contains("_dst_fp16", regex=False).astype(bool)
    value = pd.to_numeric(mine["value"], errors="coerce").fillna(0.0).astype(float)
    most = (value.where(half, -value)).groupby(mine["launch"]).sum().gt(0)
    launches = bundle.launches
    found = most.reindex(launches["launch"], fill_value=False)
    return found.map({True: "fp16", False: "fp32"}).set_axis(launches.index)


def _values(bundle: Any, name: str) -> pd.Series:
    """A raw metric by launch number, in the order of launches; null where a launch has none."""
    import pandas as pd

    rows = bundle.metrics[bundle.metrics["metric"].eq(name).fillna(False)].drop_duplicates("launch")
    values = pd.to_numeric(rows["value"], errors="coerce").astype("Float64").set_axis(rows["launch"])
    return values.reindex(bundle.launches["launch"])
