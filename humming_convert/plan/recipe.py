"""One fused layer on one target: the activation it gets, the data questions, the recipe, the names of its tensors.

In: a fused StandardLayer and the request.  Out: a PlannedLayer, or error findings that name the layer and what is legal.
Facts: architecture.md 9.2, 9.4; layouts.md 2, 10; formats.md 6.5.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from humming_convert.checkpoint.tensors import Read
from humming_convert.findings import Findings, Refused
from humming_convert.layouts import resolve
from humming_convert.layouts.config import LayerRecipe
from humming_convert.model.conform import check_range, conform
from humming_convert.model.parallel import Heads, cut_layer, max_tp
from humming_convert.model.unify import Rejected
from humming_convert.plan.answer import answer_questions
from humming_convert.plan.types import PlannedLayer, PlannedTensor, Request, planned_tensor
from humming_convert.standard.forms import InputForm, InputMode, WeightForm
from humming_convert.standard.layer import ROLES, StandardLayer
from humming_convert.standard.numbers import MODEL_DTYPES, number
from humming_convert.standard.rewrite import to_rows
from humming_convert.targets.activations import act_name, activation
from humming_convert.targets.environment import Environment, compiler_version
from humming_convert.targets.fallback import fall_back
from humming_convert.targets.legality import compatible, legal_activations
from humming_convert.targets.table import Target

STATIC_ROLES = {"static_tensor": "input_scale", "static_tensor_dynamic_group": "input_scale_2"}  # input mode -> role of its scale


class Packing(Struct, frozen=True, kw_only=True):
    """What all layers of a run share."""

    request: Request
    target: Target
    read: Read
    findings: Findings
    headers_only: bool
    heads: Heads

    @property
    def environment(self) -> Environment:
        return environment_of(self.request)


# pure functions of plain values: a model has many layers of few shapes
_compatible_forms = lru_cache(maxsize=1024)(compatible)
resolved = lru_cache(maxsize=1024)(resolve)


@lru_cache(maxsize=16)
def environment_of(request: Request) -> Environment:
    r = request
    return Environment(compiler=compiler_version(r.cuda_compiler_version), cubin_patch=r.cubin_patch, humming_version=r.humming_version)


def plan_packed(layer: StandardLayer, vllm: str | None, packing: Packing) -> tuple[PlannedLayer, ...]:
    """The plan of one layer for every rank that has it; () and an error finding if it cannot be packed as asked."""
    request, findings = packing.request, packing.findings
    form_input = _input_form(layer, packing)
    if form_input is None:
        return ()
    if layer.form.scale.kind == "block" and not _compatible(layer.form, form_input, packing):
        layer = to_rows(layer)  # conform names the lossy step block-to-rows
    whole = conform(layer, request.dtype, request.scale_dtype)
    if not packing.headers_only:
        check_range(whole, packing.read, findings)
    settled = _settle(whole, form_input, packing)
    if settled is None or not _all_have_scales(layer, settled, packing):
        return ()
    layer = _static_scales(layer, settled, findings)
    most = max_tp(layer, packing.heads)
    out: list[PlannedLayer] = []
    for i, rank in enumerate(request.ranks):
        mine = cut_layer(layer, rank, packing.heads)
        if isinstance(mine, Rejected):
            findings.error("parallel-cut", mine.reason, layer=layer.name, advice=_smaller(most))
            return ()
        planned = _of_rank(conform(mine, request.dtype, request.scale_dtype), settled, packing) if mine is not None else None
        if planned is not None:
            out.append(replace(planned, vllm=vllm, rank=i, max_tp=most))
    return tuple(out)


def _smaller(most: int | None) -> str:
    if most is None or most == 1:
        return "leave out --tp, or exclude the layer (--exclude)"
    return f"the largest --tp for this layer is {most}"


def _of_rank(layer: StandardLayer, settled: InputForm, packing: Packing) -> PlannedLayer | None:
    """The plan of what one rank has of a layer: its own data decide."""
    request, findings = packing.request, packing.findings
    answers = answer_questions(
        layer, settled, packing.target, packing.environment, request, packing.read, headers_only=packing.headers_only
    )
    try:
        recipe = resolved(
            n=layer.n,
            k=layer.k,
            experts=layer.experts,
            stack_n=layer.stack_n,
            form=layer.form,
            input=settled,
            target=packing.target,
            env=packing.environment,
            param_dtype=request.dtype,
            has_bias="bias" in layer.tensors,
            answers=answers.answers,
            pad_n=request.pad_n,
            pad_k=request.pad_k,
            entry=request.entry,
            e0m=request.e0m == "auto",
        )
    except Refused as refused:
        for f in refused.findings:
            findings.add(replace(f, code=f.code.replace("_", "-"), layer=layer.name))
        return None
    return PlannedLayer(layer=layer, vllm=None, recipe=recipe, outputs=_outputs(layer, recipe), answers=answers.by_name)


def _compatible(form: WeightForm, given: InputForm, packing: Packing) -> bool:
    return _compatible_forms(form, given, packing.target, packing.environment, packing.request.dtype).ok


def _input_form(layer: StandardLayer, packing: Packing) -> InputForm | None:
    """What was asked for, or what the checkpoint declares under `auto`; static modes need the checkpoint's scales."""
    request = packing.request
    if request.act == "auto":
        declared = layer.declared
        if declared is None:
            return InputForm(number=number(MODEL_DTYPES[request.dtype]), mode="none")
        role = STATIC_ROLES.get(declared.mode)
        if role is not None and role not in layer.tensors:
            dynamic: InputMode = "dynamic_group" if declared.group else "dynamic_token"
            return replace(declared, mode=dynamic)
        return declared
    wanted = activation(request.act, request.dtype, static="input_scale_2" in layer.tensors)
    role = STATIC_ROLES.get(wanted.mode)
    if role is not None and role not in layer.tensors:
        packing.findings.error(
            "input-scale-missing",
            f"--act {request.act} needs a static input scale and the checkpoint has none for this layer",
            layer=layer.name,
            advice=f"use --act {request.act.partition(':')[0]}, which scales activations as they come",
        )
        return None
    return wanted


