"""A finding with everything in it."""

from __future__ import annotations

from humming_convert.findings import Finding


def damaged(layer: str = "model.layers.3.mlp.down_proj", **other: object) -> Finding:
    where = {"layer": layer, "tensor": f"{layer}.weight_scale", "file": "model-00002.safetensors"}
    told = {"message": "2 NaN in weight_scale", "advice": "re-export the layer", "count": 2}
    return Finding(**{"severity": "error", "code": "scale-nonfinite", **where, **told, **other})  # type: ignore[arg-type]
