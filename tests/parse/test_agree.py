"""What a file says more than once must agree: each damage here changes one place and leaves no other sign of it."""

from __future__ import annotations

import pytest

from profiler.parse import agree
from profiler.parse.numbers import Format
from profiler.parse.raw import RawFile, RawLaunch
from tests.parse.conftest import read

CLOCK, NAME = "device__attribute_clock_rate", "device__attribute_display_name"
WHOLE = [(NAME, "", "GPU A"), (CLOCK, "", 1_980_000), ("group:memory", "", "dram__a.sum,dram__b.sum"),
         ("dram__a.min", "byte", 10), ("dram__a.avg", "byte", 20.5), ("dram__a.max", "byte", 31),
         ("dram__a.sum", "byte", 41), ("launch__occupancy_limit_warps", "block", 8),
         ("launch__grid_dim_x", "", 6), ("launch__grid_dim_y", "", 5), ("launch__grid_dim_z", "", 2),
         ("launch__grid_size", "", 60), ("dram__b.sum", "byte", 7)]


def said(*launches, text=False):
    raw = RawFile("made up", [RawLaunch("k", metrics=list(metrics)) for metrics in launches], text=text)
    return agree.notes(raw, Format().number)


def changed(name, value):
    return [(n, unit, value if n == name else v) for n, unit, v in WHOLE]


def test_what_agrees_is_not_spoken_of():
    assert said(WHOLE, WHOLE, WHOLE) == []
    other = [(n, u, {NAME: "GPU B", CLOCK: 1_410_000}.get(n, v)) for n, u, v in WHOLE]
    assert said(WHOLE, other) == [], "another GPU has other attributes"
    assert said(WHOLE, [*WHOLE, ("rule[SpillRule]", "", "x")]) == [], "a rule fires in some launches"


@pytest.mark.parametrize(("name", "value", "words"), [
    (CLOCK, 1_980_016, "Not the same in all launches of one GPU: device__attribute_clock_rate"),
    ("group:memory", "dram__a.sum,ctc__c.sum", "Not the same in all launches of one GPU: group:memory"),
    ("dram__a.min", 5.3e-315, "A number that no measurement gives: dram__a.min"),
    ("dram__a.sum", 2.0**300, "A number that no measurement gives: dram__a.sum"),
    ("launch__occupancy_limit_warps", 8.000000001862645, "A fraction of something whole: launch__occupancy"),
    ("dram__a.sum", 30, "do not fit each other: dram__a"), ("dram__a.avg", 9.0, "do not fit each other: dram__a"),
    ("launch__grid_dim_x", 7, "not the product of its sides: launch__grid_size")])
def test_a_changed_value(name, value, words):
    notes = said(WHOLE, changed(name, value))
    assert len(notes) == 1 and words in notes[0]


def test_a_lost_metric_is_named_with_how_many_launches_hold_it():
    assert said(WHOLE, [m for m in WHOLE if m[0] != "launch__grid_size"], WHOLE) == [
        "In only some of the 3 launches: launch__grid_size (2). They were collected differently, or the file may be "
        "damaged there."]


def test_a_list_names_metrics_that_are_there():
    """One launch has nothing to be compared with; of a part of the GPU without any counter nothing is expected."""
    assert said(WHOLE) == [] == said(changed("group:memory", "dram__a.sum,ctc__c.sum"))
    assert "names one which is not there: group:memory" in said(changed("group:memory", "dram__a.sum,dram__c.sum"))[0]


def test_texts():
    assert said([("dram__a.sum", "byte", "1,234")], text=True) == []
    assert "A value with a unit that is no number: dram__a.sum" in said([("dram__a.sum", "byte", "12&4")], text=True)[0]
    rounded = [("sm__x.min", "%", "12.34"), ("sm__x.avg", "%", "12.34"), ("sm__x.max", "%", "12.34")]
    assert said(rounded, text=True) == []


WIDE = "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum\nus,Gbyte,Mbyte\n3.10,1.20,900.00\n"


@pytest.mark.parametrize(("content", "words"), [
    (WIDE.replace("dram__bytes_read", "dradram__bytes_read"), "begins like no part of a GPU"),
    (WIDE.replace("dram__bytes_write", "dram_tes_write"), "not shaped as ncu's names"),
    (WIDE + "_write.sum\nus,Gbyte,Mbyte\n3.10,1.20,900.00\n", "row of units stands again"),
    (WIDE + '900.00"\n3.10,1.20,900.00\n', "1 lines are cut short"),
    (WIDE + "3.1", "ends without a line break")])
def test_a_damaged_table(content, words):
    assert any(words in note for note in read(content).notes)


def test_the_same_table_twice_is_no_damage():
    assert read(WIDE + WIDE).notes == () and len(read(WIDE + WIDE).launches) == 2
