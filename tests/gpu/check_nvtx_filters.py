"""Which NVTX include expressions select launches in nested push/pop ranges: run on a GPU machine, prints a table.

    python tests/gpu/check_nvtx_filters.py [ncu]

The program opens outer-1/inner and outer-2/inner in the domain flashscope and launches one kernel in each inner range,
one in outer-1 alone and one outside. The count of profiled launches tells what an expression means to this ncu.
"""

import re
import subprocess
import sys
import tempfile

PROGRAM = """
import nvtx, torch
x = torch.zeros(1024, device="cuda")
x += 1
for outer in ("outer-1", "outer-2"):
    with nvtx.annotate(outer, domain="flashscope"):
        if outer == "outer-1":
            x += 1
        with nvtx.annotate("inner", domain="flashscope"):
            x += 1
torch.cuda.synchronize()
"""
# expression(s) -> launches if it means: every range of the domain (3), any stage (2), both named (3)
EXPRESSIONS = {
    ("regex:flashscope@.*/",): 3,
    ("regex:flashscope@outer-.*/",): 3,
    ("flashscope@inner/",): 2,
    ("flashscope@inner]",): 2,
    ("regex:flashscope@outer-.*/inner]",): 2,
    ("flashscope@outer-1/", "flashscope@outer-2/"): 3,
}


def profiled(ncu: str, expressions: tuple[str, ...]) -> tuple[int, str]:
    include = [part for expression in expressions for part in ("--nvtx-include", expression)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                ncu,
                "--nvtx",
                *include,
                "--metrics",
                "gpu__time_duration.sum",
                "--clock-control",
                "none",
                "--print-summary",
                "none",
                sys.executable,
                "-c",
                PROGRAM,
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    text = done.stdout + done.stderr
    warnings = [line for line in text.splitlines() if line.startswith(("==WARNING==", "==ERROR=="))]
    return len(re.findall(r'==PROF== Profiling "', text)), " ".join(warnings)


if __name__ == "__main__":
    for expressions, expected in EXPRESSIONS.items():
        count, said = profiled(sys.argv[1] if len(sys.argv) > 1 else "ncu", expressions)
        print(f"{count} launches (expected {expected}) with {' + '.join(expressions)} {said}")
