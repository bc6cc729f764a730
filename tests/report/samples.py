"""Pages for the tests of this folder and for scripts/check_report: of small checkpoints, of names that mean harm, of 22,000 layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from humming_convert import api
from humming_convert.demo.models import Shape, decoder
from humming_convert.demo.samples import DECODERS
from humming_convert.findings import Finding
from humming_convert.gemm.rewrite import rewrite
from humming_convert.report.inspection import report_inspection
from humming_convert.report.page import page
from humming_convert.report.planned import report_plans
from humming_convert.report.types import Cell, Layer, Map, Report, Table, Verdict, View
from humming_convert.report.verification import Checked, report_verification
from tests.samples import sample

MARKUP = "</script><script>document.title='harm'</script><img src=x onerror=\"document.title='harm'\">"
TURNED = "\u202egnp.exe"  # shown as exe.png where a text may turn its direction
HARM = f"{MARKUP}&amp;'{TURNED}"

__all__ = ["HARM", "MARKUP", "harmful", "harmful_model", "inspected", "large", "pages", "planned", "verified"]


def inspected(model: Path) -> Report:
    return report_inspection(api.inspect(model))


def planned(model: Path, *targets: str, **options: Any) -> Report:
    return report_plans(api.plans(model, targets, **options))


def verified(out: Path, source: Path | None = None, gpu: dict[tuple[int, str], dict[str, Any]] | None = None) -> Report:
    found = api.verify(out, source=source)
    found.multiplied(gpu or {})
    findings = (*found.every, *gpu_findings(gpu or {}))
    return report_verification(
        out, found.manifests, Checked(findings=findings, counts=found.checked, gpu=gpu or {}, unread=frozenset(found.unread))
    )


def gpu_findings(gpu: dict[tuple[int, str], dict[str, Any]]) -> list[Finding]:
    """As `verify --gpu` gives them."""
    return [
        Finding(severity="error", code="gpu-wrong-result", layer=name, message=wrong)
        for (_, name), r in gpu.items()
        for wrong in r["wrong"]
    ]


def on_gpu(out: Path, wrong: str | None = None) -> dict[tuple[int, str], dict[str, Any]]:
    """What `verify --gpu` would give for every layer; the layer `wrong` differs."""
    manifest = json.loads((out / "humming_manifest.json").read_text())
    about = {"device": "NVIDIA H200", "sm": 90, "kernels": "mma_any", "rows": [1, 16]}
    return {
        (0, x["name"]): about
        | {
            "ok": x["name"] != wrong,
            "weights": x["shape"]["n"] * x["shape"]["k"],
            "max_error": 3e-8,
            "wrong": ["weight [3, 5]: 1.0, not 0.5"] if x["name"] == wrong else [],
        }
        for x in manifest["layers"]
    }


def harmful_model(folder: Path) -> Path:
    """A checkpoint whose model type, quantizer's name and module names are markup."""
    made = sample("gptq-4bit-v1-sym")

    def renamed(name: str) -> str:
        return name.replace("mlp.down_proj", f"mlp.{HARM.replace('/', '').replace('.', ' ')}").replace(
            "norm.weight", f"norm{MARKUP}.weight"
        )

    config = {**made.config, "model_type": HARM}
    tensors = {renamed(n): t for n, t in made.tensors.items()}
    return replace(made, name="harm <b>&", config=config, tensors=tensors).write(folder)


def harmful() -> Report:
    """Markup in every place that a text can come from."""
    verdict = Verdict(mark="lossy", why=HARM, pad_n=1, pad_k=1, nbytes=10)
    layer = Layer(name=f"a.0.{HARM}", source=HARM, bits=4, n=1, k=1, experts=None, parts=2, nbytes=5, verdicts=(verdict,), rank=HARM)
    finding = Finding(severity="warning", code=HARM, message=HARM, layer=HARM, tensor=HARM, file=HARM, advice=HARM)
    return Report(
        title=HARM,
        state=Cell("packs", HARM),
        facts=[(HARM, HARM)],
        about=[(HARM, HARM)],
        tables=[
            Table(title=HARM, text=HARM, head=(HARM,), rows=[(HARM,), (Cell("refused", HARM),)], below=[HARM], wide=wide)
            for wide in (False, True)
        ],
        findings=[(HARM, [finding])],
        layers=Map(axes=(HARM, HARM), views=(View(HARM, HARM),), layers=(layer,)),
    )


