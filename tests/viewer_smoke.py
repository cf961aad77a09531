"""With the viewer's packages only: every page opens on the recorded data. Run by CI in a bare environment."""

import importlib.util
import sys
from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    present = [name for name in ("torch", "triton") if importlib.util.find_spec(name)]
    if present:
        print(f"this check wants an environment without {', '.join(present)}", file=sys.stderr)
        return 2
    failures = 0
    for page in (None, *sorted(p.name for p in (ROOT / "profiler/dashboard/pages").glob("[a-z]*.py"))):
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
        if page:
            app.switch_page(f"profiler/dashboard/pages/{page}").run()
        bad = [str(e.value) for e in app.exception]
        failures += bool(bad)
        print(page or "start", "FAILED " + "; ".join(bad) if bad else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
