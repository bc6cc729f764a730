"""A runner for composite actions, as far as action.yml needs one: expressions, outputs, and a cache in a folder.

Written from GitHub's description of the syntax; what it does not know is an AssertionError, so that no step is passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
TERM = re.compile(r"(inputs|steps)\.([\w-]+)(?:\.outputs\.([\w-]+))?$")


def action() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return document


@dataclass
class Ran:
    """`codes`: name of each step that ran -> exit code.  `outputs`: of the action.  `said`: stderr of all steps."""

    codes: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    said: str = ""


@dataclass
class Runner:
    """`work`: the checkout that the job has.  `cache`: what `actions/cache` keeps between jobs.  `skip`: names of steps that are not run."""

    work: Path
    temporary: Path
    cache: Path
    skip: frozenset[str] = frozenset()

    def run(self, **given: str) -> Ran:
        document = action()
        inputs = {name: given.pop(name.replace("-", "_"), str(spec.get("default", ""))) for name, spec in document["inputs"].items()}
        assert not given, f"no such inputs: {sorted(given)}"
        steps: dict[str, dict[str, str]] = {}
        ran = Ran()

        def value(expression: str) -> str:
            if both := re.fullmatch(r"(.+) && (.+)", expression):
                return str(value(both[1]) == "true" and value(both[2]) == "true").lower()
            if compared := re.fullmatch(r"(\S+) (==|!=) '([^']*)'", expression):
                return str((value(compared[1]) == compared[3]) == (compared[2] == "==")).lower()
            term = TERM.match(expression)
            assert term is not None, f"an expression that is not known here: {expression}"
            return inputs[term[2]] if term[1] == "inputs" else steps.get(term[2], {}).get(term[3], "")

        def filled(text: Any) -> str:
            return EXPRESSION.sub(lambda m: value(m[1]), str(text))

        for step in document["runs"]["steps"]:
            if step["name"] in self.skip or filled(step.get("if", "true")) != "true":
                continue
            if "uses" in step:
                code, found = 0, self.cached(step["uses"], {k: filled(v) for k, v in step["with"].items()})
            else:
                code, found, said = self.shell(step["run"], {k: filled(v) for k, v in step.get("env", {}).items()})
                ran.said += said
            ran.codes[step["name"]] = code
            steps[step.get("id", step["name"])] = found
            if code:
                break
        ran.outputs = {name: filled(spec["value"]) for name, spec in document["outputs"].items()}
        return ran

    def shell(self, script: str, env: dict[str, str]) -> tuple[int, dict[str, str], str]:
        """As `shell: bash`: with -e and pipefail."""
        output = self.temporary / "output"
        output.write_text("")
        around = {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(self.temporary)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.work,
            env={**os.environ, **around, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        found = dict(line.partition("=")[::2] for line in output.read_text().splitlines())
        return done.returncode, found, done.stderr

    def cached(self, uses: str, given: dict[str, str]) -> dict[str, str]:
        """A cache has a key once; it is never written again."""
        kept, path = self.cache / given["key"], self.work / given["path"]
        what = re.fullmatch(r"actions/cache/(restore|save)@v\d+", uses)
        assert what is not None, f"a foreign action: {uses}"
        if what[1] == "restore":
            if kept.is_dir():
                shutil.copytree(kept, path)
            return {"cache-hit": "true" if kept.is_dir() else ""}
        if not kept.exists():
            shutil.copytree(path, kept)
        return {}
