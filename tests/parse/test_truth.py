"""Nothing is dropped in silence: what stands twice, has another unit, is torn or misspelled is left empty and said."""

from __future__ import annotations

import pytest

from profiler import metrics
from profiler.errors import DamagedFile, UnsupportedFile
from profiler.metrics import units
from profiler.parse import sniff, text
from tests.parse import forms
from tests.parse.conftest import column, read
from tests.parse.forms import Launch

TIME, READ = "gpu__time_duration.sum", "dram__bytes_read.sum"
ONE = Launch("k(int)", metrics={TIME: ("12.48", "us"), READ: ("83,886,080", "byte")})


def said(bundle, *words: str) -> bool:
    return any(all(word in note for word in words) for note in bundle.notes)


def row(metric: str, unit: str, value: str, number: str = "0", kernel: str = "k(int)",
        grid: str = "(132, 1, 1)") -> str:
    cells = [number, "77", "app", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)", grid, "0", "9.0", "S", metric, unit,
             value]
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


LONG = forms.long([ONE])


def test_two_values_of_one_metric_are_none_and_the_rest_is_kept():
    bundle = read(LONG + row(TIME, "us", "99.00"))
    assert column(bundle, "duration_ns") == [None] and column(bundle, "dram_read_bytes") == [83_886_080]
    assert said(bundle, TIME, "1 of 1 launches", "different values") and not said(bundle, "without a number")
    kept = bundle.metrics["value"][bundle.metrics["metric"] == TIME]
    assert list(kept) == ["12.48", "99.00"], "both are kept as they came"


@pytest.mark.parametrize("again", [("us", "12.48"), ("ns", "12,483"), ("us", "n/a")])
def test_a_value_that_comes_again_and_agrees_is_one(again):
    bundle = read(LONG + row(TIME, *again))
    assert column(bundle, "duration_ns") == [12480] and not said(bundle, "different values")


def test_a_number_beats_none_of_the_same_metric():
    assert column(read(LONG.replace("12.48", "n/a") + row(TIME, "us", "12.48")), "duration_ns") == [12480]


def test_rows_of_one_launch_number_in_a_wide_table():
    wide = forms.wide([ONE])
    assert said(read(wide + wide.split("\n")[2] + "\n"), "1 rows repeat")
    other = wide.split("\n")[2].replace("12.48", "13.00") + "\n"
    bundle = read(wide + other)
    assert len(bundle.launches) == 1 and column(bundle, "duration_ns") == [None]
    assert column(bundle, "dram_read_bytes") == [83_886_080] and said(bundle, TIME, "different values")


@pytest.mark.parametrize("kernel, grid", [("other(int)", "(132, 1, 1)"), ("k(int)", "(66, 1, 1)")])
def test_one_number_for_two_launches_is_said(kernel, grid):
    bundle = read(LONG + row(TIME, "us", "5.00", kernel=kernel, grid=grid))
    assert column(bundle, "duration_ns") == [12480, 5000] and said(bundle, "1 launch numbers belong to two")


@pytest.mark.parametrize("metric, unit, column_name", [
    (TIME, "%", "duration_ns"), (READ, "sector", "dram_read_bytes"), ("dram__sectors_read.sum", "%", "dram_read_bytes"),
    ("sm__cycles_elapsed.avg.per_second", "byte", "sm_clock_hz"),
    ("smsp__inst_executed_pipe_xu.sum", "us", "special_ops"),
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "ns", "achieved_occupancy_pct"),
])
def test_a_unit_of_another_dimension_is_not_used_and_said(metric, unit, column_name):
    bundle = read(forms.long([Launch("k", metrics={metric: ("5", unit)})]))
    assert column(bundle, column_name) == [None] and said(bundle, metric, repr(unit), "not one of what it counts")


def test_memory_throughput_in_per_cent_is_another_quantity_and_no_fault():
    bundle = read(forms.long([Launch("k", metrics={"Memory Throughput": ("61.2", "%"), "Duration": ("5", "us")})]))
    assert column(bundle, "dram_bytes_per_second") == [None] and not bundle.notes


@pytest.mark.parametrize("name, base", [
    (TIME, "ns"), (READ, "byte"), ("dram__bytes.sum.peak_sustained", "byte/cycle"),
    ("dram__bytes.sum.per_second", "byte/s"),
    ("sm__cycles_elapsed.avg.per_second", "hz"), ("lts__t_sectors.sum", "count"), ("Duration", ""),
    ("sm__maximum_warps_per_active_cycle_pct", "%"), ("device__attribute_l2_cache_size", ""),
    ("dram__read_bytes", "byte"),
    ("dram__read_bytes_per_sec", "byte/s"), ("gpc__frequency", "hz")])
