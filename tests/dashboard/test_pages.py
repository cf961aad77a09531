"""Every page on every kind of source: no exception, no error box, no chart that is empty without saying why."""

from __future__ import annotations

from random import Random

import pandas as pd
import pytest

from profiler.dashboard import frame, store, text
from tests.dashboard.conftest import REPORTS, charts, link_of, table, upload, visit

DECK = ("present", "export")  # tests/export looks at these
PAGES = [name for entries in frame.LIST.values() for name, *_ in entries if name not in DECK]
WITHOUT_SOURCE = ("run", "learn")  # pages that are not about a source
SAMPLES = sorted(REPORTS.glob("*.ncu-rep"))


def assert_sound(app) -> None:
    assert [e.value for e in app.exception] == []
    assert [e.value for e in app.error] == []
    for figure in charts(app):
        notes = {note.get("name"): note["text"] for note in figure["layout"].get("annotations", ())}
        assert notes["title"], "a chart without the finding as title"
        assert any(len(trace.get("x", trace.get("z", ())) or ()) for trace in figure["data"]), "an empty chart"


@pytest.mark.parametrize("page", PAGES)
def test_page_on_a_recorded_profile(page, open_page):
    app = open_page(page)
    assert_sound(app)
    assert not app.info
    said = " ".join(m.value for m in app.markdown)
    assert app.title or charts(app) or text.COMPARE_NEEDS_TWO in said or text.NO_TUNING_REMEDY in said


@pytest.mark.parametrize("page", PAGES)
def test_page_on_every_profile_that_comes_with_the_project(page, shipped):
    app = visit(page)
    for key in store.recorded():
        app.query_params["source"] = key
        app.run()
        assert_sound(app)


def test_the_recorded_sources_stand_in_the_order_of_the_story(shipped):
    suites = [source.suite for source in store.recorded().values()]
    assert suites[:3] == ["evidence", "scaling", "ladder"] and set(suites) <= set(store.SUITES)
    assert suites == sorted(suites, key=store.SUITES.index)
    assert visit("evidence").selectbox[0].value == "h200-evidence"


def test_the_peers_over_n_beside_the_fastest_of_them(shipped):
    app = visit("scaling", source="h200-peers")
    assert_sound(app)
    rows = pd.read_parquet(shipped / "h200-peers" / "timings.parquet")
    rows = rows[rows["head_dim"].eq(64) & rows["mask"].eq("full")]
    said = " ".join(m.value for m in app.markdown).replace("\u00a0", " ")
    for n in (1024, 4096, 16384):
        took = rows[rows["nq"].eq(n)].set_index("implementation")["median_ns"].astype(float)
        ratio = took.drop(["hopper", "flash2"]).min() / took["hopper"]
        assert f"{ratio:.2f}× as fast as" in said and f"N = {n:,}" in said


def test_a_source_of_memory_alone_shows_its_memory(shipped):
    app = visit("scaling", source="h200-memory")
    assert_sound(app)
    title = next(n["text"] for n in charts(app)[0]["layout"]["annotations"] if n.get("name") == "title")
    assert "Peak memory" in title and "1.00" in title


@pytest.mark.parametrize("page", ("roofline", "memory_io", "occupancy", "evidence"))
def test_a_source_of_timings_says_so_and_where_to_look(page, shipped):
    app = visit(page, source="h200-peers", **({"show": "parity"} if page == "memory_io" else {}))
    assert_sound(app)
    said = " ".join(m.value for m in app.markdown)
    assert text.TIMINGS_ONLY in said and "not the fastest known" not in said.replace("\\", "")
    everything = said + " ".join(one.value for one in (*app.caption, *app.info, *app.title))
    assert everything.count("--no-counters") == 1, "the figure and the page each say it"


@pytest.mark.parametrize("link", [
    {"show": "traffic"}, {"show": "theorem"}, {"show": "parity"}, {"show": "parity", "quantity-parity": "dram_write"},
    {"show": "pyramid"}, {"show": "bounds"}, {"show": "theorem", "quantity-theorem": "n"}, {"show": "what_if"},
    {"show": "what_if", "quantity-what_if": "tensor_flops_per_s"},
    *({"quantity-scaling": name} for name in text.IO_QUANTITIES["scaling"])], ids=lambda link: "-".join(link.values()))
def test_every_view_of_memory_io(link, shipped):
    app = visit("memory_io", **link)
    assert_sound(app)
    assert not app.info


@pytest.mark.parametrize("page, link", [
    ("scaling", {"axis": "shape"}), ("scaling", {"speed": "time"}), ("occupancy", {"bound": "bounds"}),
    ("roofline", {"level": "l2"}), ("roofline", {"steps": "off"}), ("launches", {"launch": "3"}),
    *(("tuning", {"tuned": name}) for name in text.TUNING_QUANTITIES),
    ("evidence", {"mask": "causal"}), ("evidence", {"shape": "B1-H16-N16384-D128-bf16"})], ids=str)
def test_every_other_view(page, link, shipped):
    app = visit(page, **link)
    assert_sound(app)
    assert not app.info


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITHOUT_SOURCE])
def test_page_without_any_source_says_how_to_get_one(page, empty):
    app = visit(page)
    assert_sound(app)
    assert any(text.NO_SOURCE in m.value for m in app.markdown)
    assert any(text.NO_SOURCE_COMMAND in c.value for c in app.code)


@pytest.mark.parametrize("report", SAMPLES, ids=lambda path: path.stem)
def test_every_page_on_an_added_report(report, data):
    app = upload(visit("launches"), report)
    assert link_of(app, "source").startswith("added-")
    for page in PAGES:
        app.switch_page(f"profiler/dashboard/pages/{page}.py").run()
        assert_sound(app)
        said = " ".join(m.value for m in app.markdown)
        why = text.NO_SHAPES_REMEDY in said or "under a roof" in said
        rows = app.dataframe or any(m.value.startswith("| ") for m in app.markdown)
        assert charts(app) or rows or why or page in WITHOUT_SOURCE, f"{page}: nothing, and not said why"


