"""Damages and contradictions that a reader must notice, and the decisions about them: which rule and which test stand for each.

Out: two tables, printed in docs/format-rules.md; tests/docs holds every row to its rules and tests.
Facts: formats.md 11 (D1 to D24), 12 (rows 1 to 65).
"""

from __future__ import annotations

from msgspec import Struct

ACCEPTED, WARNING, ERROR = "accepted", "warning", "error"


class Row(Struct, frozen=True):
    """`key`: row or decision number.  codes: of the rules that answer it, each with its test `test_rule_<code>`.  tests: others."""

    key: str
    what: str
    answer: str
    codes: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


def _row(key: int, what: str, answer: str, *names: str) -> Row:
    """names: codes of rules, and names of tests."""
    return Row(
        str(key), what, answer, tuple(n for n in names if not n.startswith("test_")), tuple(n for n in names if n.startswith("test_"))
    )


DAMAGES: tuple[Row, ...] = (
    _row(1, "the index names a file or a tensor that is not there", ERROR, "shard-missing", "tensor-missing"),
    _row(2, "a tensor in two files, with an index", WARNING, "tensor-twice"),
    _row(3, "the same without an index", ERROR, "tensor-ambiguous"),
    _row(4, "a file cut off, a header beyond it, tensors that overlap or have the wrong size", ERROR,
         "header-length", "file-truncated", "header-overlap", "header-size"),
    _row(5, "the config's method is not that of the tensors", "warning; error where kinds mix in one module", "method-lies", "tensor-unknown",
         "test_awq_tensors_under_a_gptq_config_are_followed_with_a_warning"),
    _row(6, "bits of the config against the shapes", "warning; error if no width fits", "bits-lie", "ct-bits-lie", "bits-open"),
    _row(7, "group_size of the config against the scales", "warning; error if K is not divisible", "group-size-lies", "tensor-shape"),
    _row(8, "a shorter last group", ACCEPTED, "test_a_shorter_last_group_becomes_equal_smaller_groups", "test_a_shorter_last_group_becomes_even_ones"),
    _row(9, "the shorter last group has no scales", ERROR, "tensor-shape", "test_a_lost_shorter_group_is_refused"),
    _row(10, "v2 constants in a symmetric file labelled v1", ACCEPTED, "test_symmetric_files_are_read_alike_whatever_constant_they_store"),
    _row(11, "asymmetric GPTQ: label and codes disagree", ERROR, "zeros-label"),
    _row(12, "sym true and zero points that vary", WARNING, "sym-lies"),
    _row(13, "a stored zero point of 2^b-1 in a v1 file", "error; by the writer's rule with a warning", "zeros-wrap", "zeros-wrapped"),
    _row(14, "3-bit zero words of an old faulty conversion", WARNING, "zeros-damaged", "test_three_bit_v1_of_old_gptqmodel_is_undecided"),
    _row(15, "3-bit zero words in the other layout", ERROR, "planar-label"),
    _row(16, "desc_act true, g_idx the identity", ACCEPTED, "test_only_the_content_of_g_idx_decides"),
    _row(17, "desc_act false, g_idx not the identity", "as act-order", "act-order", "test_only_the_content_of_g_idx_decides"),
    _row(18, "g_idx all zero, several groups", WARNING, "g-idx-zero"),
    _row(19, "q, k, v with different g_idx", ERROR, "act-order", "test_parts_with_orders_of_their_own_are_each_refused"),
    _row(20, "g_idx absent or of size 0", ACCEPTED, "test_only_the_content_of_g_idx_decides"),
    _row(21, "qzeros missing", "warning where symmetric, else error", "zeros-empty", "test_missing_zero_points_are_an_error_unless_the_layer_is_symmetric"),
    _row(22, "AWQ zero_point false, zero points all 8", ACCEPTED, "test_without_zero_points_the_middle_is_8"),
    _row(23, "AWQ gemv padding that is not zero", WARNING, "awq-padding"),
    _row(24, "gemv_fast zero points that are no whole numbers from 0 to 15", ERROR, "awq-zero-fraction"),
    _row(25, "AWQ of 3 or 8 bits, the writer not named", ERROR, "awq-width"),
    _row(26, "compressed-tensors words that fit no layout", ERROR, "ct-words"),
    _row(27, "padded words with high bits set", ERROR, "high-bits"),
    _row(28, "unpacked zero points that are unsigned", ERROR, "zero-point-unsigned"),
    _row(29, "symmetric true with zero points of 0", ACCEPTED, "test_zero_points_that_say_nothing_are_dropped_beside_symmetric"),
    _row(30, "transforms, sparsity, marlin-24", ERROR, "ct-transform", "ct-sparsity", "ct-format-refused"),
    _row(31, "actorder group without weight_g_idx", ACCEPTED, "test_an_order_of_columns_that_is_none_is_ignored"),
    _row(32, "a global scale of 0, NaN, infinity or more than 1e30", ERROR, "scale-not-positive", "test_the_scale_of_a_matrix_is_above_0_and_not_huge"),
    _row(33, "NVFP4 without weight_scale_2", ERROR, "tensor-missing"),
    _row(34, "NVFP4 parts with different globals", ACCEPTED, "test_unequal_secondary_scales_become_one_a_row"),
    _row(35, "input scales missing for some experts", "accepted; error for a static activation",
         "test_the_largest_input_scale_counts_and_parts_without_one_are_named"),
    _row(36, "weight-only NVFP4 with input scales", WARNING, "input-scale-unasked"),
    _row(37, "pre_quant_scale that is not all 1", ERROR, "pre-quant-scale", "test_a_pre_quant_scale_of_ones_is_dropped"),
    _row(38, "hf_quant_config.json against config.json", "by D1", "configs-disagree", "config-contradiction"),
    _row(39, "an excluded module is packed", WARNING, "ignored-quantized"),
    _row(40, "a listed module is plain", WARNING, "listed-plain", "listed-not-quantized"),
    _row(41, "an E8M0 scale of 255", ERROR, "e8m0-nan"),
    _row(42, "an E8M0 scale of 0", ACCEPTED, "test_the_smallest_e8m0_scale_is_not_zero"),
    _row(43, "a NaN among FP8 weights", ERROR, "weight-nan", "test_nan_codes_inside_words_are_seen"),
    _row(44, "a scale that is NaN or infinite, or becomes so", ERROR, "scale-nonfinite", "scale-huge", "scale-overflow"),
    _row(45, "scales of a layer all zero, or all lost in the cast", ERROR, "scale-all-zero", "scale-vanished"),
    _row(46, "weights of a layer all zero", WARNING, "weight-all-zero"),
    _row(47, "an FP8 scale grid rounded down, or of another block size than the config says", "error; warning where one size fits all", "tensor-shape",
         "block-size-lies", "block-size-guessed", "test_a_grid_that_was_rounded_down_is_said_to_be"),
    _row(48, "E8M0 bytes copied as numbers", ERROR, "e8m0-as-number"),
    _row(49, "MXFP4 bytes with a scale for 16 columns", ERROR, "mxfp4-scale-columns"),
    _row(50, "nibbles the wrong way round", "cannot be seen; no known tool writes it"),
    _row(51, "MiMo qkv plain or in chunks, not to be told", ERROR, "qkv-layout"),
    _row(52, "experts in three dimensions, orientation not to be told", ERROR, "experts-orientation"),
    _row(53, "another number of experts than the config says, or gaps", ERROR, "expert-count", "expert-missing"),
    _row(54, "a part of a fused group, or its bias, is missing", ERROR, "part-missing", "bias-missing"),
    _row(55, "parts of a fused group of different widths", "error when fusing, else a warning", "parts-differ"),
    _row(56, "zero points that fill no whole words along N", ACCEPTED, "test_zero_points_that_end_inside_a_word_are_packed_again"),
    _row(57, "codes that fill no whole words along K", ERROR, "row-not-whole-words"),
    _row(58, "a bias of shape [1, N] or [N, 1]", ACCEPTED, "test_a_bias_is_kept_whatever_its_shape", "test_a_transposed_bias_of_stacked_experts_is_refused"),
    _row(59, "other files beside the shards", ACCEPTED, "test_files_in_sub_folders_are_not_read_and_not_copied"),
    _row(60, "LoRA tensors in the weight files", ERROR, "adapter-inside"),
    _row(61, "rotation in a GPTQ config", ERROR, "config-unsupported"),
    _row(62, "Conv1D weights [K, N] that are not quantized", ACCEPTED, "test_matrices_of_conv1d_pass_as_they_are"),
    _row(63, "FNUZ FP8", ERROR, "fp8-fnuz", "header-dtype"),
    _row(64, "hadamard_block_size in a Humming source", ERROR, "humming-hadamard"),
    _row(65, "an already packed Humming folder as source", ERROR, "method-refused", "tensor-shape", "test_an_already_packed_folder_is_refused"),
)  # fmt: skip

