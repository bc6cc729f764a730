"""Writes the pages that are tables of the code: formats, format-rules, lossy-steps, targets, findings, refusals, the list of decisions.

    python scripts/generate_docs.py [--check]

In: the tables.  Out: docs/*.md; with --check nothing is written, and pages that are not current are named (exit code 1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import humming_convert  # noqa: E402
from humming_convert.ci import codes  # noqa: E402
from humming_convert.findings import Rule  # noqa: E402

HUB = "hub."


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    return "\n".join([line(head), "|" + " --- |" * len(head), *(line(r) for r in rows)]) + "\n"


def page(title: str, *parts: str) -> str:
    note = "<!-- scripts/generate_docs.py writes this page from the tables in the code; do not edit it -->"
    return "\n".join([f"# {title}\n", note + "\n", *parts])


def rules() -> Iterator[tuple[Rule, str]]:
    """Every Rule of a RULES tuple, with the module that checks it."""
    for found in codes.rules():
        yield found.rule, found.module


def format_rules() -> str:
    from humming_convert.formats.damages import DAMAGES, DECISIONS, Row

    ordered = sorted(rules(), key=lambda r: (r[0].number, r[0].code, r[1]))

    def answered(row: Row) -> tuple[str, ...]:
        mine = [r for r, _ in ordered if r.code in row.codes]
        tests = [f"`test_rule_{code.replace('-', '_')}`" for code in row.codes] + [f"`{t}`" for t in row.tests]
        return row.what, row.answer, ", ".join(f"R{r.number} `{r.code}`" for r in mine), ", ".join(tests)

    def listed(these: Iterable[tuple[Rule, str]]) -> str:
        rows = ((f"R{r.number}", f"`{r.code}`", r.text, r.severity, f"`{m}`") for r, m in these)
        return table(("rule", "code", "what must hold", "if not", "checked in"), rows)

    head = ("answer", "rules", "tests")
    return page(
        "Rules",
        "What a checkpoint must keep. Each rule has a number, and one code that its findings carry; the code is stable. An `error` refuses the checkpoint, a `warning`\n"
        "converts it and says so.\n",
        listed(x for x in ordered if not x[1].startswith(HUB)),
        "## The Hub\n",
        "What must hold to fetch a model from the Hub and to publish a folder there ([the Hub](hub.md)).\n",
        listed(x for x in ordered if x[1].startswith(HUB)),
        "## Damages and contradictions\n",
        "What is seen in real files, what happens then, and the tests that hold it so.\n",
        table(("", "what", *head), ((row.key, *answered(row)) for row in DAMAGES)),
        "## Decisions\n",
        "Where sources of the truth contradict each other, or a format leaves something open.\n",
        table(("", "what", *head), ((f"D{row.key}", *answered(row)) for row in DECISIONS)),
    )


def lossy_steps() -> str:
    from humming_convert.standard.lossy import STEPS

    def permitted(step: Any) -> str:
        return "free: the GPU library does the same" if step.free else f"`{step.option or '--allow-lossy'}`"

    return page(
        "Lossy steps",
        "The only ways in which a number may change. Each that happened is in the manifest, with how many values changed and by how much at most.\n",
        table(
            ("step", "what it does", "touches the codes", "permitted by"),
            ((f"`{s.name}`", s.text, "yes" if s.codes else "no", permitted(s)) for s in STEPS.values()),
        ),
        "`--allow-lossy` permits all of them, `--strict` none.\n",
    )


def formats() -> str:
    from humming_convert.formats.catalogue import catalogue
    from humming_convert.formats.registry import KINDS, METHODS, READERS

    sources = table(("format", "variant", "status", "note"), ((r.format, r.variant, r.status, r.note) for r in catalogue()))
    kinds = table(
        ("kind of module", "read by"),
        ((f"`{kind}`", f"`formats/{READERS[kind].module}.py: {READERS[kind].function}`") for kind, _ in KINDS),
    )
    methods = table(
        ("quant_method", "config checked by"),
        ((f"`{m}`" if m else "(none)", f"`formats/{r.module}.py: {r.function}`") for m, r in METHODS.items()),
    )
    return page(
        "Formats",
        "Sources that are read, and those that are refused by name. `unverified`: read, but no real file was at hand; such a conversion carries the warning `unverified-variant`.\n",
        sources,
        "## How a module finds its reader\n",
        "The tensors of a module decide its kind; the first row that fits is taken. The config is compared with what the tensors say.\n",
        kinds,
        methods,
    )


def targets() -> str:
    from humming_convert.targets.activations import MICROSCALED, QUANTIZED, SIXTEEN
    from humming_convert.targets.environment import Environment
    from humming_convert.targets.refusals import ACCIDENTS, ADVICE
    from humming_convert.targets.report import KINDS, legal_of
    from humming_convert.targets.table import TARGETS

    short = (*SIXTEEN, *QUANTIZED, *MICROSCALED)
    cards = table(
        ("target", "SM", "cards", "tensor cores", "bytes seen", "kernels ahead of time"),
        ((f"`{t.name}`", t.sm, ", ".join(t.names) or "-", t.family, t.seen, "yes" if t.nvrtc else "no") for t in TARGETS),
    )

    matrix = table(
        ("weights", *(f"`{t.name}`" for t in TARGETS)),
        ((words, *(" ".join(legal_of(f, t, Environment(), short)) or "none" for t in TARGETS)) for _, words, f in KINDS),
    )
    refused = table(
        ("code", "what to do", "accident of the library"),
        ((f"`{code.replace('_', '-')}`", advice, ACCIDENTS.get(code, "-")) for code, advice in ADVICE.items()),
    )
    return page(
        "Targets",
        "One row a GPU. `run`: packed layers ran on such a card; `computed`: the bytes follow from the rules and from recorded results of the library.\n",
        cards,
        "## Activations that are legal\n",
        "With dynamic scales, as `--act` names them; fp16 where the target has no bfloat16. `humming-convert targets --check WEIGHT ACT SM` explains one combination rule by rule.\n",
        matrix,
        "## Refusals\n",
        "What cannot be packed although each part is known. An accident comes from how the library is written; all others are limits of the kernels or of the GPU.\n",
        refused,
    )


def refusals() -> str:
    from humming_convert.serve.refusals import REFUSALS

    who = {
        "folder": ("The folder", "By the plugin, by `hc.load` and by `doctor OUT`."),
        "machine": ("The machine", 'By the plugin, by `hc.load(backend="humming")` and by `doctor OUT`.'),
        "vllm": ("How vLLM is started", "By the plugin."),
        "layer": ("A layer", "By the plugin, before any kernel runs; `static-experts` and `self-check` also by `hc.load`."),
    }

    def rows(kind: str) -> str:
        return table(("code", "when", "what to do"), ((f"`{r.code}`", r.when, r.advice) for r in REFUSALS if r.who == kind))

    return page(
        "Refusals when a packed folder is loaded",
        "Words in braces are facts of the case.\n",
        *(f"## {head}\n\n{text}\n\n{rows(kind)}" for kind, (head, text) in who.items()),
    )


def findings() -> str:
    sections = {
        "rule": ("What a checkpoint must keep", "An error refuses the checkpoint. The same rules with their numbers, modules and tests: [rules](format-rules.md)."),
        "target": ("What the target's kernels do not take", "Each part of the layer is known; the combination has no kernel ([targets](targets.md))."),
        "request": ("What was asked for", "Options, and what a plan decides."),
        "check": ("What `verify`, `recheck` and the proof find", "Exit code 4."),
        "machine": ("The machine and the network", "Exit code 5; what was done is kept."),
        "load": ("When a packed folder is loaded", "By the vLLM plugin, `hc.load` and `doctor OUT`: [refusals](refusals.md). Words in braces are facts of the case."),
    }  # fmt: skip

    seen: set[str] = set()

    def anchored(code: str) -> str:
        """The first row of a code has an anchor of its name."""
        anchor = "" if code in seen else f'<a id="{code}"></a>'
        seen.add(code)
        return f"{anchor}`{code}`"

    def rows(giver: str) -> str:
        mine = [c for c in codes.all_codes() if c.given_by == giver]
        head = ("code", "kind", "what must hold" if giver == "rule" else "given when", "way out")
        return table(head, ((anchored(c.code), c.severity, c.when, c.way_out) for c in mine))

    return page(
        "Findings",
        "Every code that a finding can have ([what a finding is](output.md#findings)). A finding names layer, tensor and file, and its own advice knows the case: it goes\n"
        "before the general way out here. `error` refuses or fails, `warning` goes on and says so, `note` tells what was decided; `--strict` makes errors of warnings.\n"
        "A code may stand in several tables: who gives it decides what it means.\n",
        *(f"## {head}\n\n{text}\n\n{rows(giver)}" for giver, (head, text) in sections.items()),
    )


def decisions() -> str:
    pages = sorted(p for p in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    titles = ((p.name, p.read_text().partition("\n")[0].removeprefix("# ").partition(" ")) for p in pages)
    return page(
        "Decisions",
        "Why it is built so: the question, what was measured, what was chosen, what would change the choice.\n",
        table(("number", "about"), ((number, f"[{title}]({name})") for name, (number, _, title) in titles)),
    )


PAGES = {
    "format-rules.md": format_rules,
    "lossy-steps.md": lossy_steps,
    "formats.md": formats,
    "targets.md": targets,
    "findings.md": findings,
    "refusals.md": refusals,
    "decisions/README.md": decisions,
}


def main(arguments: Sequence[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    print(
        f"humming-convert {humming_convert.__version__}: {', '.join(stale) if stale else 'all pages'} {'not current' if stale and '--check' in arguments else 'written' if stale else 'current'}"
    )
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
