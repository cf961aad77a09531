"""The implementations that there are, by name: known without PyTorch, so that a misspelled one costs no run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from profiler.errors import BadInput
from profiler.spec import RunConfig

OURS = ("naive", "naive_folded", "flash1", "flash2", "hopper", "hopper_fp8", "flash_varlen", "flash_sparse", "decode",
        "ablation")
PEERS = ("sdpa_flash", "sdpa_cudnn", "sdpa_math", "flex_attention", "fa2", "fa3", "fa4", "fa3_varlen", "fa4_varlen",
         "xformers", "flashinfer", "triton_tutorial")


def check(configs: Iterable[RunConfig], where: str = "") -> None:
    """Raises BadInput for a name that is none of these and no MODULE:FUNCTION; ``where`` begins its text."""
    for name in dict.fromkeys(config.implementation for config in configs):
        if ":" not in name and name not in OURS + PEERS:
            like = difflib.get_close_matches(name, OURS + PEERS, n=1)
            raise BadInput(
                f"{where}implementation: expected one of {', '.join(OURS + PEERS)}, got {name!r}.",
                remedy=f"Is {like[0]} meant?" if like else "A function of your own: --callable MODULE:FUNCTION.",
            )
