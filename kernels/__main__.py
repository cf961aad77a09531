"""`python -m kernels check`: every attention implementation against float64, the first failing step named."""

from __future__ import annotations

import argparse
import os
import sys


def main(arguments: list[str]) -> int:
    """0: all right; 1: something is wrong; 2: the command cannot be carried out as asked."""
    parser = argparse.ArgumentParser(prog="python -m kernels", description=__doc__)
    verb = parser.add_subparsers(dest="verb", required=True).add_parser(
        "check", description="Compare each implementation with float64, the smallest shape first.",
        epilog="example: python -m kernels check --implementation flash2 --dtype float16 --lengths 64,65 --trace")
    verb.add_argument("--implementation", action="append", help="one of the registry; all of them by default")
    verb.add_argument("--dtype", choices=("float16", "bfloat16", "float32"),
                      help="bfloat16 on a GPU, float32 in Triton's interpreter by default")
    verb.add_argument("--lengths", help="comma-separated; by default 64,65,113, on a GPU 512,2048 too")
    verb.add_argument("--head-dim", type=int, default=64, help="head size, 64 by default")
    verb.add_argument("--trace", action="store_true",
                      help="of flash1 and flash2: name the first S, m, alpha, l or accumulator that differs, and its "
                           "block; lengths 64,65,113 by default")
    asked = parser.parse_args(arguments)
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it where kernels are defined, which is below
    from kernels import check, registry
    from kernels.errors import UnsupportedCall

    try:
        lengths = [int(n) for n in asked.lengths.split(",")] if asked.lengths else None
        if lengths and min(lengths) < 11:
            raise ValueError
    except ValueError:
        print(f"--lengths: expected whole numbers of at least 11 with commas between, got {asked.lengths!r}.",
              file=sys.stderr)
        return 2
    try:
        every = [info.name for info in registry.KERNELS if info.kind == "attention" and info.name != "hopper_fp8"]
        if asked.trace:
            from kernels.trace import TRACED

            every = [name for name in every if name in TRACED]
        names = [registry.get(name).name for name in asked.implementation or every]
    except UnsupportedCall as error:
        print(error, file=sys.stderr)
        return 2
    steps = check.ladder(lengths or (check.LENGTHS if on_gpu and not asked.trace else check.SHORT))
    dtype = getattr(torch, asked.dtype or ("bfloat16" if on_gpu else "float32"))
    where = torch.cuda.get_device_name() if on_gpu else "the CPU, Triton kernels in its interpreter"
    print(f"On {where}, {dtype}, against float64:")
    status = 0
    for name in names:
        if asked.trace:
            right, said = check.trace(name, steps, dtype=dtype, device="cuda" if on_gpu else "cpu",
                                      head_dim=asked.head_dim)
            print(said, flush=True)
            status = max(status, int(not right))
            continue
        findings = list(check.check(name, steps, dtype=dtype, device="cuda" if on_gpu else "cpu",
                                    head_dim=asked.head_dim))
        print(check.summary(findings), flush=True)
        elsewhere = not asked.implementation and findings[0].why  # not asked for, and not for this GPU, dtype or size
        status = max(status, int(not elsewhere and any(finding.why or not finding.ok for finding in findings)))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
