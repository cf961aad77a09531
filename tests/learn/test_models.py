"""The numbers of the Learn page against values worked by hand or computed another way."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from profiler.learn import backward, beliefs, faults, masks, online, programs, reading, sizes, sram
from profiler.spec import AttentionShape
from tests import synthetic

E1, E2, E3 = math.exp(-1), math.exp(-2), math.exp(-3)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis, without subtracting anything: an independent way for small scores."""
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


class TestOnline:
    def test_the_worked_example(self):
        """[1, 2] | [3, 0] with values 1, 2, 3, 4, by hand."""
        one, two = online.walk(*online.WORKED)
        assert (one.m, one.alpha) == (2, 0)
        assert one.l == pytest.approx(1 + E1)
        assert one.acc == pytest.approx(1 * E1 + 2)
        assert (two.m, two.alpha) == (3, pytest.approx(E1))
        assert two.l == pytest.approx(E2 + E1 + 1 + E3)
        assert two.l == pytest.approx(1.5530, abs=5e-5)
        assert two.acc == pytest.approx(1 * E2 + 2 * E1 + 3 + 4 * E3)
        assert two.terms == pytest.approx((E2, E1, 1, E3))
        assert two.output == pytest.approx(2.6209, abs=5e-5)

    @pytest.mark.parametrize("block", [1, 2, 3, 7, 8, 20])
    def test_any_block_size_is_softmax_in_one_pass(self, block):
        random = np.random.default_rng(block)
        scores, values = random.normal(0, 3, 13), random.normal(size=13)
        last = online.walk(list(scores), list(values), block)[-1]
        assert last.output == pytest.approx(float(softmax(scores) @ values), rel=1e-12)
        assert last.m + math.log(last.l) == pytest.approx(math.log(np.exp(scores).sum()), rel=1e-12)
        assert sum(last.terms) == pytest.approx(last.l)
        assert online.at_once(list(scores), list(values))[2] == pytest.approx(last.output)

    def test_alpha_is_never_above_one(self):
        scores = list(np.random.default_rng(0).normal(0, 200, 48))
        assert all(0 <= step.alpha <= 1 for step in online.walk(scores, scores, 3))

    def test_masked_keys(self):
        hidden = -math.inf
        first, last = online.walk([hidden, hidden, 1, 0], [1, 2, 3, 4], 2)
        assert (first.m, first.l, first.acc, first.output) == (hidden, 0, 0, 0)
        assert last.output == pytest.approx((3 + 4 * E1) / (1 + E1))
        assert online.at_once([hidden, hidden], [1, 2])[1:] == (0, 0)

    def test_what_a_visitor_types(self):
        assert online.numbers("1, 2;3 | −4e1，x") == ([1, 2, 3, -40, -math.inf], [])
        assert online.numbers("1, two, nan, inf, 1e9") == ([1], ["two", "nan", "inf", "1e9"])
        assert online.numbers("") == ([], [])
        assert len(online.numbers("1 " * 500)[0]) == online.MOST_NUMBERS


class TestFaults:
    @pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda f: f.key)
    def test_it_is_wrong_where_it_shows_and_the_correct_loop_is_right(self, fault):
        _, k, v, scale, visible, _ = fault.shows
        seen = visible[0]
        scores = (k[:, 0] * scale)[seen]
        expected = float(softmax(scores - scores.max()) @ v[seen, 0]) if seen.any() else 0.0
        assert faults.run(faults.correct, fault.shows) == pytest.approx(expected, rel=1e-12)
        assert not abs(faults.run(fault.code, fault.shows) - expected) < 0.1  # NaN is wrong too

    @pytest.mark.parametrize("fault", [f for f in faults.FAULTS if f.hides], ids=lambda f: f.key)
    def test_it_is_right_where_it_hides(self, fault):
        right = faults.run(faults.correct, fault.hides)
        assert faults.run(fault.code, fault.hides) == pytest.approx(right, rel=1e-12)

    def test_the_correct_loop_on_many_rows_and_any_block(self):
        random = np.random.default_rng(3)
        q, k, v = random.normal(size=(5, 8)), random.normal(size=(11, 8)), random.normal(size=(11, 4))
        visible = random.random((5, 11)) > 0.3
        visible[2] = False
        weights = np.exp(q @ k.T * 0.3) * visible
        expected = weights @ v / np.where(visible.any(axis=1), weights.sum(axis=1), 1)[:, None]
        for block in (1, 3, 4, 16):
            assert faults.correct(q, k, v, 0.3, visible, block) == pytest.approx(expected, rel=1e-12)

    def test_which_of_them_give_nan(self):
        broken = {f.key for f in faults.FAULTS if math.isnan(faults.run(f.code, f.shows))}
        assert broken == {"masked_row", "masked_block", "zero"}

    def test_a_forgotten_scale_is_finite_and_too_sharp(self):
        fault = next(f for f in faults.FAULTS if f.key == "scale")
        assert faults.run(fault.code, fault.shows) == pytest.approx(3, abs=1e-3)  # the largest score's value

    def test_the_order_mistake_loses_the_first_block(self):
        """Only block 2 remains, times α: (3 + 4·e⁻³)·e⁻¹ over the right l."""
        fault = next(f for f in faults.FAULTS if f.key == "order")
        expected = (3 + 4 * E3) * E1 / (E2 + E1 + 1 + E3)
        assert faults.run(fault.code, fault.shows) == pytest.approx(expected)

    def test_fp16_scores_overflow_past_65504(self):
        assert faults.overflow_in_half([70_000.0])
        assert not faults.overflow_in_half([65_504.0])


