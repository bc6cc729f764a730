"""How vLLM is started against what the folder was made for, and which rank's files a process reads."""

from __future__ import annotations

from typing import Any

import pytest
from codes import codes

from humming_convert.serve.deployment import LOAD_FORMATS, Deployment, deployment_findings, kv_cache_findings, model_findings, rank_of
from humming_convert.serve.folder import PackedFolder
from tests.serve.conftest import EXPERTS, Packed


def started(**more: Any) -> Deployment:
    return Deployment(**{"dtype": "bfloat16", **more})


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"tp_size": 2}, "tp-size"),
        ({"load_format": "dummy"}, "load-format"),
        ({"load_format": "sharded_state"}, "load-format"),
        ({"lora": True}, "lora"),
        ({"eplb": True}, "eplb"),
        ({"quantized_online": "fp8_per_tensor"}, "online-quantization"),
        ({"environment": ("VLLM_HUMMING_INPUT_QUANT_CONFIG",)}, "input-quant-config"),
    ],
)
def test_each_way_that_does_not_fit_is_refused(packed: Packed, more: dict[str, Any], code: str) -> None:
    folder = PackedFolder.open(packed())
    assert not codes(deployment_findings(folder, started()))
    assert codes(deployment_findings(folder, started(**more))) == [code]


def test_all_that_does_not_fit_is_told_at_once(packed: Packed) -> None:
    folder = PackedFolder.open(packed())
    assert codes(deployment_findings(folder, started(dtype="float16", tp_size=4, lora=True))) == ["dtype", "tp-size", "lora"]


def test_load_formats_that_follow_the_index_are_taken(packed: Packed) -> None:
    folder = PackedFolder.open(packed())
    assert not any(codes(deployment_findings(folder, started(load_format=x))) for x in LOAD_FORMATS)


@pytest.mark.parametrize(("key", "value"), [("entry", "humming-layer"), ("fuse", "none")])
def test_layers_that_are_packed_for_another_reader_are_refused(packed: Packed, key: str, value: str) -> None:
    common = dict(PackedFolder.open(packed()).common)
    if key == "entry":
        common["humming"] = {**common["humming"], "entry": value}
    else:
        common["options"] = {**common["options"], "fuse": value}
    assert codes(deployment_findings(PackedFolder(packed(), common), started())) == ["entry"]


# ------------------------------------------------------------------ ranks
def test_a_process_reads_the_files_of_its_tensor_rank(packed: Packed) -> None:
    folder = PackedFolder.open(packed(EXPERTS, tp=2))
    assert [rank_of(folder, started(tp_size=2, tp_rank=r)) for r in (0, 1)] == [(0, 0), (1, 0)]
    assert rank_of(folder, started(tp_size=1)) is None


def test_shared_out_experts_are_read_by_expert_rank(packed: Packed) -> None:
    folder = PackedFolder.open(packed(EXPERTS, tp=2, ep=2))
    assert [rank_of(folder, started(tp_size=2, tp_rank=r, ep_size=2, ep_rank=r)) for r in (0, 1)] == [(0, 0), (1, 1)]
    assert codes(deployment_findings(folder, started(tp_size=2))) == ["ep-size"]


def test_whole_experts_of_one_rank_serve_any_number_of_expert_ranks(packed: Packed) -> None:
    folder = PackedFolder.open(packed(EXPERTS))
    assert rank_of(folder, started(ep_size=4, ep_rank=3)) == (0, 0)


def test_experts_that_are_cut_serve_no_expert_parallelism(packed: Packed) -> None:
    folder = PackedFolder.open(packed(EXPERTS, tp=2))
    assert codes(deployment_findings(folder, started(tp_size=2, ep_size=2))) == ["ep-size"]


def test_models_that_vllm_loads_by_code_of_their_own_are_refused() -> None:
    assert codes(model_findings("deepseek_v4")) == ["own-loader"]
    assert not any(codes(model_findings(x)) for x in ("llama", "qwen3_moe", "deepseek_v3", "gpt_oss", ""))


# ------------------------------------------------------------------ KV cache
def test_static_scales_of_a_tensor_are_read_and_no_others() -> None:
    plain = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    assert not codes(kv_cache_findings(None)) and not codes(kv_cache_findings(plain))
    for more in ({"strategy": "attn_head"}, {"dynamic": True}, {"num_bits": 4}, {"type": "int"}):
        assert codes(kv_cache_findings(plain | more)) == ["kv-cache-scheme"]