def test_an_added_report_is_in_the_table_and_can_be_removed(data):
    app = upload(visit("launches"), REPORTS / "h100_five_kernels.ncu-rep")
    table = app.dataframe[0].value
    assert len(table) == 5
    assert list(table["duration_ns"]) == [3968, 4224, 4192, 3968, 3968]
    remove = next(b for b in app.sidebar.button if b.key and b.key.startswith("fs.remove."))
    remove.click().run()
    assert_sound(app)
    assert len(app.dataframe[0].value) != 5
    assert any("added-" in i.value for i in app.info) is False


def test_what_cannot_be_read_is_said_with_its_remedy_and_the_page_stays(data, tmp_path):
    bad = tmp_path / "holiday.ncu-rep"
    bad.write_bytes(b"not a report at all")
    app = upload(visit("launches"), bad)
    assert [e.value for e in app.exception] == []
    assert len(app.error) == 1 and "holiday" in app.error[0].value and "Traceback" not in app.error[0].value
    assert len(app.dataframe) == 1
    next(b for b in app.button if b.label == text.DISMISS).click().run()
    assert not app.error


def test_a_sample_report_can_be_tried(data):
    app = visit("launches")
    next(b for b in app.sidebar.button if b.label == "h100_five_kernels.ncu-rep").click().run()
    assert_sound(app)
    assert len(app.dataframe[0].value) == 5


def test_two_visitors_do_not_see_each_other(data):
    one = upload(visit("launches"), REPORTS / "h100_five_kernels.ncu-rep")
    two = visit("launches")
    assert not [b for b in two.sidebar.button if b.key and b.key.startswith("fs.remove.")]
    shared = visit("launches", **{store.TOKEN_PARAMETER: link_of(one, store.TOKEN_PARAMETER)})
    assert [b for b in shared.sidebar.button if b.key and b.key.startswith("fs.remove.")]


def test_a_link_to_files_that_are_gone_says_so(data):
    app = visit("launches", **{store.TOKEN_PARAMETER: "0" * 22, "source": "added-0123456789ab"})
    assert_sound(app)
    assert any("no longer here" in i.value for i in app.info)


def test_bad_parameters_on_a_page_give_the_default_and_a_note(data):
    app = visit("roofline", shape="B9-H9-N9-D9-int3", mask="diagonal", level="L17", compare="nobody")
    assert_sound(app)
    assert len(app.info) == 4
    assert charts(app)


def test_a_broken_bundle_is_an_error_with_a_remedy_and_the_others_stay(empty):
    (empty / "broken").mkdir()
    (empty / "broken" / "profile.json").write_text("{")
    app = visit("launches")
    assert [e.value for e in app.exception] == []
    assert len(app.error) == 1 and "broken" in app.error[0].value


def test_an_unexpected_error_is_a_number_and_never_a_traceback(data, monkeypatch, caplog):
    def burst(*_, **__):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("profiler.dashboard.components.tables.collected", burst)
    app = visit("launches")
    assert [e.value for e in app.exception] == []
    assert len(app.error) == 1 and "secret detail" not in app.error[0].value
    number = caplog.records[-1].getMessage().split()[-1]
    assert number in app.error[0].value and "secret detail" in caplog.text


def test_compare_says_what_differs_before_any_number(data):
    app = upload(visit("compare"), REPORTS / "h100_five_kernels.ncu-rep", REPORTS / "rtx3070_nvtx_ranges.ncu-rep")
    assert_sound(app)
    assert any("differ in" in i.value and "GPU" in i.value for i in app.info)
    app.session_state["fs.fold.recorded"] = True
    row = next(row for row in table(app.run(), "across") if row["what"] == "GPU")
    assert row["across"] == "differs" and row["synthetic"] == "Synthetic GPU"
    assert "3070" in row["rtx3070_nvtx_ranges.ncu-rep"]


@pytest.mark.parametrize("seed", range(2))
def test_no_link_breaks_a_page(seed, shipped):
    """Random links: names and values that exist, on any page, beside nonsense."""
    random = Random(seed)
    names = ["source", "sources", "shape", "mask", "direction", "compare", "show", "level", "steps", "launch", "search",
             "columns", "tuned", "kernel", "axis", "speed", "bound", "picture", "chapter", "lang", "suite", "counters",
             "uploads", "quantity-scaling", "quantity-parity", "counter", "screen", "nonsense"]
    values = [*store.recorded(), "B1-H16-N4096-D64-bf16", "full", "causal", "backward", "naive,flash2", "parity", "l2",
              "off", "3", "softmax", "kernel,launch", "time", "theorem", "traffic", "shape", "png", "blocks", "zh",
              "", ",", ",,naive", "0", "-1", "1e400", "NaN", "../../etc/passwd", "<script>alert(1)</script>", "=1+1",
              "a" * 3000, "\u202e\u0000\U0001f600", "%00", "𝔘𝔫𝔦", "null", "[]", "naive" * 50]
    app = visit(random.choice(PAGES))
    for _ in range(50):
        if random.random() < 0.2:
            app.switch_page(f"profiler/dashboard/pages/{random.choice(PAGES)}.py")
        app.query_params.clear()
        for name in random.sample(names, random.randint(1, 6)):
            app.query_params[name] = random.choice(values)
        app.run()
        said = dict(app.query_params)
        assert [e.value for e in app.exception] == [], said
        assert [e.value for e in app.error] == [], said