class TestBackward:
    def test_recomputation_gives_the_gradients_of_finite_differences(self):
        random = np.random.default_rng(1)
        q, k, v, do = (random.normal(size=(6, 4)) for _ in range(4))
        scale = 0.5

        def loss(q, k, v):
            return float((softmax(scale * q @ k.T) @ v * do).sum())

        o, lse, _ = backward.forward(q, k, v, scale)
        gradients = backward.recomputed(q, k, v, o, lse, do, scale, 4)
        inputs = (q, k, v)
        for which, gradient in enumerate(gradients):
            numeric = np.zeros_like(gradient)
            for at in np.ndindex(*gradient.shape):
                moved = []
                for sign in (1, -1):
                    changed = [x.copy() for x in inputs]
                    changed[which][at] += sign * 1e-5
                    moved.append(loss(*changed))
                numeric[at] = (moved[0] - moved[1]) / 2e-5
            assert gradient == pytest.approx(numeric, abs=1e-7)

    def test_the_trial_of_the_page(self):
        trial = backward.trial(64, 16, 16)
        assert trial.gradients < 1e-13 and trial.delta < 1e-13
        assert trial.unscaled == pytest.approx(3)  # 1/scale − 1 = √16 − 1

    def test_bytes_kept(self):
        """16 heads, N 8192, D 64, bf16: P is 16·8192²·2 B; O 16·8192·64·2 B and LSE 16·8192·4 B."""
        kept = backward.kept(AttentionShape(1, 16, 8192, 8192, 64))
        assert (kept.naive, kept.flash) == (2_147_483_648, 16_777_216 + 524_288)


class TestBytes:
    def test_the_sizes_everyone_quotes(self):
        half, single = (sizes.sizes(AttentionShape(1, 1, 8192, 8192, 64, dtype=t)) for t in ("fp16", "fp32"))
        assert half.one_head == 134_217_728 == 128 * 2**20
        assert single.one_head == 268_435_456 == 256 * 2**20
        assert sizes.sizes(AttentionShape(32, 32, 8192, 8192, 64, dtype="fp32")).matrix == 274_877_906_944
        assert half.ratio == 8192 / (4 * 64)
        assert half.lse == 8192 * 4

    def test_doubling_the_rows_halves_the_bytes_of_k_and_v(self):
        """16·⌈4096/64⌉·2·4096·64·2 B + Q, and HBM at Q + K + V + O."""
        shape = AttentionShape(1, 16, 4096, 4096, 64)
        q = 16 * 4096 * 64 * 2
        assert sram.moved(shape, 64, 128) == 64 * 2 * q + q
        assert sram.moved(shape, 128, 128) == 32 * 2 * q + q
        assert sram.moved(shape, 64, 32) == sram.moved(shape, 64, 128)
        assert sram.floor(shape) == 4 * q
        assert sram.unfused(shape) == 4 * q + 4 * 16 * 4096 * 4096 * 2

    def test_tiles(self):
        assert sram.tile_bytes(64, 128, 64) == (64 + 4 * 128) * 64 * 2
        assert sram.largest_rows(100 << 10, 64, 64) == 512  # (512 + 256)·128 B = 96 KiB
        assert sram.largest_rows((96 << 10) - 1, 64, 64) == 256
        assert sram.largest_rows(1024, 64, 64) == 0