def test_the_unit_that_a_name_promises(name, base):
    assert units.expected(name) == base


def test_a_total_of_bytes_with_decimals_lost_its_prefix():
    bundle = read(forms.long([Launch("k", metrics={READ: ("510,188.03", "byte"), TIME: ("5.5", "ns")})]))
    assert column(bundle, "dram_read_bytes") == [None] and column(bundle, "duration_ns") == [5.5]
    assert said(bundle, READ, "lost its prefix")


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])  # le and be: without a mark
def test_two_and_four_byte_texts(codec):
    data = LONG.encode(codec)
    assert sniff.form(data[:4096], len(data), "x.csv") == sniff.TEXT
    bundle = read(data)
    assert column(bundle, "dram_read_bytes") == [83_886_080] and said(bundle, codec[:6].upper())


def test_a_text_of_two_encodings_is_read_in_part_and_said():
    """What a shell's >> appends in UTF-16 to a file in UTF-8, and the other way round."""
    lines = LONG.split("\n")
    mixed = "\n".join(lines[:2]).encode() + b"\n" + "\n".join(lines[2:]).encode("utf-16-le")
    assert column(read(mixed), "duration_ns") == [12480] and said(read(mixed), "another encoding")
    with pytest.raises(UnsupportedFile):
        read("nothing of ours".encode("utf-16") + LONG.encode())


@pytest.mark.parametrize("form", [forms.long, forms.wide, lambda t: forms.long(t, rules=True)],
                         ids=["long", "wide", "rules"])
def test_output_before_a_row_on_its_line(form):
    """A program that ends no line: its output stands before the header, and before a row."""
    lines = form([ONE]).split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith('"0"'))
    glued = [f"loss 0.5, step 3 {line}" if i in (0, first) else line for i, line in enumerate(lines)]
    bundle = read("\n".join(glued))
    assert column(bundle, "duration_ns") == [12480] and column(bundle, "dram_read_bytes") == [83_886_080]
    assert column(bundle, "kernel") == ["k(int)"]


@pytest.mark.parametrize("at", ['"127.0.0.1"', '"k(int)"', '"9.0"', '"us"', '"12.48"'])
@pytest.mark.parametrize("output", ["loss 0.5", "loss 0.5\n", '\n==PROF== "k": 0%\n', "a,b\nc"])
def test_output_inside_a_row_never_becomes_a_value(at, output):
    """The row is lost, the others stay, and it is said; a name is never mixed with output."""
    whole = LONG + row(READ, "byte", "7", number="1")
    bundle = read(whole.replace(at, f"{output}{at}", 1) if at in whole else whole)
    assert column(bundle, "dram_read_bytes") == [83_886_080, 7]
    assert column(bundle, "duration_ns") == [None, None]
    assert set(column(bundle, "kernel")) == {"k(int)"} and said(bundle, "cut short or damaged")


@pytest.mark.parametrize("good, bad", [("gpu__time_duration", "gpu__time_dusation"), ("Kernel Name", "Kernfl Name"),
                                       ("Block Size", "Blook Size"), ('"Grid Size"', 'x"Grid Size"')])
def test_a_name_one_letter_off_is_said(good, bad):
    assert said(read(LONG.replace(good, bad)), "damaged")
    assert not read(LONG).notes


def test_real_names_one_letter_apart_are_not_misspelled():
    for name in ("sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
                 "smsp__sass_thread_inst_executed_op_dadd_pred_on.sum"):
        assert not read(forms.long([Launch("k", metrics={name: ("5", "")})])).notes


def test_a_header_that_names_a_column_twice_is_refused():
    with pytest.raises(DamagedFile, match="'Kernel Name' twice"):
        read(LONG.replace('"Host Name"', '"Kernel Name"'))


@pytest.mark.parametrize("good, bad", [
    ("(132, 1, 1)x", "(132, 1, 1)y"), ("    gpu__time", "    epoch 3, loss 0.5\n    gpu__time"), ("--\n", "--x--\n")])
def test_damage_in_a_page_is_said(good, bad):
    page = forms.page([ONE])
    assert good in page and not read(page).notes
    assert said(read(page.replace(good, bad, 1)), "damaged or not ncu's")


@pytest.mark.parametrize("content", [
    "user: me\npassword: hunter2\n", "root:$6$abcdefgh:19000:0:99999:7:::\n", "AWS_SECRET_ACCESS_KEY=hunter2\n",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n", "ghp_16C7e42F292c6912E7710c838347Ae178B4a hunter2\n",
    "a,b\n1,2\n\nAuthorization: Bearer hunter2\n"])
def test_a_file_of_secrets_is_refused_without_repeating_it(content):
    with pytest.raises(UnsupportedFile) as caught:
        read(content)
    assert "hunter2" not in f"{caught.value} {caught.value.detail}" and "ghp_" not in str(caught.value)
    assert "may be secret" in caught.value.what and caught.value.remedy


