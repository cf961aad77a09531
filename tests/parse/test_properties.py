"""Any table, written in any text form with any of the number formats, reads back to the same rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parse import forms
from tests.parse.conftest import column, read
from tests.parse.forms import Launch

# column, raw name, {unit as printed: factor to the base unit}
COUNTERS = (
    ("duration_ns", "gpu__time_duration.sum", {"ns": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}),
    ("dram_read_bytes", "dram__bytes_read.sum", {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}),
    ("achieved_occupancy_pct", "sm__warps_active.avg.pct_of_peak_sustained_active", {"%": 1}),
    ("sm_clock_hz", "sm__cycles_elapsed.avg.per_second", {"hz": 1, "Ghz": 1e9, "cycle/nsecond": 1e9}),
)
WHOLE = {"ns", "byte", "hz"}
FORMATS = {"plain": ("", "."), "grouped": (",", "."), "comma": (".", ",")}
kernels = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1,
                  max_size=60).map(str.strip).filter(
    lambda name: name and not name.startswith("["))


def printed(value: float, group: str, mark: str, whole: bool) -> str:
    """As Nsight Compute prints: two decimals, none for whole things."""
    text = f"{value:,.0f}" if whole else f"{value:,.2f}"
    return text.replace(",", "\0").replace(".", mark).replace("\0", group)


@st.composite
def tables(draw):
    units = {name: draw(st.sampled_from(sorted(known))) for _, name, known in COUNTERS}
    rows = draw(st.lists(st.tuples(kernels, *(
        st.one_of(st.none(), st.integers(0, 10**9 if units[name] in WHOLE else 10**6)) for _, name, _ in COUNTERS)),
        min_size=1, max_size=5))
    return units, rows


def summed(launches: list[Launch]) -> str:
    """A summary in CSV: of each launch so many invocations as no other has, all alike."""
    return forms.summary([(launch, number + 1, {name: (unit, value, value, value)
                                                for name, (value, unit) in launch.metrics.items()})
                          for number, launch in enumerate(launches)])


def parted(launches: list[Launch]) -> str:
    """Half of the metrics of each launch in a long table, the others in a wide one behind it."""
    names = [name for _, name, _ in COUNTERS]
    halves = [[replace(one, metrics={name: one.metrics[name] for name in part}) for one in launches]
              for part in (names[:2], names[2:])]
    return forms.long(halves[0]) + "==PROF== Disconnected\n" + forms.wide(halves[1])


FORMS = {
    "long": forms.long, "long, rules": lambda t: forms.long(t, rules=True), "long, tabs": lambda t: forms.long(t, "\t"),
    "long, unquoted": lambda t: forms.long(t, ";", quote=False), "wide": forms.wide,
    "wide, semicolons": lambda t: forms.wide(t, ";"), "wide, unquoted": lambda t: forms.wide(t, quote=False),
    "wide without identity": lambda t: forms.wide(t, identity=False), "page": forms.page,
    "summary": summed, "summary page": lambda t: forms.page(t, invocations=3), "two tables": parted,
}
OUTPUT = ("", "==PROF== Profiling \"k\": 0%....100% - 8 passes", "loss, 0.5, ok", "epoch 1 of 3", "{\"step\": 1}")
dress = st.tuples(st.sampled_from(("utf-8", "utf-8-sig", "utf-16")), st.sampled_from(("\n", "\r\n", "\r")),
                  st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(OUTPUT)), max_size=4))


def dressed(text: str, form: str, clothes: tuple[str, str, list[tuple[int, str]]]) -> bytes:
    """The text with program output between its lines (around them for a page), in an encoding, with line endings."""
    codec, ending, output = clothes
    lines = text.split("\n")
    for at, line in output:
        lines.insert(0 if "page" in form else at % len(lines), line)
    return ending.join(lines).encode(codec)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("form", FORMS)
@given(table=tables(), clothes=dress)
@settings(max_examples=12, deadline=None)
def test_a_table_reads_back(form, number_format, table, clothes):
    units, rows = table
    group, mark = FORMATS[number_format]
    hundredths = {name: 1 if units[name] in WHOLE else 100 for _, name, _ in COUNTERS}
    launches = [Launch(kernel, metrics={
        name: ("n/a" if value is None else printed(value / hundredths[name], group, mark, units[name] in WHOLE),
               units[name])
        for (_, name, _), value in zip(COUNTERS, values)}) for kernel, *values in rows]
    # one value that leaves no doubt of the decimal mark, as any real file holds
    launches.append(Launch("sure", metrics={name: (printed(1234.5, group, mark, False), units[name]) for _, name,
                                            _ in COUNTERS}))
    bundle = read(dressed(FORMS[form](launches), form, clothes))
    assert len(bundle.launches) == len(launches)
    if form != "wide without identity":
        assert column(bundle, "kernel") == [launch.kernel for launch in launches]
    for place, (name, raw, known) in enumerate(COUNTERS):
        factor = known[units[raw]]
        want = [None if values[place] is None else values[place] / hundredths[raw] * factor for _, *values in rows]
        got = column(bundle, name)[:-1]
        assert [v if v is None else pytest.approx(v, rel=1e-12) for v in want] == got, name