class TestPrograms:
    @pytest.mark.parametrize("order", programs.ORDERS)
    @pytest.mark.parametrize("batch, heads, blocks", [(1, 1, 1), (2, 3, 4), (3, 2, 5)])
    def test_every_block_is_computed_once(self, order, batch, heads, blocks):
        rows = programs.ORDERS[order](batch, heads, blocks)
        assert [row["program"] for row in rows] == list(range(len(rows)))
        assert {(r["batch"], r["head"], r["block"]) for r in rows} == {
            (b, h, i) for b in range(batch) for h in range(heads) for i in range(blocks)}
        assert len(rows) == batch * heads * blocks

    def test_textbook(self):
        assert programs.textbook(2, 3, 4)[17] == {"program": 17, "batch": 1, "head": 1, "block": 1}

    def test_ours_starts_with_the_last_block_of_each_head_of_a_group(self):
        first = programs.ours(1, 6, 3)[:5]
        assert [(r["head"], r["block"]) for r in first] == [(0, 2), (1, 2), (2, 2), (3, 2), (0, 1)]
        assert all(a["block"] >= b["block"] for a, b in pairwise(programs.ours(1, 4, 8)))


class TestReading:
    @pytest.mark.parametrize("point", reading.POINTS)
    def test_every_point_has_its_lines(self, point):
        for (path, text), place in zip(reading.POINTS[point], reading.places(point)):
            lines = (reading.ROOT / path).read_text(encoding="utf-8").splitlines()
            assert text in lines[place.line - 1]
            assert place.excerpt.splitlines()[place.line - place.first] == lines[place.line - 1]
            assert sum(text in line for line in lines) == 1, f"{path}: “{text}” is no longer unique"

    @pytest.mark.parametrize("point", reading.POINTS)
    def test_an_address_opens_the_function_around_its_line(self, point):
        for place in reading.places(point):
            whole = reading.function(place.address)
            lines = (reading.ROOT / place.path).read_text(encoding="utf-8").splitlines()
            assert whole.first <= place.line < whole.first + len(whole.excerpt.splitlines())
            assert whole.excerpt.splitlines()[place.line - whole.first] == lines[place.line - 1]
            assert lines[whole.first - 1][:1].strip()  # starts at the margin: a whole function or statement

    @pytest.mark.parametrize("address", ["", "kernels/flash2.py", "kernels/flash2.py:0", "kernels/flash2.py:999999",
                                         "/etc/passwd:1", "kernels/../pyproject.toml:1", "kernels/api.py:1"])
    def test_other_addresses_open_nothing(self, address):
        assert reading.function(address) is None

    def test_there_are_ten(self):
        assert len(reading.POINTS) == 10

    def test_a_line_that_is_gone_is_said(self):
        from profiler.errors import BadInput

        with pytest.raises(BadInput, match="found none"):
            reading.find("kernels/flash2.py", "no such line")
        with pytest.raises(BadInput, match="found none"):
            reading.find("kernels/gone.py", "x")


class TestBeliefs:
    def test_claims_exist(self):
        from profiler import evidence

        known = {claim.id for claim in evidence.evaluate(synthetic.bundle())}
        assert {one for ids in beliefs.CLAIMS.values() for one in ids} <= known
        assert len(beliefs.CLAIMS) == 5

    def test_the_page_says_each_claim_as_evidence_does(self):
        from profiler import evidence
        from profiler.learn import words

        statements = {claim.id: claim.statement for claim in evidence.evaluate(synthetic.bundle())}
        said = words.read("en", "beliefs")
        for name in [one for ids in beliefs.CLAIMS.values() for one in ids]:
            assert said(f"says_{name}") == statements[name]

    def test_growth_from_made_up_rows(self):
        """FLOPs that quadruple with N refute linear work; FLOPs that double agree with it; one length says nothing."""
        from profiler import table

        def bundle(power, lengths=(1024, 2048, 4096)):
            rows = [{"implementation": "flash2", "mask": "full", "direction": "forward", "batch": 1, "heads": 1,
                     "kv_heads": 1, "nq": n, "nk": n, "head_dim": 64, "dtype": "bf16", "tensor_flops": n**power,
                     "launch": i} for i, n in enumerate(lengths)]
            base = synthetic.bundle()
            return replace(base, launches=table.make("launches", rows), timings=base.timings[:0])

        assert beliefs.work_over_n(bundle(2)).verdict == beliefs.REFUTED
        assert beliefs.work_over_n(bundle(2)).values["slope"] == pytest.approx(2)
        assert beliefs.work_over_n(bundle(1)).verdict == beliefs.CONFIRMED
        assert beliefs.work_over_n(bundle(2, (1024,))).verdict == beliefs.UNKNOWN
        assert beliefs.time_over_n(bundle(2)).verdict == beliefs.UNKNOWN
        assert beliefs.triton_against_cuda(bundle(2)).verdict == beliefs.UNKNOWN


def test_patterns():
    grids = masks.patterns()
    exact = grids["exact"]
    assert exact.sum() == masks.N * (masks.N + 1) / 2
    assert all((grid[exact == 0] == 0).all() for grid in grids.values())  # none looks ahead
    assert grids["window"][-1].sum() == 8
    assert all(grid.sum() < exact.sum() for name, grid in grids.items() if name != "exact")
