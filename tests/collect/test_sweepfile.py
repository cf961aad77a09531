"""A sweep file gives every combination, and what it gets wrong is said by key, expectation and finding."""

import importlib.util
import sys

import pytest

from profiler.collect import names, suites, sweepfile
from profiler.errors import BadInput

needs_toml = pytest.mark.skipif(
    sys.version_info < (3, 11) and importlib.util.find_spec("tomli") is None, reason="Python 3.10 reads TOML with tomli"
)
MINIMAL = 'implementations = ["naive"]\nn = [64]\n'


@pytest.fixture
def write(tmp_path):
    def made(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return made


@needs_toml
def test_every_combination_and_tuning_only_where_there_is_some(write):
    found = sweepfile.read(
        write("""
implementations = ["naive", "flash2"]
n = [64, 128]
head_dims = [32]
masks = ["full", "causal"]
dtypes = ["fp16"]
batch = 2
heads = 8
kv_heads = 4
block_m = [64, 128]
num_warps = [4]
tma = [true]
""")
    )
    naive = [config for config in found if config.implementation == "naive"]
    flash = [config for config in found if config.implementation == "flash2"]
    assert len(naive) == 2 * 2 and len(flash) == 2 * 2 * 2
    assert all(not config.parameters for config in naive)
    assert {config.parameters["block_m"] for config in flash} == {64, 128}
    assert all(config.parameters["num_warps"] == 4 and config.parameters["tma"] is True for config in flash)
    shape = flash[0].shape
    assert (shape.batch, shape.heads, shape.kv_heads, shape.head_dim, shape.dtype) == (2, 8, 4, 32, "fp16")


@needs_toml
def test_defaults_queries_and_several_tables(write):
    found = sweepfile.read(
        write("""
[[sweep]]
implementations = ["decode"]
n = [4096]
nq = [1, 4]
masks = ["causal"]
head_dims = [128]
[[sweep]]
implementations = ["mine:attention"]
n = [64]
directions = ["backward"]
""")
    )
    assert [(c.shape.nq, c.shape.nk) for c in found[:2]] == [(1, 4096), (4, 4096)]
    assert [(c.implementation, c.direction, c.shape.head_dim, c.shape.mask) for c in found[2:]] == [
        ("mine:attention", "backward", 64, "full"), ("mine:attention", "backward", 128, "full")]


@needs_toml
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "head_dim = [64]", "expected keys among implementations, n, nq, head_dims,"),
        ("n = [64]", "implementations: expected a list of texts, got nothing."),
        ('implementations = ["naive"]', "n: expected a list of whole numbers above 0, got nothing."),
        ('implementations = "naive"\nn = [64]', "implementations: expected a list of texts, got 'naive'."),
        ('implementations = ["naive"]\nn = [64, 0]', "n: expected a list of whole numbers above 0, got [64, 0]."),
        ('implementations = ["naive"]\nn = [64, true]', "n: expected a list of whole numbers above 0, got [64, True]."),
        ('implementations = ["naive"]\nn = []', "n: expected a list of whole numbers above 0, got []."),
        (MINIMAL + "batch = 0", "batch: expected a whole number of at least 1, got 0."),
        (MINIMAL + "batch = [1]", "batch: expected a whole number of at least 1, got [1]."),
        (MINIMAL + 'dtypes = ["float16"]', "dtypes: expected some of fp64, fp32, tf32, fp16, bf16, fp8, got 'float"),
        (MINIMAL + 'directions = ["sideways"]', "directions: expected some of forward, backward, got 'sideways'."),
        (MINIMAL + 'masks = ["diagonal"]', "mask: expected 'full', 'causal' or 'window:LEFT,RIGHT', got 'diagonal'."),
        (MINIMAL + "heads = 8\nkv_heads = 3", "kv_heads: expected a divisor of heads = 8, got 3."),
        (MINIMAL + "[[sweep]]\nn = [1]", "expected all keys inside [[sweep]], got implementations, n outside."),
        ("sweep = 3", "sweep: expected tables that begin with [[sweep]], got 3."),
        ("n = [64", "expected TOML ("),
    ],
)
def test_a_mistake_is_named(write, text, said):
    with pytest.raises(BadInput) as caught:
        sweepfile.read(write(text))
    assert caught.value.what.startswith("sweep.toml: ") and said in caught.value.what


@needs_toml
def test_the_table_with_the_mistake_is_numbered(write):
    with pytest.raises(BadInput, match=r"sweep.toml: sweep 2: n: expected"):
        sweepfile.read(write(f"[[sweep]]\n{MINIMAL}[[sweep]]\nimplementations = ['naive']\n"))