def test_a_very_long_line_without_end_is_only_text():
    with pytest.raises(UnsupportedFile):
        read("x" * 5_000_000)
    assert column(read("y," * 1_000_000 + "\n" + LONG), "duration_ns") == [12480]


def test_a_zero_byte_inside_a_number_makes_no_other_number():
    bundle = read(LONG.replace("83,886,080", "83,886,\x00080"))
    assert column(bundle, "dram_read_bytes") == [None] and said(bundle, "damaged or in another encoding")


def test_control_characters_are_no_blanks():
    launch = Launch("k", metrics={READ: ("5.5", "Kbyte"), TIME: ("5", "ns")})
    bundle = read(forms.wide([launch]).replace("Kbyte", "\x0bbyte"))
    assert column(bundle, "dram_read_bytes") == [None] and said(bundle, READ, "not known")


def test_a_page_with_ranges_is_unverified_and_a_plain_one_is_not():
    page = ("  k(int) (4, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.0\n{}    Section: S\n"
            "    ----------- ----------- ------------\n    Metric Name Metric Unit Metric Value\n"
            "    ----------- ----------- ------------\n    Duration             us         2.00\n"
            "    ----------- ----------- ------------\n")
    assert said(read(page.format("    <0,softmax>\n")), "unverified", "NVTX") and not read(page.format("")).notes
    assert text.decode(b"a")[1] == []


PASCAL = {"gpu__time_duration": ("2.5", "usecond"), "dram__read_bytes": ("83.9", "Mbyte"),
          "dram__write_sectors": ("10", "sector"),
          "sm__active_warps_avg_per_active_cycle_pct": ("45.5", "%"), "gpc__frequency": ("1.25", "Ghz"),
          "dram__read_bytes_per_sec": ("240", "Gbyte/second"), "dram__read_pct": ("75", "%")}


def test_a_pascal_report_of_2018():
    """10 sectors of 32 bytes; 240 GB/s are 75% of 320."""
    bundle = read(forms.wide([Launch("k", cc="6.1", metrics=PASCAL)]))
    assert column(bundle, "duration_ns") == [2500] and column(bundle, "dram_read_bytes") == [83_900_000]
    assert column(bundle, "dram_write_bytes") == [320] and column(bundle, "achieved_occupancy_pct") == [45.5]
    assert column(bundle, "sm_clock_hz") == [1.25e9]
    assert column(bundle, "dram_peak_bytes_per_s") == [pytest.approx(320e9)]
    lacking = metrics.provenance(bundle, 0, "dram_bytes_per_second")
    assert (lacking.kind, lacking.flag) == ("not_collected", "--metrics dram__bytes_per_sec")
    assert metrics.provenance(bundle, 0, "tensor_flops").kind == "not_available"


def test_names_of_both_times_are_never_added():
    both = dict.fromkeys(("dram__read_bytes", "dram__bytes_read.sum", "dram__read_bytes.sum"), (100, "byte"))
    for cc in ("6.1", "7.0", "9.0", None):
        found = metrics.resolve(both, cc)
        assert found.values["dram_read_bytes"] == 100 and len(found.used["dram_read_bytes"]) == 1


def test_an_index_that_a_spreadsheet_added_shifts_nothing():
    lines = forms.wide([ONE]).strip().split("\n")
    bundle = read("\n".join([f",{lines[0]}", *(f"{i},{line}" for i, line in enumerate(lines[1:]))]) + "\n")
    assert column(bundle, "duration_ns") == [12480] and column(bundle, "dram_read_bytes") == [83_886_080]
    assert column(bundle, "kernel") == ["k(int)"]


def test_a_torn_row_of_units_never_means_base_units():
    """12.48 us would read as 12.48 ns."""
    wide = forms.wide([ONE])
    bundle = read(wide.replace('"us","byte"', '"us"x,"byte"'))
    assert column(bundle, "duration_ns") == [None] and said(bundle, "perhaps that one")


@pytest.mark.parametrize("change", [lambda t: t.replace('","', '", "'), lambda t: t.replace("\n", ",\n")],
                         ids=["blanks after commas", "a comma at the end"])
def test_what_other_tools_do_to_a_table(change):
    bundle = read(change(LONG))
    assert column(bundle, "duration_ns") == [12480] and column(bundle, "dram_read_bytes") == [83_886_080]


def test_a_page_beside_a_table_and_rows_of_which_none_is_whole_are_said():
    assert said(read(LONG + forms.page([ONE])), "only its tables were read")
    with pytest.raises(DamagedFile, match="None of the 2 rows"):
        read(LONG.replace('\n"0"', '\n"-1"'))
