"""The model card: README.md with a YAML head that the Hub reads, our facts first, the source's own text below unchanged.

In: a Plan and results.  Out: text. No licence is invented: it is copied from the source's head or left out.
Facts: runtimes.md 4.1, architecture.md 9.4.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from humming_convert import __version__
from humming_convert.findings import counted
from humming_convert.manifest.command import command_of
from humming_convert.manifest.types import LayerResult
from humming_convert.plan.types import Plan, PlannedLayer
from humming_convert.standard.lossy import STEPS

_HEAD = re.compile(r"\A---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(?:\r?\n|\Z)", re.S)
COPIED = ("license", "license_name", "license_link", "language", "pipeline_tag", "base_model", "datasets")


def model_card(plan: Plan, results: Mapping[str, LayerResult], source_text: str | None = None) -> str:
    """The card. source_text: of the source's README.md; None: read from the checkpoint's folder if there is one."""
    text = _source_card(plan.source.folder) if source_text is None else source_text
    head, body = split_head(text)
    return f"---\n{_head(plan, head)}---\n\n{_ours(plan, results)}{_theirs(body)}"


def _source_card(folder: Path) -> str:
    path = folder / "README.md"
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""


def split_head(text: str) -> tuple[str, str]:
    """(YAML head without its fences, the rest)."""
    found = _HEAD.match(text)
    return (found[1] or "", text[found.end() :]) if found else ("", text)


def _blocks(head: str) -> dict[str, str]:
    """Top-level keys of a YAML head -> their lines as they stand, values not read: they are copied, not understood."""
    out: dict[str, list[str]] = {}
    key = None
    for line in head.splitlines():
        found = re.match(r"([A-Za-z_][\w-]*)\s*:", line)
        if found:
            key = found[1]
            out[key] = [line]
        elif key is not None and (not line.strip() or line[:1] in " \t-"):
            out[key].append(line)
        else:
            key = None
    return {k: "\n".join(lines).rstrip() for k, lines in out.items()}


def _tags(block: str) -> list[str]:
    """The entries of a `tags:` block, in either spelling."""
    inline = re.search(r"\[(.*)\]", block, re.S)
    items = inline[1].split(",") if inline else re.findall(r"^\s*-\s+(.*)$", block, re.M)
    return [t for item in items if (t := item.strip().strip("\"'")) and t != "humming"]


def _head(plan: Plan, head: str) -> str:
    theirs = _blocks(head)
    target = plan.request.target
    library = "humming" if target is not None else "vllm"
    lines = [f"library_name: {library}"]
    lines += [theirs[k] for k in COPIED if k in theirs]
    if "base_model" not in theirs and "/" in plan.source.name:
        lines += [f"base_model: {_scalar(plan.source.name)}"]
    lines += ["base_model_relation: quantized"]
    ours = ["humming", *schemes(plan), *([target.name] if target is not None else ["humming-standard"])]
    tags = list(dict.fromkeys([*ours, *_tags(theirs.get("tags", ""))]))
    return "\n".join([*lines, "tags:", *(f"- {_scalar(t)}" for t in tags)]) + "\n"


def _scalar(text: str) -> str:
    """A YAML scalar; quoted where it is not a plain word."""
    return text if re.fullmatch(r"[A-Za-z][\w.+/-]*", text) else json.dumps(text, ensure_ascii=False)


def schemes(plan: Plan) -> list[str]:
    """`w4a16`, most common first: bits of weights and of activations."""
    found: Counter[str] = Counter()
    for p in plan.layers:
        act = p.recipe.input.number.bits if p.recipe is not None else 16
        found[f"w{p.layer.form.number.bits}a{act}"] += 1
    return [name for name, _ in found.most_common()]


def _ours(plan: Plan, results: Mapping[str, LayerResult]) -> str:
    target, request = plan.request.target, plan.request
    made = f"packed for {target.name} (act `{plan.act}`{_ranks(plan)})" if target is not None else "in the Humming standard form"
    revision = f", revision `{plan.source.revision}`" if plan.source.revision else ""
    rows = "\n".join(
        f"| {form} | {count} |" for form, count in Counter({p.layer.name: _form(p) for p in plan.layers}.values()).most_common()
    )
    steps: Counter[str] = Counter(m.step for r in results.values() for m in r.lossy)
    lossy = "\n".join(f"- `{step}`: {STEPS[step].text} ({counted(count, 'tensor')})" for step, count in sorted(steps.items()))
    return f"""# {plan.source.name}, {made}

Made from `{plan.source.name}`{revision} ({", ".join(plan.families)}) by humming-convert {__version__} for humming-kernels \
{request.humming_version}. Every layer was read back from the written files and compared with the source's codes and scales: \
{_proofs(results)}.
`humming_manifest.json` holds the proof, the configuration and a digest of every tensor.

    {command_of(plan)}

| weights | layers |
| --- | --- |
{rows}

Lossy steps: {"none." if not lossy else chr(10) + chr(10) + lossy}

Check the files: `humming-convert verify FOLDER`. Fingerprint: `{plan.fingerprint}`.
"""


def _proofs(results: Mapping[str, LayerResult]) -> str:
    """What the round trip found, in numbers of layers."""
    of = len(results)
    codes = sum(r.proof.codes == "equal" for r in results.values())
    scales = sum(r.proof.scales == "equal" for r in results.values())
    changed = f", changed by the lossy steps below in {of - codes}" if codes < of else ""
    cast = f", within the casts below in {of - scales}" if scales < of else ""
    return f"codes equal in {codes} of {of}{changed}; scales equal in {scales} of {of}{cast}"


def _ranks(plan: Plan) -> str:
    """`, tp 2`; nothing for one rank."""
    request = plan.request
    return "".join(f", {name} {size}" for name, size in (("tp", request.tp), ("ep", request.ep)) if size > 1)


def _form(planned: PlannedLayer) -> str:
    form = planned.layer.form
    group = f", groups of {form.scale.k}" if form.scale.kind == "group" else f", {form.scale.kind} scales"
    zero = " with zero points" if form.zero_point != "none" else ""
    act = f", {planned.recipe.input.number.name} activations" if planned.recipe is not None else ""
    return f"{form.number.name}{zero}{group}{act}"


def _theirs(body: str) -> str:
    return f"\n---\n\n{body.lstrip()}" if body.strip() else ""
