"""Each text form with values worked out by hand, and each disturbance that was seen around them."""

from __future__ import annotations

import random

import pytest

from profiler.errors import NoLaunches, UnsupportedFile
from profiler.parse import sniff
from profiler.parse.numbers import Format
from tests.parse import forms
from tests.parse.conftest import column, read
from tests.parse.forms import Launch

TIME, READ = "gpu__time_duration.sum", "dram__bytes_read.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TWO = [
    Launch("void qk<(int)4, Pair<float, int>>(float *, const char *)", metrics={
        TIME: ("12.48", "us"), READ: ("83,886,080", "byte"), OCCUPANCY: ("108.90", "%")}),
    Launch('say "hi", twice', metrics={TIME: ("1.50", "ms"), READ: ("1.25", "Gbyte"), OCCUPANCY: ("n/a", "%")}),
]


def check(bundle):
    assert column(bundle, "duration_ns") == [12480, 1_500_000]
    assert column(bundle, "dram_read_bytes") == [83_886_080, 1_250_000_000]
    assert column(bundle, "achieved_occupancy_pct") == [108.9, None]


def same_units(launches):
    """A wide table has one unit a column."""
    first = Launch(launches[0].kernel,
                   metrics={TIME: ("12.48", "us"), READ: ("83.886080", "Mbyte"), OCCUPANCY: ("108.90", "%")})
    second = Launch(launches[1].kernel,
                    metrics={TIME: ("1,500.00", "us"), READ: ("1,250.00", "Mbyte"), OCCUPANCY: ("(!) n/a", "%")})
    return [first, second]


@pytest.mark.parametrize("form",
                         [forms.long, forms.page, lambda t: forms.long(t, rules=True), lambda t: forms.long(t, "\t"),
                                  lambda t: forms.wide(same_units(t)),
                                  lambda t: forms.wide(same_units(t), "\t", quote=False)],
                         ids=["long", "page", "long with rules", "long, tabs", "wide", "wide, tabs, unquoted"])
def test_forms(form):
    bundle = read(form(TWO))
    check(bundle)
    assert column(bundle, "kernel") == [TWO[0].kernel, TWO[1].kernel]
    assert column(bundle, "grid") == ["132,1,1"] * 2 and column(bundle, "cc") == ["9.0"] * 2


def test_wide_without_identity():
    bundle = read(forms.wide(same_units(TWO), identity=False))
    check(bundle)
    assert column(bundle, "kernel") == [None, None]


