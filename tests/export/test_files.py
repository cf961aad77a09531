"""The export: every file it promises, with a browser and without one, and the manifest that says what is missing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from profiler import bundle as bundles
from profiler import evidence
from profiler.errors import BadInput
from profiler.export import browser, files, slides, story, tables
from profiler.figures import units
from tests import synthetic
from tests.dashboard.conftest import REPORTS, ROOT

needs_browser = pytest.mark.skipif(browser.find() is None, reason="no Chrome or Chromium on this machine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small bundle on disk: three lengths, so that slopes can be told."""
    small = synthetic.bundle((1024, 2048, 4096), ("full",), (64,))
    return bundles.write(small, tmp_path_factory.mktemp("data") / "synthetic")


def command(source: Path, out: Path, path: str | None = None, *more: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    return subprocess.run([sys.executable, "-m", "profiler", "export", str(source), "--out", str(out), *more], cwd=ROOT,
                          env=environment, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def without(folder, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """An export with nothing on PATH."""
    empty = tmp_path_factory.mktemp("empty")
    out = tmp_path_factory.mktemp("without") / "talk"
    return out, command(folder, out, str(empty))


@pytest.fixture
def unseen(monkeypatch) -> None:
    """No browser: what a test checks is made without one."""
    monkeypatch.setattr(browser, "find", lambda: None)


def manifest(out: Path) -> dict:
    return json.loads((out / files.MANIFEST).read_text(encoding="utf-8"))


def test_without_a_browser_all_but_pictures_is_made(without):
    out, done = without
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out)
    made = {entry["path"] for entry in manifest(out)["files"]}
    assert {"deck.html", "slides.pptx", "headline.md", "headline.tex", "story.json", "figures/roofline.csv"} <= made
    assert not [path for path in made if path.endswith((".png", ".svg", ".pdf"))]
    assert [m["what"].split()[0] for m in manifest(out)["missing"]] == ["pictures", "deck.pdf"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("missing:")]
    assert len(lines) == 2 and all("apt install chromium" in line for line in lines)


def test_the_manifest_names_every_file_with_its_hash_and_the_zip_holds_them(without):
    out, _ = without
    said = manifest(out)
    listed = {entry["path"]: entry["sha256"] for entry in said["files"]}
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert there == {*listed, files.MANIFEST, "synthetic-talk.zip"}
    for path, digest in listed.items():
        assert hashlib.sha256((out / path).read_bytes()).hexdigest() == digest, path
    with zipfile.ZipFile(out / "synthetic-talk.zip") as archive:
        assert set(archive.namelist()) == {*listed, files.MANIFEST}
        assert archive.read("deck.html") == (out / "deck.html").read_bytes()
    assert said["source"]["gpu"]["name"] == "Synthetic GPU" and len(said["source"]["file"]["sha256"]) == 64
    assert [s["id"] for s in said["screens"]][:3] == ["problem", "tensors", "bytes"]


def test_slides_are_editable_text_and_native_tables(without):
    from pptx import Presentation

    out, _ = without
    show = Presentation(str(out / "slides.pptx"))
    titles = [slide.shapes.title.text for slide in show.slides]
    assert titles == [*(s["title"] for s in manifest(out)["screens"]), "The headline numbers"]
    cells = {title: [[cell.text for cell in row.cells] for shape in slide.shapes if shape.has_table for row in
                     shape.table.rows] for title, slide in zip(titles, show.slides)}
    assert all(cells.values()), "a slide without picture and table"
    numbers = {row[0]: row for row in cells["The headline numbers"]}
    # naive at N 4096: 6 passes over 16·4096²·2 B and Q, K, V, O of 16·4096·64·2 B once = 3.25 GB; flash: Q, K, V, O
    assert numbers["HBM bytes, counted"][1:3] == ["3.25\u00a0GB", "33.6\u00a0MB"]
    assert all(slide.notes_slide.notes_text_frame.text for slide in list(show.slides)[:-1])


def test_tables_in_markdown_and_latex_hold_the_same_numbers(without):
    out, _ = without
    markdown, latex = ((out / f"headline.{ending}").read_text(encoding="utf-8") for ending in ("md", "tex"))
    assert "| HBM bytes, counted | 3.25\u00a0GB | 33.6\u00a0MB | 97.0× | measured |" in markdown
    assert r"HBM bytes, counted & 3.25~GB & 33.6~MB & 97.0$\times$ & measured \\" in latex
    assert latex.count("{") == latex.count("}") and "Synthetic GPU" in markdown and "Synthetic GPU" in latex


def test_what_latex_would_read_as_a_command_is_escaped():
    frame = pd.DataFrame([(r"a_b & 50% \x{}", "1")], columns=["Quantity #1", "$"])
    assert r"a\_b \& 50\% \textbackslash{}x\{\} & 1 \\" in tables.latex([("c", frame)], "foot")


def test_a_null_stays_not_available_in_the_headline_table(bundle):
    from dataclasses import replace

    launches = bundle.launches.assign(dram_write_bytes=pd.array([None] * len(bundle.launches), "Float64"))
    shape = evidence.default_shape(bundle)
    table = tables.headline(replace(bundle, launches=launches), shape).set_index("Quantity")
    assert list(table.loc["HBM bytes, counted"])[:3] == [units.NOT_AVAILABLE, units.NOT_AVAILABLE, ""]


@needs_browser
@pytest.mark.browser
def test_with_a_browser_every_picture_and_the_pdf_are_made(folder, tmp_path):
    from PIL import Image

    out = tmp_path / "talk"
    done = command(folder, out)
    assert done.returncode == 0 and "missing" not in done.stderr, done.stderr
    assert manifest(out)["missing"] == []
    for screen in manifest(out)["screens"]:
        svg = (out / f"figures/{screen['id']}.svg").read_text(encoding="utf-8")
        assert svg.startswith("<svg") and 'width="1920"' in svg and "Synthetic" in svg
        with Image.open(out / f"figures/{screen['id']}.png") as picture:
            assert picture.size == (3840, 2160) and len(picture.convert("L").getcolors() or range(256)) > 20
    pdf = (out / "deck.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") == len(manifest(out)["screens"])


@needs_browser
@pytest.mark.browser
def test_slides_take_pictures_where_there_are_any(folder):
    from pptx import Presentation

    told = story.tell(bundles.read(folder))
    job = browser.Job(told.screens[0].figure, "png", 0.25)
    picture = browser.pictures(browser.find(), {"one": job})["one"]
    show = Presentation(io.BytesIO(slides.deck(told, None, "", {told.screens[0].id: picture})))
    kinds = [{shape.shape_type for shape in slide.shapes} for slide in show.slides]
    assert 13 in kinds[0] and not any(13 in found for found in kinds[1:])  # 13: MSO_SHAPE_TYPE.PICTURE


def test_a_browser_that_fails_is_named_and_the_rest_is_made(folder, tmp_path, monkeypatch):
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setattr(browser, "find", lambda: str(fake))
    made = files.export(bundles.read(folder), tmp_path / "out")
    assert {m["why"] for m in made.missing} == {"chromium ended with code 7."}
    assert "deck.html" in made.made and "slides.pptx" in made.made and "deck.pdf" not in made.made


def test_a_foreign_report_exports_what_it_carries(tmp_path):
    done = command(REPORTS / "h100_five_kernels.ncu-rep", tmp_path / "talk", str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = manifest(tmp_path / "talk")
    assert [s["id"] for s in said["screens"]] == ["kernel_time", "kernel_bytes", "left_out"]
    assert len(said["left_out"]) == 13 and said["shape"] is None
    assert "headline.md, headline.tex" in {m["what"] for m in said["missing"]}


def test_an_export_again_into_the_same_folder_leaves_nothing_old(folder, tmp_path, unseen):
    out, bundle = tmp_path / "talk", bundles.read(folder)
    files.export(bundle, out, story.Plan((story.Pick("bytes"), story.Pick("theorem"))))
    assert (out / "figures/theorem.csv").is_file()
    files.export(bundle, out, story.Plan((story.Pick("bytes"),)))
    assert not (out / "figures/theorem.csv").exists()


def test_a_folder_with_other_things_is_refused_and_kept(folder, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="new or empty folder"):
        files.export(bundles.read(folder), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_manifest_cannot_make_an_export_delete_elsewhere(folder, tmp_path, unseen):
    out, outside = tmp_path / "talk", tmp_path / "outside.txt"
    out.mkdir()
    outside.write_text("kept")
    (out / files.MANIFEST).write_text(json.dumps({"files": [{"path": "../outside.txt"}, {"path": str(outside)}]}))
    files.export(bundles.read(folder), out, story.Plan((story.Pick("bytes"),)))
    assert outside.read_text() == "kept"


@pytest.mark.parametrize("more, words", [
    (("--theme", "blue"), "theme: expected one of light, dark"), (("--story", "no.json"), "no.json is not there"),
], ids=["theme", "story"])
def test_bad_options_are_one_line_and_exit_2(folder, tmp_path, more, words):
    done = command(folder, tmp_path / "talk", None, *more)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_the_story_told_is_kept_in_the_bundle(folder, tmp_path):
    own = tmp_path / "own.json"
    own.write_text(json.dumps(story.Plan((story.Pick("theorem", "Here it shows"),)).to_json()))
    done = command(folder, tmp_path / "talk", str(tmp_path), "--story", str(own), "--keep-story")
    assert done.returncode == 0, done.stderr
    try:
        assert story.load(folder / story.STORY).picks == (story.Pick("theorem", "Here it shows"),)
    finally:
        (folder / story.STORY).unlink()
