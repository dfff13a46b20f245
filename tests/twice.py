"""All tests, as `make test` runs them: `python tests/twice.py [pytest's options]`.

Tests with real sockets, browsers and Spark depend on how busy the machine is. Up to three that fail are run once more,
alone; those that pass then are named as unsteady, to be mended, and do not fail the run. There is no second time for
tests that look for what is rarely seen (lost messages, wrong rights, crashes) or depend on nothing but the code.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"
MOST = 3
SOME_FAILED = 1  # of pytest's exit codes
MAY_BE_UNSTEADY = re.compile(r"tests/(flow|web|page|cli|spark|bench)/")
FINAL = re.compile(r"kill|exactness|disk|rights|attacks|hostile|kept")


def run(*options: str) -> int:
    return subprocess.call([sys.executable, "-m", "pytest", *options], cwd=ROOT)


def main() -> int:
    code = run("--cache-clear", *sys.argv[1:])
    if code != SOME_FAILED or not FAILED.exists():
        return code
    failed = sorted(json.loads(FAILED.read_text()))
    files = [name.partition("::")[0] for name in failed]
    if len(failed) > MOST or not all(MAY_BE_UNSTEADY.match(name) and not FINAL.search(name) for name in files):
        return code
    print(f"once more, alone: {', '.join(failed)}", flush=True)
    code = run(*failed)
    if not code:
        print(f"UNSTEADY, to be mended: {', '.join(failed)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
