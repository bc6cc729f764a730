"""Every operation that an expression names is defined where the expression is made, or in what that module imports."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(p for p in (ROOT / "humming_convert").rglob("*.py") if re.search(r"\bapply\(\s*\"", p.read_text()))


def used(path: Path) -> set[str]:
    calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
    named = (c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "apply" and c.args)
    return {c.args[0].value for c in named if isinstance(c.args[0], ast.Constant) and isinstance(c.args[0].value, str)}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_operations_are_registered_by_importing_the_module_that_uses_them(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    code = (
        f"import {name}\nfrom humming_convert.standard.expr import OPERATIONS\nprint(sorted(set({sorted(used(path))!r}) - set(OPERATIONS)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"
    importlib.import_module(name)
