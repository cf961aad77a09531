"""Roles, roofs and views that a visitor chooses: they change what is shown, and the link holds them."""

from __future__ import annotations

import pytest

from profiler.dashboard import text
from tests.dashboard.conftest import REPORTS, ROOT, link_of, table, upload, visit
from tests.dashboard.test_pages import assert_sound, charts
from tests.synthetic_report import FILE


@pytest.fixture
def synthetic(data):
    """The app with the made-up report added: the page, and the source's key."""
    app = upload(visit("roofline"), FILE)
    return app, link_of(app, "source")


def marks(app) -> set[str]:
    return {trace["name"] for figure in charts(app) for trace in figure["data"] if trace["name"].startswith("points/")}


def test_roles_make_a_report_a_source_for_every_page(synthetic):
    app, key = synthetic
    assert not link_of(app, f"roles-{key}") and "points/naive" not in marks(app)
    next(b for b in app.button if b.label == text.ROLES_USE).click().run()
    assert_sound(app)
    assert link_of(app, f"roles-{key}") == "proposed"
    assert link_of(app, f"call-{key}") == "B1 H16 N4096 D64 bf16 full"  # as its NVTX range says
    assert {"points/naive", "points/sdpa_flash"} <= marks(app)
    app.switch_page("profiler/dashboard/pages/evidence.py").run()
    assert_sound(app)
    assert "3.19" in app.title[0].value and link_of(app, f"roles-{key}") == "proposed"
    for figure in charts(app):
        assert any("SYNTHETIC" in note["text"] for note in figure["layout"]["annotations"] if note["name"] == "foot")


def test_a_role_in_the_link_goes_before_the_proposal(synthetic):
    app, key = synthetic
    app.query_params[f"roles-{key}"] = "1.none_2.none"
    app.run()
    assert_sound(app)
    table = next(d.value for d in app.dataframe if text.ROLES_COLUMNS["role"] in d.value)
    names = [text.ROLE_NAMES[role] for role in ("scores", "", "", "values", "attention")]
    assert list(table[text.ROLES_COLUMNS["role"]]) == names
    assert text.ROLE_CHOSEN in list(table[text.ROLES_COLUMNS["why"]])


def test_a_call_that_cannot_be_is_said_and_the_page_stays(synthetic):
    app, key = synthetic
    app.query_params[f"roles-{key}"], app.query_params[f"call-{key}"] = "proposed", "H16 N4096"
    app.run()
    assert_sound(app)
    assert any("attention call: expected" in i.value.replace("&#58;", ":") for i in app.info)


def test_a_roof_of_ones_own_is_drawn_named_and_kept(synthetic):
    app, key = synthetic
    box = next(t for t in app.text_input if t.label == text.OWN_ROOF["tensor"])
    box.set_value("250").run()
    assert_sound(app)
    assert link_of(app, f"roof-tensor-{key}") == "250"
    names = [a["text"] for a in charts(app)[0]["layout"]["annotations"]]
    assert any("250" in name and "entered by you" in name for name in names)
    box = next(t for t in app.text_input if t.label == text.OWN_ROOF["tensor"])
    box.set_value("fast").run()
    assert [w.value for w in app.warning] == [text.OWN_ROOF_BAD.format(name=text.OWN_ROOF["tensor"], got="fast")]


def test_compare_by_role_and_in_units_of_the_ridge(data):
    reports = [REPORTS / "a100_cutlass_int8_three_kernels.ncu-rep", REPORTS / "v100_openacc_five_kernels.ncu-rep", FILE]
    app = upload(visit("compare"), *reports)
    assert_sound(app)
    assert any("counters collected" in i.value for i in app.info)
    steps = table(app, "role is")
    assert {step["role is"] for step in steps} == {"proposed"} and len(steps) == 5
    app.query_params["under"] = "ridge"
    app.run()
    assert_sound(app)
    assert "ridge of its own GPU" in charts(app)[0]["layout"]["xaxis"]["title"]["text"]


def test_the_sample_is_offered_under_a_name_that_says_what_it_is():
    assert FILE.parent == ROOT / "data" / "reports" and FILE.name.startswith("SYNTHETIC")
