"""Why a combination cannot be packed: the codes of the golden vectors, with a sentence and a way out each.

Facts: golden/README.md (Refusals), layouts.md 1 to 5.
"""

from __future__ import annotations

from humming_convert.findings import Finding, Refused

ADVICE: dict[str, str] = {
    "e0m3_umma_needs_group_16": "use weight and activation groups of 16, or 16-bit activations",
    "e5m2_activation_needs_bf16_output": "use --dtype bf16 or --act fp8",
    "equal_bits_zero_point": "use a wider activation: the kernels take zero points only where weights are narrower than activations",
    "grouped_zero_point_above_4_bits": "use an activation of 8 or 16 bits",
    "input_and_weight_scale_type_differ": "use an activation whose scales have the type of the weight scales",
    "input_and_weight_group_differ": "use an activation whose group equals that of the weights",
    "n_not_multiple_of_64": "use --pad-n 64 or a multiple of it",
    "n_not_multiple_of_block": "the weight's N has to hold whole blocks; write the scales for every row",
    "k_not_multiple_of_tile": "use --pad-k 128",
    "k_not_multiple_of_group": "the weight's K has to hold whole groups; re-quantize with a group size that divides K",
    "k_not_whole_groups_of_word": "use --pad-k 128 or another activation",
    "row_not_whole_codes": "a row of codes has to fill whole 32-bit words; the layer cannot be stored in standard form",
    "scale_16bit_type_differs_from_activation": "use the dtype of the scales as --dtype, or cast the scales (--scale-dtype model)",
    "schema_incompatible": "choose another activation; `humming-convert targets --check` lists the legal ones",
    "secondary_input_scale_needs_block_scaled_mma": "use an activation without a static tensor scale beside its group scales",
    "secondary_scale_not_legal": "secondary scales go with group scales, or as one value with channel scales",
    "scale_group_not_legal": "channel and tensor scales have no group size; group and block scales need one",
    "input_mode_not_legal": "the activation's mode, group and type do not go together",
    "split_group_below_mma_k": "use 16-bit activations: the group size's power of two is below one step of the tensor core",
    "split_group_with_group_input_scale": "use an activation without group scales",
    "tensor_dtype": "use another activation, or cast the tensor to the model dtype before",
    "tensor_shape": "the tensor does not have the shape of its form; check the checkpoint",
    "tensor_missing": "the layer lacks a tensor that its form asks for; check the checkpoint",
    "zero_point_needs_group_or_channel": "integer zero points go with group or channel scales only",
    "interleave_undefined": "use an activation of 8 or 16 bits: no layout exists for codes wider than a 4-bit activation",
    "fused_group_not_legal": "use 16-bit activations: fused E8M0 scales need groups that are powers of two from 32 on",
    "activation_not_model_dtype": "16-bit activations are the model dtype; use --dtype",
    "e0m_int_zero_point": "sign-magnitude weights with integer zero points have no integer form; use a float activation",
    "e0m_k_not_multiple_of_32": "use --humming-version 0.1.20, or pad the checkpoint's K to a multiple of 32",
    "raw_row_not_whole_words": "use --pad-k 128",
    "zero_point_groups_uneven": "use --humming-version 0.1.20, or quantize with groups that divide the padded K",
}


ACCIDENTS: dict[str, str] = {
    "tensor_dtype": "the library compares stored types only; the kernels could run the numbers in another type",
    "zero_point_needs_group_or_channel": "the library has no form for them; the same zero points with a scale a row can be packed",
    "e0m_k_not_multiple_of_32": "0.1.19 counts codes in runs of 32; 0.1.20 takes every row of whole words",
    "n_not_multiple_of_64": "only with smaller pads than the 256 and 128 that serving uses",
    "k_not_multiple_of_tile": "only with smaller pads than the 256 and 128 that serving uses",
    "raw_row_not_whole_words": "only with smaller pads than the 256 and 128 that serving uses",
    "zero_point_groups_uneven": "0.1.19 counts their groups anew from the padded K; 0.1.20 splits groups to powers of two before",
}
"""Refusals that come from how the library is written, not from what a kernel can run, and why (golden/README.md, layouts.md 2, 3, 9).
All others are limits of the kernels or of the GPU."""


def refusal(code: str, message: str) -> Finding:
    accident = f" ({ACCIDENTS[code]})" if code in ACCIDENTS else ""
    return Finding(severity="error", code=code, message=message + accident, advice=ADVICE[code])


def refuse(code: str, message: str) -> Refused:
    """To be raised: one refusal."""
    return Refused([refusal(code, message)])
