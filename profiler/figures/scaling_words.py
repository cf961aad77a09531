"""What the curves over N say in words: where flash gains least and most, why, and the slope of each quantity."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from profiler.bundle import Bundle
from profiler.figures import labels, scaling, units
from profiler.model import log_slope
from profiler.spec import AttentionShape

QUANTITIES = ("time", "dram_bytes", "peak_memory")  # TFLOP/s is the same fit as time, with the sign turned


def gains(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str], direction: str = "forward") -> str:
    """How much faster than naive at the length of the least and of the most gain, and what fits in L2 at the least.

    "" where naive or a fused implementation was not timed at two common lengths.
    """
    naive = next((n for n in implementations if labels.is_naive(n)), None)
    fused = next((n for n in implementations if not labels.is_naive(n)), None)
    if not naive or not fused:
        return ""
    took = {name: _measured(bundle, shape, "time", name, direction) for name in (naive, fused)}
    ratio = (took[naive] / took[fused]).dropna()
    if len(ratio) < 2:
        return ""
    low, high = int(ratio.idxmin()), int(ratio.idxmax())
    who, n = labels.implementation(fused), "N" if shape.nq == shape.nk else "Nk"
    said = (f"{who} takes {units.times(1 / ratio[low])} the time of {labels.implementation(naive)} at {n} = "
            f"{units.whole(low)}" if ratio[low] < 1 else
            f"{who} gains least at {n} = {units.whole(low)}, where it is {units.times(ratio[low])} faster than "
            f"{labels.implementation(naive)}")
    said += f", and most at {n} = {units.whole(high)}: {units.times(ratio[high])}."
    if low > high:
        return labels.sentence(said)
    rates = [scaling.convention_flops(scaling.at(shape, length), direction) / took[fused][length] * 1e9
             for length in (low, high)]
    said += (f" At {n} = {units.whole(low)} it reaches {units.flops(rates[0])}, at {n} = {units.whole(high)} "
             f"{units.flops(rates[1])}{': a short sequence does not fill the GPU' if 2 * rates[0] < rates[1] else ''}.")
    return labels.sentence(said) + _in_l2(bundle, shape, naive, low, direction)


def _in_l2(bundle: Bundle, shape: AttentionShape, naive: str, n: int, direction: str) -> str:
    """What of naive's bytes L2 kept from HBM at length ``n``; "" where that is less than a tenth, or not counted."""
    rows = scaling.frame(bundle, shape, "dram_bytes", (naive,), direction)
    counted, predicted = (rows.loc[rows["n"].eq(n) & rows["kind"].eq(kind), "value"].dropna()
                          for kind in ("measured", "predicted"))
    l2, matrix = (bundle.profile.get("gpu") or {}).get("l2_size_bytes"), scaling.at(shape, n).matrix_bytes
    if counted.empty or predicted.empty or counted.iloc[0] > 0.9 * predicted.iloc[0] or not l2 or matrix > l2:
        return ""
    return (f" And naive moves {units.nbytes(counted.iloc[0])} through HBM where its passes make "
            f"{units.nbytes(predicted.iloc[0])}: S takes {units.nbytes(matrix)}, and the {units.nbytes(l2)} of L2 hold "
            "much of it.")


def _measured(bundle: Bundle, shape: AttentionShape, quantity: str, name: str, direction: str) -> pd.Series:
    """Measured values of one implementation over N."""
    rows = scaling.frame(bundle, shape, quantity, (name,), direction)
    rows = rows[rows["kind"].eq("measured") & rows["value"].gt(0).fillna(False).astype(bool)]
    return rows.set_index("n")["value"].astype(float)


def slopes(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
           direction: str = "forward") -> pd.DataFrame:
    """One row an implementation: the exponent of N in time, HBM bytes and peak memory, with its standard error and the
    lengths it is fitted over; missing where fewer than three were measured, and no row where none was."""
    out = []
    for name in implementations:
        row: dict[str, object] = {"implementation": labels.implementation(name)}
        for quantity in QUANTITIES:
            values = _measured(bundle, shape, quantity, name, direction)
            slope = log_slope([float(n) for n in values.index], list(values)) if len(values) > 2 else None
            row[scaling.AXIS[quantity][2]] = None if slope is None else (
                f"N^{slope.value:.2f} ± {max(slope.error or 0.0, 0.005):.2f}, N {units.whole(values.index.min())} to "
                f"{units.whole(values.index.max())}")
        if any(row[scaling.AXIS[quantity][2]] for quantity in QUANTITIES):
            out.append(row)
    return pd.DataFrame(out)
