"""A source of windows, grouped heads and packed sequences: their rates count the pairs that are seen, and nothing of
them is taken for a plain call."""

from dataclasses import replace

import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.collect import bench, suites
from profiler.figures import bars, canvas, labels, lengths, scaling, select, style
from profiler.spec import AttentionShape, RunConfig, parameters_text
from tests import synthetic

RATES = {"hopper": 700e12, "flash_varlen": 680e12, "sdpa_cudnn": 600e12, "fa3": 690e12, "fa4": 650e12,
         "fa3_varlen": 670e12, "fa4_varlen": 610e12}


def row(config):
    ns = bench.flops(config) / RATES[config.implementation] * 1e9
    tiles = {"block_m": 128, "block_n": 176} if config.implementation in ("hopper", "flash_varlen") else {}
    return {**config.key(), "parameters": parameters_text({**tiles, **config.parameters}), "status": "ok",
            "median_ns": ns, "p20_ns": 0.99 * ns, "p80_ns": 1.01 * ns, "peak_memory_bytes": config.shape.q_bytes}


SHAPES = Bundle("shapes", {"schema_version": 1, "kind": "profile", "created": "2026-01-01T00:00:00+00:00",
                           "counters": False, "gpu": synthetic.GPU, "suite": "shapes"},
                timings=table.make("timings", [row(c) for c in suites.shapes() if c.shape.dtype == "bf16"]))


def test_every_rate_counts_what_is_seen():
    configs = [select.config(one) for one in table.records(SHAPES.timings)]
    for shape in dict.fromkeys(config.shape for config in configs):
        names = {config.implementation for config in configs if config.shape == shape}
        data = scaling.frame(SHAPES, shape, "tflops", sorted(names)).dropna(subset=["value"])
        assert set(data["implementation"]) == names
        for one in data.to_dict("records"):
            assert one["value"] == pytest.approx(RATES[one["implementation"]], rel=1e-3), (shape, one)


def test_flops_of_a_window_and_of_packed_sequences_by_hand():
    """A window of one key before, 4 queries: 1 + 2 + 2 + 2 pairs; sequences of 3 and 1, causal: 6 + 1."""
    assert scaling.convention_flops(AttentionShape(2, 3, 4, 4, 8, mask="window:1,0")) == 4 * 2 * 3 * 8 * 7
    packed = AttentionShape(2, 3, 3, 3, 8, mask="causal")
    assert scaling.convention_flops(packed, "backward", ((3, 3), (1, 1))) == 10 * 3 * 8 * 7
    assert scaling.convention_flops(packed, sequences=((3, 3), (3, 3))) == 4 * 2 * 3 * 8 * 9 / 2


def test_packed_sequences_are_said_to_be():
    said = lengths.words(SHAPES, AttentionShape(5, 16, 8192, 8192, 128)).replace("\u202f", " ")
    assert said.endswith("packed sequences of 117 to 8,192 tokens")
    assert "packed" not in lengths.words(SHAPES, AttentionShape(4, 16, 4096, 4096, 128))
    assert all("packed" in labels.implementation(name) for name in RATES if name.endswith("_varlen"))


def test_the_figure_says_which_pairs_of_a_window_count():
    figure = scaling.scaling(SHAPES, AttentionShape(1, 16, 16384, 16384, 128, mask="window:4095,0"), "tflops",
                             ["hopper", "fa4"])
    assert any("of a window the pairs seen" in note.text for note in figure.layout.annotations)


@pytest.mark.parametrize("size", ["page", "talk"])
def test_a_label_stands_where_its_line_ends(size):
    """Packed sequences were timed at one length; a leader from there to the end of the others would look like a line
    of data."""
    names = [*RATES]
    figure = scaling.scaling(SHAPES, AttentionShape(4, 16, 4096, 4096, 128), "tflops", names, size=size)
    body = style.size_of(size).body
    notes = [note for note in figure.layout.annotations if note.name in names]
    said = " ".join(note.text for note in notes)
    assert all(labels.implementation(name) in said for name in names), "every line has its label"
    for note in notes:
        across, up = (note.ax or 0, note.ay or 0) if note.showarrow else (note.xshift or 0, note.yshift or 0)
        assert abs(across) < 8 * body and abs(up) < 12 * body, (note.name, across, up)


def test_what_stays_the_same_is_not_said_to_grow():
    rows = [row(RunConfig("hopper", AttentionShape(16384 // n, 16, n, n, 128))) for n in (1024, 4096, 16384)]
    flat = replace(SHAPES, timings=table.make("timings", [{**one, "peak_memory_bytes": 68_000_000} for one in rows]))
    figure = scaling.scaling(flat, AttentionShape(4, 16, 4096, 4096, 128), "peak_memory", ["hopper"])
    assert canvas.title(figure) == "Peak memory of FlashAttention (Hopper) does not grow with N"


def test_a_figure_of_packed_sequences_says_so_and_which_pairs_count():
    shape, names = AttentionShape(5, 16, 8192, 8192, 128), ("flash_varlen", "fa3_varlen")
    for figure in (scaling.scaling(SHAPES, shape, "tflops", names), bars.bars(SHAPES, shape, names, ("tflops",))):
        said = " ".join(" ".join(canvas.plain(note.text).split()) for note in figure.layout.annotations)
        assert "packed sequences of 117 to 8,192 tokens" in said
        assert "of packed sequences the pairs of each" in said


def test_a_further_form_of_our_kernels_keeps_their_colour():
    assert style.mark("hopper_fp8").colour == style.mark("hopper").colour
    assert style.mark("flash_varlen").colour == style.mark("flash2").colour != style.mark("fa3_varlen").colour
    assert style.mark("flashinfer").colour == style.mark("fa3_varlen").colour
    assert len({style.mark(name).symbol for name in RATES}) == len(RATES)


def test_a_reason_too_long_for_a_panel_is_given_whole_above():
    why = "refused: this build of fa4 was made without windows"
    gone = {"median_ns": None, "peak_memory_bytes": None, "status": why}
    rows = [{**one, **(gone if one["implementation"] == "fa4" else {})} for one in table.records(SHAPES.timings)]
    shape = AttentionShape(4, 16, 4096, 4096, 128)
    figure = bars.bars(replace(SHAPES, timings=table.make("timings", rows)), shape, ["hopper", "fa4"], ("time",))
    words = {note.name: " ".join(canvas.plain(note.text).split()) for note in figure.layout.annotations}
    assert f"FlashAttention-4: {why}." in words["subtitle"] and words["time"] == "refused"


def test_with_fewer_queries_than_keys_a_causal_mask_hides_less_than_half():
    """One query sees all of its keys: nothing is halved."""
    one, square = (AttentionShape(1, 1, n, 4096, 64, mask="causal") for n in (1, 4096))
    assert scaling.convention_flops(one) == 4 * 4096 * 64
    assert scaling.counted(SHAPES, one).endswith("with fewer queries than keys the pairs seen")
    assert scaling.counted(SHAPES, square).endswith("half of it when causal")
