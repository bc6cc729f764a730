"""Builds the sdist, the wheel out of the sdist, and sees that the wheel holds and finds what it must.

In: the checkout and an environment with build and hatchling.  Out: exit code 1 and what is missing.  Installs nothing into the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = {"humming_convert/report/page.css", "humming_convert/report/page.js"}  # data of the package

FIND = """
import json
from importlib import import_module
from pathlib import Path
import humming_convert
from humming_convert import resources
here = Path(humming_convert.__file__).resolve().parent
assert here.is_relative_to(Path({site!r}).resolve()), here
for folder in (resources.cuda_templates(), resources.schemas()):
    assert folder.is_dir() and folder.is_relative_to(here) and any(folder.iterdir()), folder
for schema in resources.schemas().glob("*.json"):
    json.loads(schema.read_text())
import_module("humming_convert.cli.main").run
print("found", resources.cuda_templates().name, resources.schemas().name, "of", humming_convert.__version__)
"""


def packaged(folder: str) -> set[str]:
    """Names that a top-level folder must have in the wheel."""
    return {f"humming_convert/_{folder}/{f.relative_to(ROOT / folder).as_posix()}" for f in (ROOT / folder).rglob("*") if f.is_file()}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="humming-wheel-") as temporary:
        out, site = Path(temporary) / "dist", Path(temporary) / "site"
        subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = out.glob("*.whl")
        assert wheel.name.endswith("-py3-none-any.whl"), f"{wheel.name}: something was compiled"
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        wanted = {"humming_convert/py.typed", "humming_convert/__init__.py"} | PAGE | packaged("cuda_templates") | packaged("schemas")
        missing = sorted(wanted - names)
        strangers = sorted(n for n in names if not n.startswith(("humming_convert/", "humming_convert-")))
        if missing or strangers:
            print(f"missing in {wheel.name}: {missing}; not of the package: {strangers}")
            return 1
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel], check=True)
        run = subprocess.run(
            [sys.executable, "-c", FIND.format(site=str(site))], cwd=temporary, env={**os.environ, "PYTHONPATH": str(site)}
        )
        print(f"{wheel.name}: {len(names)} files, built out of the sdist")
        return run.returncode


if __name__ == "__main__":
    sys.exit(main())
