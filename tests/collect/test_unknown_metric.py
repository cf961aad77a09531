"""An ncu that lacks one of the metrics asked for: left out, said, and the run goes on."""

from profiler.collect import failures
from profiler.collect import run as runs

from . import test_run
from .test_run import CONFIGS, SUCCESS

reports = test_run.reports

# As ncu 2025.3.1 said it on an H200, pattern and all.
LACKS = """
wanted = arguments[arguments.index("--metrics") + 1].split(",")
if "gpu__time_duration.sum" in wanted:
    say("==ERROR== Failed to find metric regex:^gpu__time_duration\\\\.(sum|min|max|avg|pct|ratio|max_rate)$",
        "==ERROR== The application returned an error code (9).")
    sys.exit(9)
"""


def test_a_metric_that_this_ncu_lacks_is_left_out_and_said(stub, tmp_path, reports):
    stub.write(LACKS + SUCCESS)
    made = runs.run(CONFIGS, tmp_path / "bundle", device="cpu")
    assert "This ncu does not have gpu__time_duration.sum: what needs it is null." in made.notes
    assert "gpu__time_duration.sum" not in made.profile["commands"]["ncu"]
    assert "sm__warps_active.avg.pct_of_peak_sustained_active" in made.profile["commands"]["ncu"]


def test_only_metrics_that_were_asked_for_are_dropped():
    text = "==ERROR== Failed to find metric regex:^a__b\\.(sum|min)$\n==ERROR== Failed to find metric c__d.avg"
    asked = ["a__b", "a__b.sum", "c__d.avg", "e__f.sum"]
    assert failures.unknown_metrics(text, asked) == ["a__b", "a__b.sum", "c__d.avg"]
    assert failures.unknown_metrics("all is well", ["a__b"]) == []
