"""What a packed layer is: the configuration that the library stores, and the recipe that shapes every byte.

`resolve` makes a LayerRecipe; the numpy reference, the compiled passes, plan and manifest read it.  All of it is plain data.
Facts: layouts.md 4.1 (last paragraph), 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from humming_convert.layouts.questions import Answers
from humming_convert.layouts.recipe import WeightRecipe
from humming_convert.standard.forms import InputForm, WeightForm
from humming_convert.targets.environment import Environment
from humming_convert.targets.pair import Pair

__all__ = ["Entry", "Environment", "LayerConfig", "LayerRecipe", "SmallRecipe"]

Entry = Literal["vllm", "humming-layer", "direct"]
ScalePlace = Literal["tensor", "block", "umma", "mx1", "mx4", "on_c", "normal"]
Merge = Literal["none", "equal", "to_channel", "to_channel_2", "into_channel"]


class LayerConfig(Struct, frozen=True, kw_only=True):
    """Humming's `LayerConfig`, field by field. `shape_n`, `shape_k`: padded. `num_experts`: 0 for none. Types by Humming's names."""

    sm_version: int
    shape_n: int
    shape_k: int
    pad_shape_n: int
    pad_shape_k: int
    num_experts: int
    b_dtype: str
    a_dtype: str
    c_dtype: str
    bs_dtype: str
    as_dtype: str | None
    input_quant_mode: str
    input_scale_group_size: int
    weight_scale_group_size: int
    weight_scale_group_size_n: int
    weight_scale_type: str
    weight_scale_2_type: str
    use_int_weight_scale: bool
    use_fused_e8m0_scale: bool
    has_zero_point: bool
    is_fp_zero_point: bool
    has_bias: bool
    use_packed_k_layout: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class SmallRecipe(Struct, frozen=True, kw_only=True):
    """How the tensors beside the weight are made (layouts.md 2 to 8).

    merge: S0, what becomes of tensor scales.  zero_shift: added to zero points (S2a, S1 of 0.1.19).  fp16_range: S3.
    groups: columns of scales and zero points before padding (0: not regrouped).  int_scale: S9.
    fused: R of S5 (0: no fused E8M0); `fused_plus`: added to its codes.  rebias: S7.  place: section 6.
    zero_width: bits of a stored zero point (4, 8).  zero_groups: v of section 7 (1: not grouped).
    """

    merge: Merge = "none"
    zero_shift: int = 0
    fp16_range: bool = False
    groups: int = 0
    int_scale: bool = False
    fused: int = 0
    fused_plus: int = 0
    rebias: bool = False
    place: ScalePlace = "normal"
    zero_width: int = 0
    zero_groups: int = 1


class LayerRecipe(Struct, frozen=True, kw_only=True):
    """All that shapes the bytes of one packed layer.

    source, form: the weight form as given, and as packed (after S0 to S4; its number type is the one of `config`).
    input: the activation, settled.  pair: the configured pair that `flags` come from.
    outputs: role -> (safetensors dtype, shape with the experts axis).
    """

    config: LayerConfig
    flags: Mapping[str, Any]
    source: WeightForm
    form: WeightForm
    input: InputForm
    pair: Pair
    weight: WeightRecipe
    small: SmallRecipe
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    environment: Environment
    n: int
    k: int
    experts: int | None
    stack_n: tuple[int, ...]
    entry: Entry
    param_dtype: str
    has_bias: bool
    answers: Answers
