"""Static input scales of the source end up in the packed folder, where the activation uses them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

import humming_convert as hc
from tests.samples import sample

QKV = ("q_proj", "k_proj", "v_proj")


def test_the_largest_static_scale_of_a_fused_layer_is_written(tmp_path: Path) -> None:
    made = sample("nvfp4-modelopt")
    static = [name for name in made.tensors if name.endswith(".q_proj.input_scale")]
    assert static, "the sample has static input scales"
    out = tmp_path / "out"
    hc.convert(hc.plan(made.write(tmp_path), target="sm120", act="nvfp4"), out=out)
    manifest = json.loads((out / "humming_manifest.json").read_text())
    (layer,) = [x for x in manifest["layers"] if x["name"] == static[0].replace("q_proj.input_scale", "qkv_proj")]
    assert layer["input"]["mode"] == "static_tensor_dynamic_group"
    stored = layer["tensors"]["input_scale_2"]
    with safe_open(out / stored["file"], "numpy") as f:
        assert f.get_tensor(stored["name"]).tolist() == [max(float(made.tensors[static[0].replace("q_proj", p)]) for p in QKV)]