def test_a_python_without_toml_is_told_what_to_do(write, monkeypatch):
    monkeypatch.setattr(sweepfile.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(BadInput, match=r"Python 3\.11 or later, or the package tomli") as caught:
        sweepfile.read(write(MINIMAL))
    assert "pip install tomli" in caught.value.remedy


def test_the_command_line_sweeps_tuning_parameters_too():
    configs = suites.sweep(("naive", "flash2"), (64,), head_dims=(64,), masks=("full",))
    found = sweepfile.tuned(configs, sweepfile.settings(["block_m=64,128", "tma=true"]))
    assert [(c.implementation, dict(c.parameters)) for c in found] == [
        ("naive", {}), ("flash2", {"block_m": 64, "tma": True}), ("flash2", {"block_m": 128, "tma": True})]
    assert sweepfile.tuned(configs, {}) == configs


@pytest.mark.parametrize(("text", "said"), [
    ("block=64", "expected NAME=VALUE"), ("block_m", "block_m: expected a list of whole numbers above 0"),
    ("block_m=64,x", "got [64, 'x']"), ("num_warps=0", "above 0"), ("tma=1", "tma: expected a list of true or false"),
])
def test_a_mistake_in_a_tuning_parameter_is_named(text, said):
    with pytest.raises(BadInput) as caught:
        sweepfile.settings([text])
    assert caught.value.what.startswith("--set: ") and said in caught.value.what


def test_the_names_are_those_that_the_workload_knows():
    from kernels import registry
    from profiler.workload import implementations, peers

    assert set(names.OURS) == {*(info.name for info in registry.KERNELS), "ablation"}
    assert set(names.PEERS) == {*implementations.PEERS, *peers.PEERS}


@pytest.mark.parametrize("verb", [("run", "--out", "x"), ("bench",)])
def test_a_misspelled_implementation_is_refused_before_anything_starts(cli, verb):
    done = cli(*verb, "-i", "flash", "--n", "64")
    assert done.returncode == 2 and "implementation: expected one of naive, " in done.stderr
    assert "got 'flash'" in done.stderr and done.stderr.splitlines()[-1].startswith("Is flash")
    names.check(suites.sweep(("mine:attention",), (64,)))


@pytest.mark.parametrize(("arguments", "said"), [
    (("--suite", "quick", "--set", "block_m=64"), "expected no suite beside it"),
    (("-i", "naive", "--set", "block_m=64"), "nothing else is tuned"),
    (("--sweep", "a.toml", "--heads", "4"), "no suite or shape options"),
])
def test_tuning_parameters_that_would_do_nothing_are_refused(cli, arguments, said):
    done = cli("run", *arguments, "--out", "x")
    assert done.returncode == 2 and said in done.stderr and list(cli.folder.iterdir()) == []


@needs_toml
def test_command_line(cli):
    (cli.folder / "mine.toml").write_text(MINIMAL + "head_dim = [64]", encoding="utf-8")
    done = cli("run", "--sweep", "mine.toml", "--out", "x")
    assert done.returncode == 2 and done.stderr.startswith("mine.toml: expected keys among")
    both = cli("run", "--sweep", "mine.toml", "--n", "64", "--out", "x")
    assert both.returncode == 2 and "no suite or shape options" in both.stderr
    assert cli("run", "--sweep", "none.toml", "--out", "x").stderr.startswith("--sweep: none.toml cannot be read")
    assert cli("run", "--metrics", "everything", "--out", "x").returncode != 0


@needs_toml
def test_lengths_and_block_masks_go_to_the_kernels_that_take_them(tmp_path):
    path = tmp_path / "patterns.toml"
    path.write_text('implementations = ["flash1", "flash2", "flash_varlen", "flash_sparse"]\nn = [256]\nbatch = 2\n'
                    'head_dims = [64]\nq_lengths = [256, 0]\nblock_mask = [[1, 0], 2]\nblock_size = 128\n'
                    'block_m = [64]\n')
    found = {config.implementation: dict(config.parameters) for config in sweepfile.read(path)}
    assert found == {"flash1": {"block_m": 64}, "flash2": {"block_m": 64},
                     "flash_varlen": {"block_m": 64, "q_lengths": [256, 0]},
                     "flash_sparse": {"block_m": 64, "block_mask": [[1, 0], 2], "block_size": 128}}
    path.write_text('implementations = ["flash_varlen"]\nn = [256]\nq_lengths = [-1]\n')
    with pytest.raises(BadInput, match="q_lengths: expected a list of whole numbers of at least 0"):
        sweepfile.read(path)
