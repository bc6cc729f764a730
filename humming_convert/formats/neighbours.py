"""What stands beside the modules of a GPTQ or AWQ checkpoint: other kinds, other configs, leftovers, lists of names.

In: all modules by kind, the config.  Out: findings only; the tensors decide what is read (formats.md D1, D2).
Facts: formats.md 1.3, 2.10, 2.11, 11 (D1, D2), 12.5, 12.38 to 12.40, 12.60.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from humming_convert.checkpoint.config import disagreements
from humming_convert.findings import Rule
from humming_convert.formats.declared import Declared
from humming_convert.formats.patterns import listed
from humming_convert.formats.source import Module, Source

RULES = (
    Rule(223, "config-contradiction", "two quantization configs agree, or the tensors prove the first of them"),
    Rule(232, "unverified-variant", "a real sample of the variant was at hand", "warning"),
    Rule(233, "listed-plain", "a module that the config names as quantized is quantized", "warning"),
)

PACKED_ONLY = ("qzeros", "scales", "g_idx", "scaled_zeros")  # suffixes that mean nothing without a qweight (or B)


def check_neighbours(source: Source, modules: Mapping[str, Sequence[Module]], declared: Declared, own: Sequence[str]) -> None:
    """Findings about everything that is no well-formed module of the method's own kinds."""
    _other_kinds(source, modules, own)
    _orphans(source)
    quantized = [m for found in modules.values() for m in found]
    _excluded(source, declared, quantized)
    _listed_plain(source, declared, {m.name for m in quantized})
    if source.method == "auto-round":
        source.findings.warning(
            "unverified-variant",
            "auto-round exports were read from their description only; no real file was at hand",
            file=declared.file,
            advice="compare a few outputs with the source model",
        )


def _other_kinds(source: Source, modules: Mapping[str, Sequence[Module]], own: Sequence[str]) -> None:
    for kind, found in modules.items():
        if kind not in own and found:
            first = found[0]
            view = next(iter(first.tensors.values()))
            source.findings.warning(
                "method-lies",
                f"the config says {source.method or 'nothing'}, {len(found)} modules hold {kind} tensors (the first: {first.name}); the tensors are followed",
                layer=first.name,
                file=view.file.name,
                advice="use the config.json that belongs to these weights",
                count=len(found),
            )


def _orphans(source: Source) -> None:
    names: dict[str, set[str]] = {}
    for name in source.checkpoint.tensors:
        head, _, leaf = name.rpartition(".")
        names.setdefault(head, set()).add(leaf)
    for head, leaves in names.items():
        if leaves & set(PACKED_ONLY) and not leaves & {"qweight", "B", "weight", "weight_packed"}:
            leaf = next(x for x in PACKED_ONLY if x in leaves)
            source.findings.error(
                "tensor-missing",
                f"qweight is missing, {', '.join(sorted(leaves))} are there",
                layer=head,
                tensor=f"{head}.qweight",
                file=source.checkpoint.tensors[f"{head}.{leaf}"].file.name,
                advice="the download may be incomplete, or the layer must be re-exported",
            )


def _excluded(source: Source, declared: Declared, quantized: Sequence[Module]) -> None:
    """D2; one warning a key or entry."""
    found: dict[str, list[Module]] = {}
    for module in quantized:
        skip, entry = declared.of(module.name).skip, listed(module.name, declared.excluded)
        if skip is not None or entry is not None:
            by = f"`dynamic` key {skip!r}" if skip is not None else f"modules_to_not_convert entry {entry!r}"
            found.setdefault(by, []).append(module)
    for by, modules in found.items():
        source.findings.warning(
            "ignored-quantized",
            f"the {by} of {declared.file} leaves out modules whose tensors are packed (the first: {modules[0].name}); they are read as quantized",
            layer=modules[0].name,
            file=next(iter(modules[0].tensors.values())).file.name,
            advice="correct the list, or remove the entry",
            count=len(modules),
        )


def _listed_plain(source: Source, declared: Declared, quantized: set[str]) -> None:
    """Keys of `dynamic` that override a module that is plain on disk; one warning a key."""
    if not declared.overrides:
        return
    plain: dict[str, list[str]] = {}
    for name, view in source.checkpoint.tensors.items():
        head, _, leaf = name.rpartition(".")
        if leaf == "weight" and len(view.shape) == 2 and head not in quantized:
            key = declared.overrides.first_match(head)
            if key is not None and not key.skip:
                plain.setdefault(key.key, []).append(head)
    for pattern, heads in plain.items():
        source.findings.warning(
            "listed-plain",
            f"the `dynamic` key {pattern!r} of {declared.file} names modules as quantized that are plain matrices (the first: {heads[0]}); they are passed through",
            layer=heads[0],
            file=declared.file,
            advice="correct the pattern",
            count=len(heads),
        )


# ------------------------------------------------------------------ two configs
def check_sections(source: Source, declared: Declared, widths: Sequence[tuple[str, int, int]]) -> None:
    """D1: what a secondary config says against the primary; the tensors judge.

    widths: (module, bits, group size or -1) as the shapes say, of the modules that could be read.
    """
    base = [(bits, group) for name, bits, group in widths if declared.of(name) is declared]
    for found in disagreements(source.checkpoint.sections):
        proved = {
            "method": bool(widths),
            "bits": bool(base) and all(bits == found.a for bits, _ in base),
            "group_size": bool(base) and all(group == found.a for _, group in base),
        }.get(found.key, False)
        key = "quant_method" if found.key == "method" else found.key
        text = f"{key} is {found.a} in {found.place_a} and {found.b} in {found.place_b}"
        file = found.place_b.split(":")[0]
        if proved:
            source.findings.warning(
                "config-contradiction", f"{text}; the tensors prove the first", file=file, advice=f"correct or remove {file}"
            )
        else:
            source.findings.error(
                "config-contradiction",
                f"{text}; the tensors do not prove the first",
                file=file,
                advice=f"correct one of them, or remove {file}",
            )


def check_labels(source: Source, declared: Declared, asymmetric: bool) -> None:
    """Two configs that name different GPTQ formats: which of v1 and v2 holds is open if there are asymmetric layers."""
    if not asymmetric or source.options.gptq_zeros != "auto":
        return
    for section in source.checkpoint.sections[1:]:
        label = str(section.body.get("checkpoint_format") or "").lower()
        if declared.format and label and label != declared.format:
            file = section.place.split(":")[0]
            source.findings.error(
                "config-contradiction",
                f"checkpoint_format is {declared.format} in {declared.file} and {label} in {section.place}; asymmetric zero points mean different things",
                file=file,
                advice="--gptq-zeros v1 or --gptq-zeros v2 decides",
            )