NOISE = ["==PROF== Connected to process 77", "loss, 0.5, ok", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o", "",
         "epoch 1: 10%\r epoch 1: 100%",
         '==WARNING== "quoted, and open', "==PROF== Profiling \"qk\": 0%....50%....100% - 8 passes",
         "{\"step\": 1, \"loss\": 0.25}"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("form", [forms.long, lambda t: forms.wide(same_units(t)), forms.page],
                         ids=["long", "wide", "page"])
def test_program_output_anywhere(form, ending):
    lines = form(TWO).split("\n")
    chance = random.Random(7)
    for _ in range(12):
        at = chance.randrange(len(lines)) if form is not forms.page else chance.choice((0, len(lines)))
        lines.insert(at, chance.choice(NOISE))
    check(read("\ufeff" + ending.join(lines)))


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-8"])
def test_encodings(codec):
    check(read(forms.long(TWO).encode(codec)))


def test_a_name_that_is_not_utf8_is_said():
    bundle = read(forms.long([Launch("größe", metrics={TIME: ("5", "ns")})]).encode("latin-1"))
    assert column(bundle, "duration_ns") == [5] and any("UTF-8" in note for note in bundle.notes)


@pytest.mark.parametrize("form", [forms.long, forms.page], ids=["long", "page"])
def test_decimal_commas_are_found_over_the_whole_file_and_said(form):
    """"1,234" alone could be either; "12,5" and "83.886.080" elsewhere in the file say that the comma divides."""
    bundle = read(form([
        Launch("a", metrics={TIME: ("1,234", "us"), READ: ("83.886.080", "byte"), OCCUPANCY: ("12,5", "%")}),
        Launch("b", metrics={TIME: ("0,500", "us"), READ: ("1.024", "byte"), OCCUPANCY: ("7", "%")})]))
    assert column(bundle, "duration_ns") == [1234, 500]
    assert column(bundle, "dram_read_bytes") == [83_886_080, 1024]
    assert column(bundle, "achieved_occupancy_pct") == [12.5, 7]
    assert any("decimal comma" in note for note in bundle.notes)


def test_semicolons_with_decimal_commas():
    launch = Launch("a", metrics={TIME: ("12,48", "us"), READ: ("1.250.000", "byte")})
    bundle = read(forms.long([launch], ";", quote=False))
    assert column(bundle, "duration_ns") == [12480] and column(bundle, "dram_read_bytes") == [1_250_000]


@pytest.mark.parametrize("cells, decimal", [
    ([("1,234", "byte")], "."), ([("1.234", "byte")], ","), ([("1,234", "%")], ","), ([("1.234", "%")], "."),
    ([("1,234", "us")], "."), ([("1,234,567", "us")], "."), ([("1.234.567", "us")], ","), ([("0,123", "us")], ","),
    ([("12.5", "us"), ("1,234", "us")], "."), ([("12,5", "us"), ("1,234", "us")], ","), ([("1,234.5", "us")], "."),
    ([("1.234,5", "us")], ","), ([("40", "")], "."),
])
def test_which_mark_divides(cells, decimal):
    assert Format.of(cells).decimal == decimal


def test_a_mark_that_nothing_explains_is_said():
    assert "one thousand" in Format.of([("1,234", "us")]).notes[0]


@pytest.mark.parametrize("text, value", [
    ("83,886,080", 83886080), ("12.06", 12.06), ("1e3", 1000.0), ("-5", -5), ("83'886'080", 83886080),
    ("83\u202f886\u202f080", 83886080),
    ("18446744073709551615", 18446744073709551615), ("(!) 5", 5), ("(!) n/a", None),
    ("1,236 (IMMA: 1,000; FFMA: 236)", 1236),
    ("n/a (x)", None), ("nan", None), ("", None),
    ("inf", None),
    ("12,34", None), ("1,2345", None), ("CachePreferNone", None), ("0x10", None), ("9" * 500, None), ("1e999", None),
    ("٣", None),
])
def test_numbers(text, value):
    assert Format(".").number(text) == value


def test_ragged_and_cut_lines_are_counted():
    whole = forms.long(TWO)
    bundle = read(whole[:whole.rindex(',"n/a"')])
    assert column(bundle, "duration_ns") == [12480, 1_500_000] and column(bundle, "achieved_occupancy_pct") == [
        108.9, None]
    assert any("1 lines are cut short" in note for note in bundle.notes)
    inside = whole.replace('"83,886,080"', '"83,886,080')
    assert column(read(inside), "dram_read_bytes")[0] in (83_886_080, None), "never a part of the number"


def test_a_value_cut_inside_its_quotes_is_left_out():
    whole = forms.long(TWO[:1])
    cut = whole[:whole.index("83,886,080") + 5]
    bundle = read(cut)
    assert column(bundle, "dram_read_bytes") == [None] and any("cut short" in note for note in bundle.notes)


def test_a_last_value_without_its_line_break_is_doubted():
    text = forms.wide(same_units(TWO)[:1], quote=False, identity=False)
    assert not read(text).notes and column(read(text[:-1]), "achieved_occupancy_pct") == [108.9]
    assert any("may be cut short" in note for note in read(text[:-1]).notes)


def test_bytes_that_a_program_printed_do_no_harm():
    assert sniff.form(b"\x00\x01\x02\x03\n" * 9 + forms.long(TWO).encode(), 9999, "x.log") == sniff.TEXT
    check(read(b"\x00\x01\x02\xff\n" * 9 + forms.long(TWO).encode()))


def test_several_tables_of_one_run_are_one_launch_and_of_two_runs_are_two():
    launch = Launch("k", metrics={TIME: ("5", "ns")})
    other = Launch("k", metrics={READ: ("7", "byte")})
    one = read(forms.long([launch]) + "\n" + forms.wide([other]))
    assert column(one, "duration_ns") == [5] and column(one, "dram_read_bytes") == [7]
    two = read(forms.long([launch]) + forms.wide([other]).replace('"77"', '"78"'))
    assert column(two, "duration_ns") == [5, None] and column(two, "dram_read_bytes") == [None, 7]


def test_summary_rows_are_averages_and_say_so():
    metrics = {"Duration": ("us", "10.00", "30.00", "20.00"),
               "Registers Per Thread": ("register/thread", "40", "40", "40")}
    bundle = read(forms.summary([(Launch("k"), 14, metrics)]))
    assert column(bundle, "duration_ns") == [20_000] and column(bundle, "registers_per_thread") == [40]
    raw = dict(zip(bundle.metrics["metric"], bundle.metrics["value"]))
    assert (raw["Invocations"], raw["Duration [minimum]"], raw["Duration [maximum]"]) == ("14", "10.00", "30.00")
    assert any("averages" in note for note in bundle.notes)


def test_summary_as_text():
    bundle = read(
        "  k(int) (4, 1, 1)x(128, 1, 1), Device 0, CC 8.0, Invocations 3\n"
        "    Section: Command line profiler metrics\n"
        "    ---------------------- ----------- ------- ------- -------\n"
        "    Metric Name            Metric Unit Minimum Maximum Average\n"
        "    ---------------------- ----------- ------- ------- -------\n"
        "    gpu__time_duration.sum          us    1.00    3.00    2.00\n"
        "    ---------------------- ----------- ------- ------- -------\n")
    assert column(bundle, "duration_ns") == [2000] and column(bundle, "kernel") == ["k(int)"]
    assert any("averages" in note for note in bundle.notes)


def test_nvtx_cells():
    cell = '77  "<default domain>:outer:none:none:none:none:ASCII:outer" "attn:a:b:none:none:RGB:0xff:REGISTERED:a:b" '
    bundle = read(forms.wide([Launch("k", metrics={TIME: ("5", "ns")}, nvtx=cell)]))
    assert (column(bundle, "range"), column(bundle, "domain")) == (["outer"], ["<default domain>"])
    own = '77  "<default domain>:x:none:none:none:none:ASCII:x" "flashscope:cfg:none:none:RGB:0xff:REGISTERED:cfg" ' \
          '"flashscope:scores:none:none:RGB:0xff:REGISTERED:scores" '
    said = '1  "<default domain>:module:layers.0.attn:none:none:none:none:none:none" '
    bundle = read(forms.wide([Launch("k", metrics={TIME: ("5", "ns")}, nvtx=said)]))
    assert column(bundle, "range") == ["module:layers.0.attn"]
    bundle = read(forms.wide([Launch("k", metrics={TIME: ("5", "ns")}, nvtx=own)]))
    assert column(bundle, "range_path") == ["cfg/scores"] and column(bundle, "domain") == ["flashscope"]


def test_a_wide_table_without_units_is_in_base_units_or_not_used():
    base = read(forms.wide([Launch("k", metrics={TIME: ("5", ""), READ: ("1024", "")})], units=False))
    assert column(base, "duration_ns") == [5] and any("base units" in note for note in base.notes)
    scaled = read(forms.wide([Launch("k", metrics={TIME: ("5", ""), READ: ("1.20", "")})], units=False))
    assert column(scaled, "duration_ns") == [None] and any("no row of units" in note for note in scaled.notes)


def test_an_8_kb_kernel_name():
    name = "void k<" + ", ".join(f"Layout<(int){i}>" for i in range(500)) + ">(int)"
    assert len(name) > 8000
    assert column(read(forms.long([Launch(name, metrics={TIME: ("5", "ns")})])), "kernel") == [name]


def test_a_name_with_markup_is_only_a_name():
    name = '<script>alert("x")</script>=cmd|\' /C calc\'!A0'
    assert column(read(forms.long([Launch(name, metrics={TIME: ("5", "ns")})])), "kernel") == [name]


@pytest.mark.parametrize("content, error", [
    ("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n", NoLaunches),
    ("==PROF== Connected to process 1\n==PROF== Disconnected\n", NoLaunches),
    (forms.long([]), NoLaunches), ("a,b\n1,2\n", UnsupportedFile), ("\n\n", UnsupportedFile),
    ("root:x:0:0::/:/bin/sh\n", UnsupportedFile),
])
def test_nothing_to_read(content, error):
    with pytest.raises(error):
        read(content)


def test_counters_without_numbers_are_counted():
    launches = [Launch("k", metrics={READ: (value, "byte")}) for value in ("5", "nan", "7", "8")]
    assert any(note.startswith("dram_read_bytes: 1 of 4 launches") for note in read(forms.long(launches)).notes)
