"""The ledger draws what was counted: values worked out by hand on the synthetic bundle."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from profiler import bundle as bundles
from profiler import evidence, table
from profiler.bundle import Bundle
from profiler.figures import canvas
from profiler.figures.ledger import frame, ledger
from profiler.spec import AttentionShape, RunConfig
from tests import synthetic
from tests.figures.samples import ALL, BUNDLE, SHAPE

Q = 16 * 4096 * 64 * 2  # bytes of Q, K, V or O: 8,388,608
S = 16 * 4096 * 4096 * 2  # bytes of one N×N matrix: 536,870,912


def doctored(bundle: Bundle, implementation: str, **columns) -> Bundle:
    """The bundle with columns of an implementation's launches replaced."""
    launches = bundle.launches.copy()
    rows = launches["implementation"].eq(implementation)
    for name, value in columns.items():
        launches.loc[rows, name] = value
    return replace(bundle, launches=launches)


def bars(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_drawn_bars_are_the_counted_bytes():
    figure = ledger(BUNDLE, SHAPE)
    assert list(bars(figure, "naive/scores").x) == [Q, Q, S]
    assert list(bars(figure, "naive/scores").base) == [0, Q, 2 * Q]
    assert list(bars(figure, "naive/scale").x) == [S, S]
    assert list(bars(figure, "naive/softmax").x) == [S, S]
    assert list(bars(figure, "naive/values").x) == [S, Q, Q]
    assert sum(bars(figure, "flash2/attention").x) == pytest.approx(4 * Q)
    assert list(bars(figure, "naive/scores/predicted").x) == [2 * Q + S]
    assert figure.layout.xaxis.range[0] == 0


def test_frame_is_what_is_drawn():
    figure = ledger(BUNDLE, SHAPE, ALL)
    data = canvas.to_frame(figure)
    for (name, stage), rows in data.groupby(["implementation", "stage"]):
        drawn = list(bars(figure, f"{name}/{stage}").x)
        assert drawn == pytest.approx([v for v in rows["bytes"] if v > 0])
        assert bars(figure, f"{name}/{stage}/predicted").x[0] == pytest.approx(rows["predicted_bytes"].sum())
    assert list(data["bytes"]) == pytest.approx(list(frame(BUNDLE, SHAPE, ALL)["bytes"]))


def test_passes_over_an_nxn_matrix_are_numbered():
    data = frame(BUNDLE, SHAPE, ("naive", "naive_folded", "flash2"))
    passes = data.groupby("implementation")["nxn_pass"].max()
    assert passes["naive"] == 6
    assert passes["naive_folded"] == 4
    assert pd.isna(passes["flash2"])
    texts = [a.text for a in ledger(BUNDLE, SHAPE).layout.annotations]
    for mark, what in zip("①②③④⑤⑥", ("write S", "read S", "write S", "read S", "write P", "read P")):
        assert any(mark in text and what in text and "537" in text for text in texts)


def test_title_is_true_for_the_data():
    words = canvas.title(ledger(BUNDLE, SHAPE)).replace("\u00a0", " ")
    # naive: 2Q + S, 2S, 2S, S + 2Q = 6S + 4Q = 3.25 GB; compulsory 4Q = 33.6 MB
    assert words == "Naive attention moves 3.25 GB through HBM for what needs 33.6 MB"


def test_flash_that_moves_more_than_naive_is_said_to():
    bundle = doctored(BUNDLE, "flash2", dram_read_bytes=8.0 * S)
    words = canvas.title(ledger(bundle, SHAPE)).replace("\u00a0", " ")
    assert words == "FlashAttention-2 (Triton) moves 4.30 GB through HBM, no less than naive's 3.25 GB"
    texts = " ".join(a.text for a in ledger(bundle, SHAPE).layout.annotations)
    assert "no pass over S or P" not in texts


def test_flash_that_writes_s_once_does_not_pass_for_compulsory():
    bundle = doctored(BUNDLE, "flash2", dram_write_bytes=float(Q + S))
    words = canvas.title(ledger(bundle, SHAPE)).replace("\u00a0", " ")
    assert words.endswith("FlashAttention-2 (Triton) 570 MB; 33.6 MB would do")
    texts = " ".join(a.text for a in ledger(bundle, SHAPE).layout.annotations)
    assert "no pass over S or P" not in texts


def test_what_l2_kept_is_said_and_not_drawn():
    bundle = doctored(BUNDLE, "flash2", dram_write_bytes=2e6)
    figure = ledger(bundle, SHAPE)
    assert sum(bars(figure, "flash2/attention").x) == pytest.approx(3 * Q + 2e6)
    texts = " ".join(a.text for a in figure.layout.annotations).replace("<br>", " ").replace("\u00a0", " ")
    assert "6.39 MB more still in L2" in texts  # 8,388,608 − 2,000,000


def test_a_residual_is_named_where_it_matters_and_only_there():
    bundle = doctored(BUNDLE, "flash2", dram_read_bytes=5.0 * Q)  # 2Q more than Q, K and V
    figure = ledger(bundle, SHAPE)
    assert sum(bars(figure, "flash2/attention").x) == pytest.approx(6 * Q)
    assert "16.8 MB" in " ".join(a.text for a in figure.layout.annotations).replace("\u00a0", " ")  # 2Q
    little = doctored(BUNDLE, "flash2", dram_read_bytes=3.01 * Q)
    texts = " ".join(a.text for a in ledger(little, SHAPE).layout.annotations)
    assert "unexplained" not in texts and "refetched" not in texts


def test_a_missing_counter_is_named_and_not_drawn_as_zero():
    bundle = doctored(BUNDLE, "flash2", dram_write_bytes=pd.NA)
    figure = ledger(bundle, SHAPE)
    assert len(bars(figure, "flash2/attention").x) == 3  # Q, K, V
    texts = " ".join(a.text for a in figure.layout.annotations)
    assert "O written: not available" in texts
    assert canvas.to_frame(figure).query("implementation == 'flash2' and tensor == 'O'")["bytes"].isna().all()


def test_without_counters_nothing_is_drawn():
    figure = ledger(replace(BUNDLE, launches=BUNDLE.launches.head(0)), SHAPE)
    assert not figure.data
    assert canvas.title(figure) == "HBM bytes by stage are not available"
    assert canvas.to_frame(figure).empty


def test_an_l2_resident_shape_makes_no_claim_about_s():
    small = replace(SHAPE, nq=512, nk=512)  # one N×N matrix is 8.39 MB, the L2 60 MB
    texts = " ".join(a.text for a in ledger(BUNDLE, small).layout.annotations).replace("<br>", " ")
    assert "no pass over S or P" not in texts
    assert "need not reach HBM" in texts


def test_backward_and_decode_are_told_by_their_own_tensors():
    shape = AttentionShape(1, 16, 4096, 4096, 64)
    rows, stages = [], {"prepare": (2, 0), "keys": (4, 2), "queries": (4, 1)}
    for name, moved in (("naive", {"d_values": (9, 1), "d_weights": (2, 8), "d_softmax": (16, 8), "d_scale": (8, 8),
                                   "d_queries": (9, 1), "d_keys": (9, 1)}), ("flash2", stages)):
        config = RunConfig(name, shape, "backward")
        for stage, (read, write) in moved.items():  # in units of Q; one N×N matrix is 64 of them, its pass 8 here
            row = synthetic.launch_rows(RunConfig("flash2", shape), len(rows))[0]
            rows.append({**row, **config.key(stage), "range": stage, "dram_read_bytes": read * Q * 8,
                         "dram_write_bytes": write * Q * 8})
    figure = ledger(Bundle("backward", BUNDLE.profile, table.make("launches", rows)), shape, direction="backward")
    said = " ".join(a.text for a in figure.layout.annotations if a.text).replace("<br>", " ").replace("\u00a0", " ")
    assert "Backward pass, batch 1" in said and "dQ, dK, dV out, once each" in said
    assert list(figure.layout.yaxis.ticktext) == [
        "1  dV = Pᵀ·dO", "2  dP = dO·Vᵀ", "3  dS = P∘(dP − Δ)", "4  dS = dS·scale", "5  dQ = dS·K", "6  dK = dSᵀ·Q",
        "1  Δ = Σ dO∘O", "2  dK and dV", "3  dQ"]
    data = canvas.to_frame(figure)
    naive = data[data["implementation"].eq("naive") & data["nxn_pass"].notna()]
    # softmax's gradient is two launches: P, dP → dP ∘ P, then P, dP ∘ P → dS
    assert list(naive["tensor"]) == ["P", "dP", "P", "P", "dP", "dP∘P", "dP∘P", "dS", "dS", "dS", "dS", "dS"]
    assert list(naive["nxn_pass"]) == list(range(1, 13)) and "twelve N×N passes" in said


def test_the_figure_counts_the_passes_that_the_evidence_counts():
    """On the recorded backward: one truth in the ledger's header and in the claim."""
    bundle = bundles.read(Path(__file__).parents[2] / "data" / "h200-backward")
    h = evidence.headline(bundle, SHAPE, "backward")
    data = frame(bundle, SHAPE, ("naive", "flash2"), "backward")
    assert data["nxn_pass"].max() == h.naive.matrix_passes == 12
    counted = h.naive.dram_bytes
    assert data[data["implementation"].eq("naive")]["bytes"].sum() == pytest.approx(counted)
    said = " ".join(a.text for a in ledger(bundle, SHAPE, direction="backward").layout.annotations if a.text)
    assert "twelve N×N passes" in said