DECISIONS: tuple[Row, ...] = (
    _row(1, "two configs: the first wins where the tensors prove it", "warning or error", "config-contradiction", "configs-disagree"),
    _row(2, "tensors beat lists of exclusions", WARNING, "ignored-quantized"),
    _row(3, "v1 or v2 by the label; the codes may contradict it, or not tell", "error; warning or note", "zeros-label", "zeros-unproved",
         "zeros-unmeasured"),
    _row(4, "symmetric or not by the zero words", "warning or error", "sym-lies", "zeros-constant",
         "test_the_symmetric_constant_of_the_other_version_is_no_asymmetric_zero_point"),
    _row(5, "stored 2^b-1 by the rule of a known writer", "warning or error", "zeros-wrapped", "zeros-wrap", "test_options_decide_v1_or_v2_and_the_wrap"),
    _row(6, "act-order is folded where that is exact", ERROR, "act-order", "test_columns_are_sorted_and_the_rows_before_follow"),
    _row(7, "Marlin tiles are read", WARNING, "marlin-deprecated"),
    _row(8, "a quantized lm_head is dequantized", WARNING, "test_a_quantized_head_becomes_a_plain_matrix_unless_it_is_kept"),
    _row(9, "AWQ of other widths by its writer", ERROR, "awq-width", "test_other_widths_of_gptqmodel_are_plain_streams"),
    _row(10, "odd widths: layout by the number of words", "told", "ct-words", "test_a_short_column_of_zero_points_has_the_layout_of_the_weight"),
    _row(11, "methods that are not read, by name", ERROR, "method-refused"),
    _row(12, "gate and up rows of gpt-oss stay as they are", "told", "test_gpt_oss_projections_are_stacked_layers_that_keep_their_rows"),
    _row(13, "pre_quant_scale", ERROR, "pre-quant-scale"),
    _row(14, "canonical names only", WARNING, "humming-alias"),
    _row(15, "E8M0 255", ERROR, "e8m0-nan", "test_a_nan_scale_passes_only_over_zero_codes_and_on_demand"),
    _row(16, "scales are cast as the library casts them", "measured; error where they overflow", "scale-overflow",
         "test_scales_and_bias_are_cast_to_the_model_dtype_and_measured"),
    _row(17, "duplicates", "warning or error", "tensor-twice", "tensor-ambiguous"),
    _row(18, "a tied head that is on disk and differs", WARNING, "tied-head-differs"),
    _row(19, "a bias that the architecture does not have", "note or warning", "bias-zero", "bias-unexpected"),
    _row(20, "an unknown tensor of a quantized module", ERROR, "tensor-unknown"),
    _row(21, "small groups and groups that are no power of two", "rewritten exactly, or error", "group-too-small",
         "test_groups_that_are_no_power_of_two_are_split", "test_groups_that_are_no_power_of_two_are_split_exactly"),
    _row(22, "fused on disk stays fused", ACCEPTED, "test_whole_blocks_stay_blocks_under_any_name"),
    _row(23, "float64 scales", "cast and measured", "test_scales_in_float64_are_rounded_to_float32"),
    _row(24, "weight_shape against the tensors", "warning or error", "weight-shape-lies", "ct-words"),
)  # fmt: skip

CONTRADICTIONS = frozenset((
    "method-lies", "bits-lie", "ct-bits-lie", "group-size-lies", "sym-lies", "ct-symmetric-lies", "zeros-label", "zeros-mixed", "zeros-constant", "gptq-format-lies", "fp8-fmt-lies", "dtype-contradiction", "planar-label",
    "config-contradiction", "configs-disagree", "ignored-quantized", "listed-plain", "listed-not-quantized", "algo-lies", "algo-not-listed",
    "ct-format-lies", "ct-group-unused", "ct-group-none", "weight-shape-lies", "awq-version-lies", "input-scale-unasked", "expert-count",
    "shape-config", "layer-missing", "tied-head-differs", "block-size-lies",
))  # fmt: skip
"""Codes of findings about two things that do not agree: a config, a label or a list against the tensors, or two configs."""
