"""The sentence and the slopes of the scaling page, on times and bytes whose growth is known."""

import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import lengths
from profiler.figures.scaling import frame, scaling
from profiler.figures.scaling_words import beside_peers, first_known, gains, slopes
from profiler.spec import AttentionShape, RunConfig, parameters_text

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
N = (512, 1024, 2048, 4096)


def bundle(naive, flash) -> Bundle:
    """Timings of naive and flash2 at each length: naive(n), flash(n) ns; memory naive n², flash n bytes."""
    rows = []
    for name, took, memory in (("naive", naive, lambda n: n * n), ("flash2", flash, lambda n: n)):
        for n in N:
            config = RunConfig(name, AttentionShape(1, 16, n, n, 64))
            rows.append(config.key() | {"parameters": parameters_text({}), "status": "ok", "median_ns": float(took(n)),
                                        "peak_memory_bytes": float(memory(n))})
    return Bundle("made up", {"gpu": {"name": "G", "l2_size_bytes": 60e6}}, timings=table.make("timings", rows))


def test_the_gain_is_told_at_both_ends_with_what_fits_in_l2():
    made = bundle(lambda n: n**3, lambda n: n**2 * 256)  # 2×, 4×, 8×, 16×
    said = gains(made, SHAPE, ("naive", "flash2")).replace("\u00a0", " ")
    assert "gains least at N = 512, where it is 2.00× faster than naive, and most at N = 4,096: 16.0×." in said
    # 4 · 16 · N² · 64 FLOPs over N² · 256 ns is 16 FLOP a ns at every N
    assert "At N = 512 it reaches 16.0 GFLOP/s, at N = 4,096 16.0 GFLOP/s" in said
    assert "L2" not in said  # no counters in it


def test_what_l2_keeps_from_hbm_is_said_where_it_was_counted():
    made = bundle(lambda n: n**3, lambda n: n**2 * 256)
    config = RunConfig("naive", AttentionShape(1, 16, 512, 512, 64))
    row = config.key("scores") | {"launch": 0, "parameters": "{}", "dram_read_bytes": 1e7, "dram_write_bytes": 2e7}
    counted = Bundle("counted", made.profile, table.make("launches", [row]), timings=made.timings)
    said = gains(counted, SHAPE, ("naive", "flash2")).replace("\u00a0", " ")
    # six passes of 16 · 512² · 2 B = 8.39 MB, and Q, K, V, O of 1.05 MB each
    assert "naive moves 30.0 MB through HBM where its passes make 54.5 MB: S takes 8.39 MB" in said
    small = Bundle("small L2", {"gpu": {"l2_size_bytes": 8e6}}, counted.launches, timings=made.timings)
    assert "through HBM" not in gains(small, SHAPE, ("naive", "flash2"))


def test_a_short_length_at_which_it_is_slower_is_said():
    said = gains(bundle(lambda n: n**3, lambda n: n**2 * 1024), SHAPE, ("naive", "flash2"))
    assert "takes 2.00× the time of naive at N = 512" in said


@pytest.mark.parametrize("names", [("naive",), ("flash2",), ("naive", "fa4")], ids="-".join)
def test_nothing_is_said_without_both(names):
    assert gains(bundle(lambda n: n, lambda n: n), SHAPE, names) == ""


def test_slopes_are_the_exponents():
    found = slopes(bundle(lambda n: n**3, lambda n: n**2), SHAPE, ("naive", "flash2")).set_index("implementation")
    assert found.loc["naive", "time"] == "N^3.00 ± 0.01"
    assert found.loc["FlashAttention-2 (Triton)", "peak memory"] == "N^1.00 ± 0.01"
    assert list(found["fitted over N"]) == ["512 to 4,096"] * 2
    assert found["HBM bytes"].isna().all()  # no counters in it


def test_with_one_query_the_curve_runs_over_the_keys():
    """Decode: 4 · 32 · Nk · 128 FLOPs, all keys visible whatever the causal mask says."""
    rows = []
    for n in (4096, 8192, 16384):
        config = RunConfig("decode", AttentionShape(1, 32, 1, n, 128, mask="causal"))
        rows.append(config.key() | {"parameters": "{}", "status": "ok", "median_ns": float(n)})
    made = Bundle("decode", {}, timings=table.make("timings", rows))
    shape = AttentionShape(1, 32, 1, 8192, 128, mask="causal")
    data = frame(made, shape, "tflops", ("decode",))
    assert list(data["n"]) == [4096, 8192, 16384]
    assert list(data["value"]) == pytest.approx([4 * 32 * 128 * 1e9] * 3)
    assert "keys Nk, for one query a sequence" in scaling(made, shape, "time", ("decode",)).layout.xaxis.title.text


def test_where_the_tokens_are_fixed_every_length_is_drawn_beside_the_fastest_peer_of_it():
    took = {"hopper": (10.0, 20.0, 40.0), "fa3": (20.0, 18.0, 60.0), "sdpa_cudnn": (15.0, 30.0, 50.0)}
    rows = []
    for name, each in took.items():
        for n, ns in zip((1024, 2048, 4096), each):
            config = RunConfig(name, AttentionShape(8192 // n, 16, n, n, 64))
            rows.append(config.key() | {"parameters": "{}", "status": "ok", "median_ns": ns, "peak_memory_bytes": 8e6})
    made = Bundle("made up", {"gpu": {"name": "G"}}, timings=table.make("timings", rows))
    shape, names = AttentionShape(4, 16, 2048, 2048, 64), tuple(took)
    assert lengths.tokens(made, shape) == 8192
    assert sorted(frame(made, shape, "time", names).query("kind == 'measured'")["n"].unique()) == [1024, 2048, 4096]
    said = beside_peers(made, shape, names).replace("\u00a0", " ")
    assert "1.50× as fast as SDPA cuDNN at N = 1,024, 0.900× as fast as FlashAttention-3 at N = 2,048 and 1.25×" in said
    drawn = scaling(made, shape, "tflops", names)
    words = {note.name: note.text for note in drawn.layout.annotations}
    assert "1.25× as fast as SDPA" in words["title"].replace("<br>", " ").replace("\u00a0", " ")
    assert "atch of 8,192 tokens" in words["subtitle"].replace("\u00a0", " ")
    assert "8,192 tokens a batch" in slopes(made, shape, names).iloc[0]["fitted over N"]
    # one batch at two lengths: the batch is what is kept
    more = RunConfig("hopper", AttentionShape(4, 16, 512, 512, 64)).key() | {"parameters": "{}", "median_ns": 5.0}
    both = Bundle("both", made.profile, timings=table.make("timings", [*rows, more]))
    assert lengths.tokens(both, shape) is None


def test_what_was_measured_is_offered_first():
    config = RunConfig("flash2", SHAPE)
    rows = [config.key() | {"parameters": "{}", "status": "ok", "peak_memory_bytes": 8e6}]
    made = Bundle("made up", {}, timings=table.make("timings", rows))
    assert first_known(made, SHAPE, ("tflops", "time", "peak_memory"), ("flash2",)) == "peak_memory"
    assert first_known(made, SHAPE, ("tflops", "time"), ("flash2",)) == "tflops", "none: the figure says why"
