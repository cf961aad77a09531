"""What the curves over N say in words: where flash gains least and most, why, and the slope of each quantity."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from profiler.bundle import Bundle
from profiler.figures import labels, lengths, scaling, units
from profiler.model import log_slope
from profiler.spec import AttentionShape

QUANTITIES = ("time", "dram_bytes", "peak_memory")  # TFLOP/s is the same fit as time, with the sign turned
OVER = "fitted over N"


def gains(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str], direction: str = "forward") -> str:
    """How much faster than naive at the length of the least and of the most gain, and what fits in L2 at the least.

    "" where naive or a fused implementation was not timed at two common lengths.
    """
    naive = next((n for n in implementations if labels.is_naive(n)), None)
    fused = next((n for n in implementations if not labels.is_naive(n)), None)
    if not naive or not fused:
        return ""
    took = {name: scaling.measured_over_n(bundle, shape, "time", name, direction) for name in (naive, fused)}
    ratio = {n: ns / took[fused][n] for n, ns in took[naive].items() if n in took[fused]}
    if len(ratio) < 2:
        return ""
    low, high = min(ratio, key=ratio.__getitem__), max(ratio, key=ratio.__getitem__)
    who, n = labels.implementation(fused), "N" if shape.nq == shape.nk else "Nk"
    said = (f"{who} takes {units.times(1 / ratio[low])} the time of {labels.implementation(naive)} at {n} = "
            f"{units.whole(low)}" if ratio[low] < 1 else
            f"{who} gains least at {n} = {units.whole(low)}, where it is {units.times(ratio[low])} faster than "
            f"{labels.implementation(naive)}")
    said += f", and most at {n} = {units.whole(high)}: {units.times(ratio[high])}."
    if low > high:
        return labels.sentence(said)
    rate = scaling.measured_over_n(bundle, shape, "tflops", fused, direction)
    rates = [rate[length] for length in (low, high)]
    said += (f" At {n} = {units.whole(low)} it reaches {units.flops(rates[0])}, at {n} = {units.whole(high)} "
             f"{units.flops(rates[1])}{': a short sequence does not fill the GPU' if 2 * rates[0] < rates[1] else ''}.")
    return labels.sentence(said) + _in_l2(bundle, shape, naive, low, direction)


def beside_peers(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
                 direction: str = "forward") -> str:
    """How fast the first of ours is beside the fastest peer of each length; of more than three lengths the least and
    the most. "" where no length has both."""
    ours = next((n for n in implementations if not labels.is_naive(n) and not labels.is_peer(n)), None)
    took = {name: scaling.measured_over_n(bundle, shape, "time", name, direction)
            for name in implementations if name == ours or labels.is_peer(name)}
    ratio: dict[int, tuple[float, str]] = {}
    for n, ns in took.pop(ours, {}).items() if ours else ():
        there = {name: values[n] for name, values in took.items() if n in values}
        if there:
            peer = min(there, key=there.__getitem__)
            ratio[n] = (there[peer] / ns, peer)
    if not ratio:
        return ""
    told = sorted(ratio) if len(ratio) <= 3 else sorted({min(ratio, key=ratio.__getitem__),
                                                         max(ratio, key=ratio.__getitem__)})
    length = "N" if shape.nq == shape.nk else "Nk"
    parts = [f"{units.times(ratio[n][0])} as fast as {labels.implementation(ratio[n][1])} at {length} = "
             f"{units.whole(n)}" for n in told]
    which = "the fastest peer of each length" if len(told) == len(ratio) else \
        f"the fastest peer of each of {labels.count(len(ratio), 'length')}, least and most"
    return f"{labels.sentence(labels.implementation(ours))} beside {which}: {labels.join(parts)}."


def first_known(bundle: Bundle, shape: AttentionShape, quantities: Sequence[str], implementations: Sequence[str],
                direction: str = "forward") -> str:
    """The first of ``quantities`` that was measured at any length; the first of all where none was."""
    return next((q for q in quantities for name in implementations
                 if scaling.measured_over_n(bundle, shape, q, name, direction)), quantities[0])


def _in_l2(bundle: Bundle, shape: AttentionShape, naive: str, n: int, direction: str) -> str:
    """What of naive's bytes L2 kept from HBM at length ``n``; "" where that is less than a tenth, or not counted."""
    rows = scaling.records(bundle, shape, "dram_bytes", naive, direction)
    counted, predicted = (next((r["value"] for r in rows if r["n"] == n and r["kind"] == kind), None)
                          for kind in ("measured", "predicted"))
    l2, matrix = (bundle.profile.get("gpu") or {}).get("l2_size_bytes"), lengths.at(shape, n).matrix_bytes
    if lengths.tokens(bundle, shape, direction):
        return ""  # then S is as large as the batch at that length makes it
    if counted is None or predicted is None or counted > 0.9 * predicted or not l2 or matrix > l2:
        return ""
    return (f" And naive moves {units.nbytes(counted)} through HBM where its passes make "
            f"{units.nbytes(predicted)}: S takes {units.nbytes(matrix)}, and the {units.nbytes(l2)} of L2 hold "
            "much of it.")


def slopes(bundle: Bundle, shape: AttentionShape, implementations: Sequence[str],
           direction: str = "forward") -> pd.DataFrame:
    """One row an implementation: the exponent of N in time, HBM bytes and peak memory, with its standard error, and the
    lengths they are fitted over, said in the cell where one differs; missing where fewer than three were measured, and
    no row where none was."""
    out = []
    for name in implementations:
        fitted: dict[str, tuple[str, str]] = {}
        for quantity in QUANTITIES:
            values = scaling.measured_over_n(bundle, shape, quantity, name, direction)
            slope = log_slope([float(n) for n in values], list(values.values())) if len(values) > 2 else None
            if slope is not None:
                fitted[quantity] = (f"N^{slope.value:.2f} ± {max(slope.error or 0.0, 0.005):.2f}",
                                    f"{units.whole(min(values))} to {units.whole(max(values))}")
        if fitted:
            over = next(iter(fitted.values()))[1]
            fixed = lengths.tokens(bundle, shape, direction)
            cells = {q: said if where == over else f"{said}, N {where}" for q, (said, where) in fitted.items()}
            out.append({"implementation": labels.implementation(name),
                        **{scaling.AXIS[q][2]: cells.get(q) for q in QUANTITIES},
                        OVER: f"{over}, {units.whole(fixed)} tokens a batch" if fixed else over})
    return pd.DataFrame(out)