def reordered(folder: Path) -> Path:
    """Act-order in q alone: an error of the fused layer."""
    made = sample("gptq-4bit-v1-sym")
    name = "model.layers.0.self_attn.q_proj.g_idx"
    made.tensors[name] = made.tensors[name][::-1].copy()
    return replace(made, name="act-order").write(folder)


def even(folder: Path) -> Path:
    """A model that two ranks can share."""
    row = next(row for row in DECODERS if row["name"] == "gptq-4bit-v2-asym")
    shape = Shape(hidden=128, intermediate=256, heads=2, kv_heads=2, head_dim=128)
    return decoder(**{**row, "name": "even", "shape": shape}).write(folder)


def large(blocks: int = 60, experts: int = 120) -> Report:
    """blocks x (experts x 3 + 7) layers, 22,020 as it stands: a model of experts whose projections are kept apart."""
    good = Verdict(mark="packs", pad_n=64, pad_k=0, nbytes=4_300_000)
    cast = Verdict(mark="lossy", why="may change values: scale-cast", pad_n=0, pad_k=0, nbytes=8_000_000)
    no = Verdict(mark="refused", why="weight scale group size 24 is not supported with 8-bit activations", nbytes=None)
    leaves = [f"mlp.experts.{e}.{leaf}" for e in range(experts) for leaf in ("gate_proj", "up_proj", "down_proj")]
    leaves += [f"self_attn.{leaf}" for leaf in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")]
    leaves += [f"mlp.shared_experts.{leaf}" for leaf in ("gate_proj", "up_proj", "down_proj")]
    layers = tuple(
        Layer(
            name=f"model.layers.{b}.{leaf}",
            source="gptq: uint4, groups of 128",
            bits=4,
            n=2048,
            k=7168,
            experts=None,
            parts=1,
            nbytes=7_500_000,
            verdicts=(cast if "attn" in leaf else good, no if b % 7 == 3 and "experts.1" in leaf else good),
        )
        for b in range(blocks)
        for leaf in leaves
    )
    findings = [Finding(severity="note", code="act-fallback", message="int4 activations are slow", layer=x.name) for x in layers]
    return Report(
        title="a-model-with-many-experts-and-a-long-name-that-has-to-wrap-on-a-phone: the plan",
        state=Cell("packs", "can be converted so"),
        facts=[("layers", str(len(layers)))],
        about=[("source formats", "gptq")],
        tables=[],
        findings=[("Findings", findings)],
        layers=Map(axes=("target", "activation"), views=(View("sm90", "act bf16"), View("sm90", "act int4")), layers=layers),
    )


def pages(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, page). folder: for the checkpoints they are of."""
    gptq, mixed = sample("gptq-4bit-v2-asym").write(folder), sample("nvfp4-modelopt").write(folder)
    yield "inspect-gptq", page(inspected(gptq))
    yield "inspect-nvfp4", page(inspected(mixed))
    yield "inspect-experts", page(inspected(sample("mxfp4-gpt-oss").write(folder)))
    yield "inspect-act-order", page(inspected(reordered(folder)))
    empty = folder / "empty"
    empty.mkdir()
    yield "inspect-nothing", page(inspected(empty))
    yield "inspect-harm", page(inspected(harmful_model(folder)))
    yield "plan-two-targets", page(planned(gptq, "sm90", "sm120", act="fp8"))
    yield "plan-ranks", page(planned(even(folder), "sm90", tp=2))
    out = folder / "gptq-packed"
    api.convert(api.plan(gptq, target="sm90", act="fp8"), out=out)
    yield "verify-whole", page(verified(out))
    yield "verify-proven", page(verified(out, gptq, on_gpu(out)))
    name = json.loads((out / "humming_manifest.json").read_text())["layers"][1]["name"]
    yield "verify-gpu-wrong", page(verified(out, gptq, on_gpu(out, wrong=name)))
    rewrite(out, lambda manifest: manifest["layers"][1].update(gpu=on_gpu(out, wrong=name)[0, name]))
    yield "verify-gpu-wrong-before", page(verified(out))
    path = next(out.glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    yield "verify-damaged", page(verified(out))
    yield "harm", page(harmful())
    yield "many-layers", page(large())
