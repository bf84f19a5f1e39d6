"""Try shapeexec with the newest jax, and tell what breaks.

    python scripts/next_jax.py                     # the newest release, in .venv-next
    python scripts/next_jax.py --pre               # and what comes before it
    python scripts/next_jax.py --tests tests/shape # another part of the tests

It ends with 0 whatever it finds: a release of jax is news, and no fault of a change. First come
the private names of `shapeexec/_compat/private.py` that are gone, which cause most failures.
"""

import argparse
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
PLACE = ROOT / ".venv-next"
PYTHON = str(PLACE / "bin" / "python")
PIP = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")

# What a new version may do to us, without what only tells of our own state: pages, sizes, versions.
TESTS = ("tests/shape", "tests/masking", "tests/execution", "tests/checking", "tests/attention")

GONE = """
from shapeexec._compat.private import VERSIONS
from tests.test_compat import NOTHING, named
newest = max(v for versions in VERSIONS.values() for v in versions)
for name, versions in VERSIONS.items():
    if newest in versions and named(name) is NOTHING:
        print(name)
"""


def install(python: str, *, with_pre: bool) -> str:
    """An environment with our needs and the newest jax; returns jax's version."""
    subprocess.run((python, "-m", "venv", str(PLACE)), check=True)
    subprocess.run((*PIP, "-e", f"{ROOT}[dev]"), check=True)
    # Past what pyproject.toml allows: that is the question.
    newest = (*PIP, "--upgrade", *(["--pre"] if with_pre else []), "jax", "jaxlib")
    subprocess.run(newest, check=True, stderr=subprocess.DEVNULL)
    return tell("-c", "import jax; print(jax.__version__)")[0]


def tell(*arguments: str) -> Sequence[str]:
    """The lines that the environment's Python prints; of a failure the last line of its error."""
    done = subprocess.run(
        (PYTHON, *arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    return lines if done.returncode == 0 else [*lines, *done.stderr.strip().splitlines()[-1:]]


def main() -> None:
    """Install, look for names, and run tests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pre", action="store_true", help="also versions before a release")
    parser.add_argument("--python", default=sys.executable, help="a newer one may get a newer jax")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="which tests to run")
    given = parser.parse_args()
    print(f"jax {install(given.python, with_pre=given.pre)}", flush=True)
    gone = tell("-c", GONE)
    print(f"{len(gone)} private names are gone", *gone, sep="\n  ", flush=True)
    quick = ("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-W", "default", *given.tests)
    lines = tell(*quick)
    failed = [line for line in lines if re.match("FAILED|ERROR", line)]
    print(f"{len(failed)} tests fail", *failed[:50], sep="\n  ")
    print(lines[-1] if lines else "pytest did not start")


if __name__ == "__main__":
    sys.exit(main())
