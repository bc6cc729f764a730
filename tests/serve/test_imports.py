"""What importing costs: neither torch nor vLLM, and of vLLM only names that the plugin looks for first."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import humming_convert
from humming_convert.serve.plugin import METHOD, tested

ROOM = Path(humming_convert.__file__).parent / "serve"
ROOT = Path(humming_convert.__file__).parent.parent


def test_what_decides_imports_neither_torch_nor_vllm_nor_numba() -> None:
    modules = (
        ["humming_convert"] + [f"humming_convert.serve.{p.stem}" for p in sorted(ROOM.glob("*.py"))] + ["humming_convert.serve.plugin"]
    )
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}];"
        "print(sorted({'torch', 'vllm', 'cupy', 'humming', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_of_vllm_that_the_plugin_uses_is_looked_for_before() -> None:
    used = set()
    for path in (ROOM / "plugin").glob("*.py"):
        if path.name == "refusing.py":  # for a vLLM that has not all of them
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "vllm":
                used |= {f"{node.module}:{alias.name}" for alias in node.names}
    used.discard("vllm.utils:humming")  # a facade, whose own names are in the table
    assert used <= set(tested.INTERFACE) | set(tested.HUMMING_INTERFACE), used - set(tested.INTERFACE) - set(tested.HUMMING_INTERFACE)


def test_the_entry_point_is_the_function_that_registers() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."vllm.general_plugins"]\n{METHOD} = "humming_convert.serve.plugin:register"' in text
    assert '"vllm>=0.33,<0.34"' in text and tested.TESTED == ("0.33",)


def test_only_tested_minors_of_vllm_are_taken() -> None:
    assert tested.version_finding("0.33.0") is None and tested.version_finding("0.33.7.post1") is None
    for version in ("0.32.9", "0.34.0", "0.3", "1.33.0"):
        finding = tested.version_finding(version)
        assert finding is not None and finding.code == "vllm-version" and version in finding.message


def test_names_that_are_missing_are_named() -> None:
    assert tested.missing(("json:loads", "json:no_such", "no.such.module:x")) == ["json:no_such", "no.such.module:x"]
