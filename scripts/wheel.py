"""Build wheel and sdist, and run a program where the wheel alone is installed.

    python scripts/wheel.py            # in a temporary directory, which is removed
    python scripts/wheel.py --out dist # and keep both files there

The sdist is built first and the wheel from it, so a file that one of them lacks is noticed. The
program runs in a fresh environment, in an empty directory: no file of the tree can help it.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
SMOKE = pathlib.Path(__file__).with_name("smoke.py")


def build(out: pathlib.Path) -> pathlib.Path:
    """Both distributions in a directory; returns the wheel."""
    run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    names = sorted(path.name for path in out.iterdir())
    wanted = [f"shapeexec-{version}-py3-none-any.whl", f"shapeexec-{version}.tar.gz"]
    if names != wanted:
        sys.exit(f"built {names}, not {wanted}")
    return out / names[0]


def missing_in(wheel: pathlib.Path) -> list[str]:
    """What is wrong with the files of a wheel: those that lack, and those that do not belong."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (ROOT / "shapeexec").rglob("*")
    own = {str(path.relative_to(ROOT)) for path in files if path.suffix in {".py", ".typed"}}
    own |= {"shapeexec/py.typed"}
    lacks = [f"{name} is missing" for name in sorted(own - held)]
    return lacks + [f"{name} does not belong there" for name in sorted(held - own)]


def run(*command: str, cwd: pathlib.Path | None = None) -> None:
    """Run a command whose output is shown only if it fails, which ends this program."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> None:
    """Build, look, install and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, help="where both files are kept")
    out: pathlib.Path | None = parser.parse_args().out
    with tempfile.TemporaryDirectory() as made:
        place = pathlib.Path(made)
        wheel = build(place / "dist")
        wrong = missing_in(wheel)
        if wrong:
            sys.exit("\n".join((f"{wheel.name}:", *wrong)))
        venv.create(place / "env", with_pip=True)
        python = str(place / "env" / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
        empty = place / "empty"
        empty.mkdir()
        run(python, "-I", str(SMOKE), cwd=empty)
        if out is not None:
            out.mkdir(exist_ok=True)
            for path in wheel.parent.iterdir():
                shutil.copy(path, out)
        print(f"{wheel.name}: built from its sdist, installed alone, and ran")


if __name__ == "__main__":
    main()
