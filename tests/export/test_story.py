"""The storyline: only screens whose claims hold, in the order asked for, with why the others are missing."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from profiler import bundle as bundles
from profiler import evidence, parse
from profiler.errors import BadInput, DamagedFile
from profiler.export import arrange, reveal, sketches, story
from profiler.export.chapters import ATTENTION, REPORT
from profiler.export.screens import Scene
from profiler.export.story import Pick, Plan
from profiler.figures import canvas
from tests.dashboard.conftest import REPORTS, ROOT

SHAPE = "B1 H16 N4096 D64 bf16 full"


def verdicts(bundle, shape) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in evidence.evaluate(bundle, shape)}


def test_every_screen_rests_on_claims_that_hold(told, bundle):
    found = verdicts(bundle, told.shape)
    claims = {name for screen in told.screens for name in screen.claims}
    assert claims and {found[name] for name in claims} == {"holds"}
    assert len(told.screens) >= 10


def test_kept_and_left_out_are_all_chapters_once(told):
    named = [s.id for s in told.screens if s.id != story.LEFT_OUT] + [d.id for d in told.left_out]
    assert sorted(named) == sorted(c.id for c in ATTENTION)


@pytest.mark.parametrize("implementation, column, add, gone", [
    ("flash2", "dram_write_bytes", 2 * 536_870_912, {"idea", "again", "roofline"}),  # S written and P too
    ("flash2", "tensor_flops", 1e11, {"roofline"}),
    ("flash2", "l2_to_sm_bytes", 5e8, {"theorem"}),
    ("flash2", "achieved_occupancy_pct", 87.0, {"occupancy"}),
], ids=["s-in-hbm", "more-flops", "more-l2-to-sm", "high-occupancy"])
def test_a_doctored_bundle_drops_the_false_screen(doctored, told, implementation, column, add, gone):
    again = story.tell(doctored(implementation, column, add))
    lost = {s.id for s in told.screens} - {s.id for s in again.screens}
    assert gone <= lost
    why = {d.id: d.why for d in again.left_out}
    assert all("fails here" in why[name] or "cannot be told here" in why[name] for name in gone)
    assert again.screens[-1].id == story.LEFT_OUT


def test_order_titles_and_shapes_of_ones_own(bundle, told):
    causal = "B1 H16 N8192 D128 bf16 causal"
    plan = Plan((Pick("roofline", "My own words"), Pick("bytes"), Pick("roofline", shape=causal)), SHAPE)
    again = story.tell(bundle, plan)
    assert [s.id for s in again.screens] == ["roofline", "bytes", "roofline"]
    assert again.screens[0].title == "My own words"
    assert "My own words" in [canvas.plain(a.text) for a in again.screens[0].figure.layout.annotations]
    assert [s.shape.label() for s in again.screens] == [SHAPE, SHAPE, causal]


@pytest.mark.parametrize("name", ["h200-evidence", "h200-backward", "h200-memory", "h200-peers"])
def test_titles_and_gaps_are_known_before_anything_is_drawn_and_are_those_of_the_figures(name, monkeypatch):
    drawn = []
    finish = canvas.finish
    monkeypatch.setattr(canvas, "finish", lambda *given: drawn.append(given) or finish(*given))
    told = story.tell(bundles.read(ROOT / "data" / name))
    assert drawn == []
    for screen in told.screens:
        assert canvas.title(screen.figure) == screen.title
        assert len(canvas.to_frame(screen.figure))
    chapters = {c.id: c for c in (*ATTENTION, *REPORT)}
    scene = Scene(told.bundle, told.shape)
    for gone in told.left_out:
        if not chapters[gone.id].claims:
            words = {n.name: canvas.plain(n.text) for n in chapters[gone.id].draw(scene, "light").layout.annotations}
            assert gone.why == f"{words['title']}. {words['subtitle']}"
    assert drawn


def test_a_long_title_of_ones_own_pushes_the_figure_down(bundle):
    short, long = (story.tell(bundle, Plan((Pick("bytes", title),))).screens[0].figure
                   for title in ("Short", "A title that is so long that it cannot stand in one line " * 3))
    assert long.layout.margin.t - short.layout.margin.t == pytest.approx(1.3 * 36)  # one more line of 36 px type


def test_a_story_saved_in_the_bundle_is_told_again(bundle, tmp_path):
    plan = Plan((Pick("theorem", "Where it shows"), Pick("problem")), SHAPE)
    story.save(plan, tmp_path)
    assert story.load(tmp_path / story.STORY) == plan
    assert [s.id for s in story.tell(bundle, folder=tmp_path).screens] == ["theorem", "problem"]


@pytest.mark.parametrize("text, error, words", [
    ("{", DamagedFile, "not a story file"), ("[]", DamagedFile, "not a story file"),
    ('{"story_version": 99}', BadInput, "later FlashScope"),
], ids=["cut", "list", "newer"])
def test_a_story_file_that_is_none(tmp_path, text, error, words):
    (tmp_path / "story.json").write_text(text)
    with pytest.raises(error, match=words):
        story.load(tmp_path / "story.json")


@pytest.mark.parametrize("plan, words", [
    (Plan((Pick("nothing"),)), "no screen is called 'nothing'"), (Plan(shape="B1"), "no shape 'B1'")],
    ids=["id", "shape"])
def test_a_plan_that_asks_for_what_is_not_there(bundle, plan, words):
    with pytest.raises(BadInput, match=words):
        story.tell(bundle, plan)


@pytest.mark.parametrize("report, kept", [
    ("h100_five_kernels", ["kernel_time", "kernel_bytes"]), ("rtx3070_one_kernel", ["kernel_time"]),
    ("v100_openacc_five_kernels", ["launches", "kernel_time", "kernel_bytes"])], ids=["h100", "rtx3070", "v100"])
def test_a_foreign_report_gives_what_its_counters_carry_and_says_so(report, kept):
    told = story.tell(parse.load(REPORTS / f"{report}.ncu-rep"))
    assert [s.id for s in told.screens] == [*kept, story.LEFT_OUT]
    assert {d.id for d in told.left_out} == {c.id for c in (*ATTENTION, *REPORT)} - set(kept)
    assert str(len(told.left_out)) in told.screens[-1].title


def test_a_kernel_of_a_template_has_its_own_name_in_titles():
    """Kernel<B2bGemm>: plain where words are plain, and marked up only in the figure, whose text is markup."""
    report = parse.load(REPORTS / "a100_cutlass_int8_three_kernels.ncu-rep")
    told = story.tell(report)
    (title,) = [screen.title for screen in told.screens if "takes 52.8%" in screen.title]
    assert title.startswith("Kernel<B2bGemm> takes")
    figure = next(screen.figure for screen in told.screens if screen.title == title)
    assert canvas.title(figure) == title and "&lt;B2bGemm&gt;" in next(
        note.text for note in figure.layout.annotations if note.name == "title")


def test_reveals_predict_first_then_measure_stage_by_stage(told):
    screen = next(s for s in told.screens if s.id == "bytes")
    steps = reveal.order(screen.figure, screen.steps)
    at = {trace.name: step for trace, step in zip(screen.figure.data, steps["traces"])}
    assert [at[f"naive/{s}/predicted"] for s in ("scores", "scale", "softmax", "values")] == [1, 1, 1, 1]
    assert [at[f"naive/{s}"] for s in ("scores", "scale", "softmax", "values")] == [2, 3, 4, 5]


@pytest.mark.parametrize("name", ["title", "subtitle", "foot"])
def test_what_frames_a_figure_is_there_from_the_first_step(told, name):
    for screen in told.screens:
        steps = reveal.order(screen.figure, screen.steps)
        assert [step for note, step in zip(screen.figure.layout.annotations, steps["annotations"])
                if note.name == name] == [0], screen.id


def test_a_label_comes_with_the_point_it_names(told):
    screen = next(s for s in told.screens if s.id == "roofline")
    steps = reveal.order(screen.figure, screen.steps)
    at = {canvas.plain(note.text).split(" ")[0]: step
          for note, step in zip(screen.figure.layout.annotations, steps["annotations"]) if note.name == "label"}
    assert at["naive"] == 1 and at["FlashAttention-2"] == 2


def test_provenance_stands_on_every_figure(told):
    for screen in told.screens:
        for figure in screen.figures.values():
            foot = next(a.text for a in figure.layout.annotations if a.name == "foot")
            text = canvas.plain(foot).replace("\u00a0", " ")
            for part in ("Synthetic GPU", "ncu 0", "cache-control all", "clock-control none", "SM clock 1.75 GHz",
                         "driver 0", "torch 0", "Triton 0", "2026-01-01"):
                assert part in text, (screen.id, part)


def test_the_hash_of_the_bundle_stands_on_its_figures(bundle, tmp_path):
    from profiler import bundle as bundles

    folder = bundles.write(bundle, tmp_path / "b")
    digest = story.digest(folder)
    notes = story.tell(bundle, folder=folder).screens[0].figure.layout.annotations
    foot = next(note.text for note in notes if note.name == "foot")
    assert digest[:8] in foot
    profile = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").write_text(json.dumps({**profile, "driver": "1"}))
    assert story.digest(folder) != digest


def test_the_worked_example_is_the_softmax_of_the_whole_row():
    scores = [1.2, 0.3, 2.1, -0.5, 3.0, 0.8, 1.1, 2.4, 0.2, 3.6, -1.0, 1.7]
    # Σ exp(s − 3.6) by hand: 0.09072 0.03688 0.22313 0.01657 0.54881 0.06081 0.08208 0.30119 0.03337 1 0.01005 0.14957
    last = sketches.example()[-1]
    assert last["m"] == max(scores) == 3.6
    assert last["l"] == pytest.approx(2.55319, abs=2e-5)


def test_a_figure_names_its_view_where_the_app_has_an_address(bundle, told, monkeypatch):
    monkeypatch.setenv("FLASHSCOPE_ADDRESS", "https://flash.example/")
    screen = story.tell(bundle, Plan((Pick("roofline"),), SHAPE)).screens[0]
    foot = canvas.plain(next(a.text for a in screen.figure.layout.annotations if a.name == "foot"))
    assert "https://flash.example/roofline?source=synthetic&shape=B1-H16-N4096-D64-bf16&mask=full" in foot
    assert "flash.example" not in str(told.screens[0].figure.layout.annotations)


def test_the_named_view_is_one_that_the_app_knows(bundle, told):
    """The key of a shape in the link, made here and in the app from the same shape."""
    from profiler.dashboard import frame
    from profiler.dashboard.components.selectors import configurations

    pages = {frame.address(name) for entries in frame.LIST.values() for name, _ in entries} | {""}
    keys = set(configurations(bundle)["key"])
    for chapter in (*ATTENTION, *REPORT):
        address = story.view("http://a", Scene(bundle, told.shape), chapter)
        assert chapter.page in pages and address.split("shape=")[1].split("&")[0] in keys


ADDRESS = "https://flash.example/?source=synthetic&shape=B1-H16-N4096-D64-bf16&mask=full"


@pytest.fixture
def looked(bundle, monkeypatch) -> story.Story:
    monkeypatch.setenv("FLASHSCOPE_ADDRESS", "https://flash.example")
    return story.tell(bundle, Plan((Pick("bytes"), Pick("roofline")), SHAPE))


def test_the_last_screen_is_the_address_as_a_code_that_a_reader_reads(looked):
    """zxing reads the drawn rectangles as pixels: what a telephone would open."""
    import zxingcpp

    screen = looked.screens[-1]
    assert screen.id == story.LOOK and screen.notes == (ADDRESS,)
    for figure in screen.figures.values():
        [path] = [shape.path for shape in figure.layout.shapes if shape.type == "path"]
        corners = np.array(re.findall(r"M (\S+) (\S+) L \S+ \S+ L (\S+) (\S+)", path), float)
        assert len(corners) > 100
        pixels = np.full((1000, 1000), 255, np.uint8)
        for x0, y0, x1, y1 in corners.round().astype(int):
            pixels[y0:y1, x0:x1] = 0
        assert [found.text for found in zxingcpp.read_barcodes(pixels)] == [ADDRESS]
        assert "flash.example" in canvas.plain(" ".join(a.text for a in figure.layout.annotations))


def test_without_the_package_the_code_is_left_out_with_its_remedy(bundle, monkeypatch):
    monkeypatch.setenv("FLASHSCOPE_ADDRESS", "https://flash.example")
    monkeypatch.setitem(sys.modules, "segno", None)
    told_ = story.tell(bundle, Plan((Pick("bytes"),), SHAPE))
    assert [d.id for d in told_.left_out] == [story.LOOK] and "pip install segno" in told_.left_out[0].why
    assert told_.screens[-1].id == story.LEFT_OUT


def test_another_order_and_titles_need_no_new_drawing(looked):
    asked = Plan((Pick("roofline", "Mine"), Pick("bytes")), SHAPE)
    new = arrange.arranged(looked, asked)
    assert [(s.id, s.title) for s in new.screens[:2]] == [("roofline", "Mine"), ("bytes", looked.screens[0].title)]
    assert new.screens[1].figures is looked.screens[0].figures and new.screens[-1].id == story.LOOK
    again = story.tell(looked.bundle, asked)
    assert [s.title for s in again.screens] == [s.title for s in new.screens]
    assert canvas.title(looked.screens[1].figure) != "Mine"  # the first story is as it was
    assert arrange.arranged(new, Plan((Pick("roofline"),), SHAPE)) is None  # its generated title was not kept
    assert arrange.arranged(looked, Plan((Pick("bytes"),), "another")) is None