def _settle(layer: StandardLayer, wanted: InputForm, packing: Packing) -> InputForm | None:
    """The activation that the layer gets: the wanted one where it is legal, else by fall-back where that was allowed."""
    request, findings = packing.request, packing.findings
    verdict = _compatible_forms(layer.form, wanted, packing.target, packing.environment, request.dtype)
    automatic = request.act == "auto"
    if verdict.ok and not automatic:
        return wanted
    if automatic or request.act_fallback:
        # an explicit request that is legal is taken as it is; `auto` follows the serving caller, which also avoids slow types
        found = fall_back(layer.form, wanted, packing.target, packing.environment, request.dtype)
        if found.input is not None:
            if found.reason:
                findings.note(
                    "act-fallback",
                    f"{act_name(wanted) or wanted.number} -> {act_name(found.input) or found.input.number}: {found.reason}",
                    layer=layer.name,
                )
            return found.input
    legal = legal_activations(layer.form, packing.target, packing.environment, request.dtype)
    findings.error(
        "act-illegal",
        f"{describe(layer.form)} cannot run with {act_name(wanted) or wanted.number} activations on {packing.target.name}: {verdict.reason}; "
        f"legal: {' '.join(legal) or 'none'}",
        layer=layer.name,
        advice="choose a legal activation, or --act-fallback lets such layers fall back one by one" if legal else "choose another target",
    )
    return None


def describe(form: WeightForm) -> str:
    """`uint4 with zero points, groups of 128`."""
    zero = {"none": "", "int": " with zero points", "fp": " with float zero points"}[form.zero_point]
    scale = {
        "tensor": "one scale",
        "channel": "a scale a row",
        "group": f"groups of {form.scale.k}",
        "block": f"blocks of {form.scale.n} x {form.scale.k}",
    }[form.scale.kind]
    return f"{form.number}{zero}, {scale}"


def _all_have_scales(layer: StandardLayer, given: InputForm, packing: Packing) -> bool:
    """The largest static scale of the parts counts; where some have none, theirs may have been larger (formats.md 12 row 35)."""
    lacking = layer.facts.get("missing_input_scale", {}).get(STATIC_ROLES.get(given.mode), ())
    if not lacking:
        return True
    refused = packing.request.read.missing_input_scale == "refuse"
    names = f"{lacking[0]} has" if len(lacking) == 1 else f"{len(lacking)} parts, the first {lacking[0]}, have"
    say = packing.findings.error if refused else packing.findings.warning
    say(
        "input-scale-missing",
        f"{names} no static input scale, other parts of the same layer do",
        layer=layer.name,
        advice="--missing-input-scale max takes the largest of the others"
        if refused
        else "check with a few inputs that activations are not cut off",
        count=len(lacking),
    )
    return not refused


def _static_scales(layer: StandardLayer, given: InputForm, findings: Findings) -> StandardLayer:
    """Keeps the static scale that the input mode uses; drops the others with a note."""
    keep = STATIC_ROLES.get(given.mode)
    dropped = [role for role in STATIC_ROLES.values() if role in layer.tensors and role != keep]
    if not dropped:
        return layer
    findings.note(
        "input-scale-dropped",
        f"the checkpoint's static input scale is not used: activations are {act_name(given) or given.number}",
        layer=layer.name,
    )
    return replace(layer, tensors={r: e for r, e in layer.tensors.items() if r not in dropped})


def _outputs(layer: StandardLayer, recipe: LayerRecipe) -> dict[str, PlannedTensor]:
    """Role -> tensor, in the order of the file."""
    shapes = dict(recipe.outputs)
    for role in STATIC_ROLES.values():
        if role in layer.tensors:
            shapes[role] = ("F32", (layer.experts or 1,))
    return {role: planned_tensor(packed_name(layer, role), role, *shapes[role]) for role in ROLES if role in shapes}


def packed_name(layer: StandardLayer, role: str) -> str:
    """`<layer>.<role>`; stacked experts `<experts>.w13_<role>` (architecture.md 9.4)."""
    return f"{layer.name}_{role}" if is_expert_stack(layer) else f"{layer.name}.{role}"


def is_expert_stack(layer: StandardLayer) -> bool:
    return layer.experts is not None and layer.name.rpartition(".")[2] in ("w13", "w2")
