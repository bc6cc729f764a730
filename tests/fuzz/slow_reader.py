"""What a folder means, by the formulas of formats.md and nothing else: slow, plain numpy.

In: a checkpoint folder.  Out: for every quantized module its numbers in float64, and the tensors that belong to none; `Unreadable` where
formats.md asks for a refusal, or where this reader cannot tell.  Facts: formats.md 1.3, 2.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import slow_integers as ints
from tests.fuzz import slow_others as others
from tests.fuzz.slow_bits import Meaning, Tensor, Unreadable, need, sections_of, tensors_of

BYTE, F8, E8M0 = ("U8", "I8"), ("F8_E4M3", "F8_E5M2"), ("U8", "F8_E8M0")
HARMLESS = ("bias", "g_idx", "workspace", "weight_shape", "weight_g_idx", "k_scale", "v_scale", "q_scale", "output_scale", "input_zero_point",
            "input_scale", "input_global_scale", "activation_scale", "activation_scale_ub", "inv_freq", "pre_quant_scale", "input_scale_2")  # fmt: skip
KNOWN = {
    "gptq": ("qweight", "qzeros", "scales"),
    "marlin": ("qweight", "scales", "B", "s", "qzeros"),
    "awq-gemm": ("qweight", "qzeros", "scales"),
    "awq-gemv": ("qweight", "qzeros", "scales"),
    "awq-fast": ("qweight", "qzeros", "scales"),
    "ct-pack": ("weight_packed", "weight_scale", "weight_zero_point"),
    "ct-nvfp4": ("weight_packed", "weight_scale", "weight_global_scale"),
    "ct-mxfp4": ("weight_packed", "weight_scale"),
    "nvfp4": ("weight", "weight_scale", "weight_scale_2"),
    "mxfp4": ("weight", "weight_scale", "scale"),
    "int8": ("weight", "weight_scale", "weight_zero_point"),
    "fp8": ("weight", "weight_scale", "weight_scale_inv", "scale"),
    "humming": ("weight", "weight_scale", "zero_point", "weight_scale_2"),
}


def kind_of(t: Mapping[str, Tensor]) -> str | None:
    """The table of formats.md 1.3; None: not quantized."""
    if any(s.endswith("_blocks") for s in t):
        return "gpt-oss"
    if any(s != "weight" and v.dtype == "I32" and f"{s}_scale" in t for s, v in t.items()):
        return "humming-stacked"
    q, s = t.get("qweight"), t.get("scales")
    if "B" in t and "s" in t:
        return "marlin"
    if q is not None:
        need(s is not None, "scales missing")
        assert s is not None
        if q.dtype == "I16":
            return "awq-fast"
        need(len(q.shape) == len(s.shape) == 2, "shapes")
        if "g_idx" not in t:
            if "qzeros" not in t and q.shape[1] == 2 * s.shape[1]:
                return "marlin"
            zeros = t.get("qzeros")
            if q.shape[0] == s.shape[0] and (
                q.shape[1] != s.shape[1] or (zeros is not None and zeros.shape == (s.shape[0], s.shape[1] // 8))
            ):
                return "awq-gemv"
            if q.shape[1] != s.shape[1]:
                return "awq-gemm"
        return "gptq"
    if "weight_packed" in t:
        if t["weight_packed"].dtype == "I32":
            return "ct-pack"
        four = "weight_global_scale" in t or ("weight_scale" in t and t["weight_scale"].dtype == "F8_E4M3")
        return "ct-nvfp4" if four else "ct-mxfp4"
    w, scale = t.get("weight"), t.get("weight_scale") or t.get("scale")
    if w is None:
        return None
    if w.dtype == "I32":
        return "humming"
    if w.dtype in BYTE:
        if "weight_scale_2" in t or (scale is not None and scale.dtype == "F8_E4M3"):
            return "nvfp4"
        return "mxfp4" if scale is not None and scale.dtype in E8M0 else "int8"
    return "fp8" if w.dtype in F8 else None


def _block(config: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[int, int] | None:
    if config.get("quant_method") == "compressed-tensors":
        size = said.get("block_structure") if said.get("strategy") == "block" else None
    else:
        size = config.get("weight_block_size")
    if isinstance(size, str):
        need(re.fullmatch(r"\d+x\d+", size), "block size")
        size = [int(x) for x in size.split("x")]
    return (int(size[0]), int(size[1])) if isinstance(size, list) and len(size) == 2 else None


def _blocks(config: Mapping[str, Any], modules: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[int, int] | None]:
    """The block size of every FP8 module: one for all of a config entry, which every grid of scales fits (formats.md 7)."""
    said = {name: others.ct_group(config, name) or {} for name, t in modules.items() if kind_of(t) == "fp8"}
    out: dict[str, tuple[int, int] | None] = {}
    for entry in {id(s): s for s in said.values()}.values():
        members = {name: modules[name] for name, s in said.items() if s is entry or s == entry}
        size = others.one_block(_block(config, entry), members.values())
        out |= dict.fromkeys(members, size)
    return out


def read(folder: Path) -> tuple[dict[str, Meaning], dict[str, Tensor]]:
    """(module -> meaning, tensors of no quantized module)."""
    config = json.loads((folder / "config.json").read_text())
    sections = sections_of(folder, config)
    primary: Mapping[str, Any] = sections[0] if sections else {}
    modules: dict[str, dict[str, Tensor]] = {}
    every = tensors_of(folder)
    for name, tensor in every.items():
        head, _, leaf = name.rpartition(".")
        modules.setdefault(head, {})[leaf] = tensor
    out: dict[str, Meaning] = {}
    plain: dict[str, Tensor] = {}
    gptq: dict[str, ints.Gptq] = {}
    label = str(primary.get("checkpoint_format") or primary.get("format") or "").lower()
    if "auto-round" in str(primary.get("quant_method")).replace("_", "-"):
        packing = str(primary.get("packing_format") or "")
        label = "gptq" if "auto_gptq" in packing else "gptq_v2"
    sizes = _blocks(primary, modules)
    for name, t in modules.items():
        kind = kind_of(t)
        if kind is None:
            plain |= {full: x for full, x in every.items() if full.rpartition(".")[0] == name}
            continue
        if kind in KNOWN:
            extra = set(t) - set(KNOWN[kind]) - set(HARMLESS)
            need(not extra and ("pre_quant_scale" not in t or (t["pre_quant_scale"].real == 1).all()), f"{name}: {extra}")
        if kind == "gptq":
            gptq[name] = ints.gptq_module(name, t, primary, label)
        elif kind == "gpt-oss":
            out |= {f"{name}.{n}": m for n, m in others.gpt_oss(t)}
        elif kind == "humming-stacked":
            out |= _humming_stacked(name, t, primary)
        else:
            out |= _one(name, kind, t, primary, sizes.get(name))
    out |= ints.gptq_all(gptq, primary, label)
    fold(out)
    return out, plain


def _one(name: str, kind: str, t: Mapping[str, Tensor], config: Mapping[str, Any], block: tuple[int, int] | None) -> dict[str, Meaning]:
    weight = t.get("weight") or t.get("weight_packed")
    if weight is not None and len(weight.shape) == 3 and kind != "humming":
        raise Unreadable("stacked experts")
    said: Mapping[str, Any] = others.ct_group(config, name) or {}
    if kind == "marlin":
        return {name: ints.marlin(t, ("qweight", "scales") if "qweight" in t else ("B", "s"))}
    if kind.startswith("awq"):
        return {name: ints.awq(t, config, kind.removeprefix("awq-"))}
    if kind == "humming":
        role = {r: r for r in ("weight", "weight_scale", "zero_point", "weight_scale_2", "bias")}
        settings = others.humming_settings(config, name)
        if weight is not None and len(weight.shape) == 3:  # a stack of experts
            head, _, leaf = name.rpartition(".")
            return {f"{head}.{e}.{leaf}": others.humming(t, settings, role, e) for e in range(weight.shape[0])}
        return {name: others.humming(t, settings, role, None)}
    reading = {
        "ct-pack": lambda: others.ct_pack(t, said),
        "ct-nvfp4": lambda: others.fp4(t, "weight_packed", 16, divisor="weight_global_scale"),
        "ct-mxfp4": lambda: others.fp4(t, "weight_packed", 32),
        "nvfp4": lambda: others.fp4(t, "weight", 16, multiplier="weight_scale_2"),
        "mxfp4": lambda: others.fp4(t, "weight", 32),
        "int8": lambda: others.int8(t, said),
        "fp8": lambda: others.fp8(t, block, said.get("group_size")),
    }
    try:
        return {name: reading[kind]()}
    except KeyError as missing:
        raise Unreadable(f"{name}: {missing} is missing") from None


def _humming_stacked(name: str, t: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Meaning]:
    out = {}
    for p in [s for s, v in t.items() if v.dtype == "I32" and f"{s}_scale" in t]:
        role = {
            "weight": p,
            "weight_scale": f"{p}_scale",
            "zero_point": f"{p}_zero_point",
            "weight_scale_2": f"{p}_scale_2",
            "bias": f"{p}_bias",
        }
        need(len(t[p].shape) == 3, "shape")
        for e in range(t[p].shape[0]):
            out[f"{name}.{e}.{p}"] = others.humming(t, others.humming_settings(config, f"{name}.{p}"), role, e)
    return out


PRODUCERS = {"down_proj": ("gate_proj", "up_proj"), "w2": ("w1", "w3")}


def fold(found: dict[str, Meaning]) -> None:
    """Columns of a down projection sorted by group, the rows of gate and up after them (formats.md 2.8); nothing else may be in act-order."""
    for name, m in list(found.items()):
        if m.columns is None:
            continue
        head, _, leaf = name.rpartition(".")
        if leaf == "lm_head":  # becomes a plain matrix (D8)
            m.columns = None
            continue
        ups = [found.get(f"{head}.{p}") for p in PRODUCERS.get(leaf, ())]
        need(ups and all(u is not None and u.columns is None for u in ups), f"{name}: act-order")
        order = np.argsort(m.columns, kind="stable")
        m.values, m.scale, m.columns = m.values[:, order], m.scale[:, order], None
        for u in ups:
            assert u is not None
            u.values, u.scale = u.values[order], u.scale[order]
            u.bias = None if u.bias is None else u.bias[order]
            u.second = u.second if u.second.size == 1 else u.second[order]
