"""Importing the package is light; without PyTorch a kernel says what to install."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as in an environment that has the viewer's packages only
import kernels
try:
    kernels.flash_attention
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_torch_the_remedy_is_named():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "kernels.api needs torch" in done.stdout and "pip install -r requirements.txt" in done.stdout, done.stderr
