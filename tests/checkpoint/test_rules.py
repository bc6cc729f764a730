"""Each rule of a checkpoint, one test: the smallest folder that breaks it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from humming_convert.checkpoint.files import LIMIT
from humming_convert.checkpoint.rules import RULES
from tests.checkpoint.making import CONFIG, ONE, entry, folder, framed, only, opened, refused, weights

TWO = {"a.weight": ("F16", (2,)), "b.weight": ("F16", (2,))}


def test_every_rule_has_one_number_one_code_and_one_test() -> None:
    assert [r.number for r in RULES] == list(range(1, len(RULES) + 1))
    assert len({r.code for r in RULES}) == len(RULES)
    for rule in RULES:
        assert f"test_rule_{rule.code.replace('-', '_')}" in globals(), rule.code


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "dangling", "device"])
def test_rule_file_kind(tmp_path: Path, kind: str) -> None:
    path = folder(tmp_path, model=None) / "model.safetensors"
    {
        "directory": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "loop": lambda: path.symlink_to(path.name),
        "dangling": lambda: path.symlink_to("nowhere"),
        "device": lambda: path.symlink_to("/dev/zero"),
    }[kind]()
    assert only(tmp_path, "file-kind").file == "model.safetensors"


def test_rule_file_unreadable(tmp_path: Path) -> None:
    folder(tmp_path, model=None)
    (tmp_path / "model.safetensors").symlink_to("config.json/inside")  # no permission bits: they do not bind root
    assert only(tmp_path, "file-unreadable").file == "model.safetensors"


def test_rule_json_limit(tmp_path: Path) -> None:
    folder(tmp_path)
    os.truncate(tmp_path / "config.json", LIMIT + 1)
    assert only(tmp_path, "json-limit").file == "config.json"


@pytest.mark.parametrize("text", [b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}'])
def test_rule_json_encoding(tmp_path: Path, text: bytes) -> None:
    folder(tmp_path, {"config.json": text})
    assert refused(tmp_path, "json-encoding").file == "config.json"


@pytest.mark.parametrize("depth", [65, 100_000])
def test_rule_json_deep(tmp_path: Path, depth: int) -> None:
    folder(tmp_path, {"config.json": '{"a":' + "[" * depth + "]" * depth + "}"})
    assert only(tmp_path, "json-deep").file == "config.json"


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1}}', "{'a': 1}", '{"a": 01}', '{"a": 1,}', '{"a": "\n"}', '{"a": ' + "1" * 5000 + "}", "\ufeff{}"]
)
def test_rule_json_invalid(tmp_path: Path, text: str) -> None:
    folder(tmp_path, {"config.json": text})
    assert only(tmp_path, "json-invalid").file == "config.json"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_rule_json_constant(tmp_path: Path, text: str) -> None:
    folder(tmp_path, {"config.json": f'{{"dtype": "float16", "deep": [{{"a": {text}}}]}}'})
    assert text in only(tmp_path, "json-constant").message


def test_rule_json_duplicate_key(tmp_path: Path) -> None:
    folder(tmp_path, {"config.json": '{"dtype": "float16", "deep": [{"bits": 4, "bits": 8}]}'})
    assert "'bits'" in only(tmp_path, "json-duplicate-key").message


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null"])
def test_rule_json_not_object(tmp_path: Path, text: str) -> None:
    folder(tmp_path, {"config.json": text})
    assert only(tmp_path, "json-not-object").file == "config.json"


@pytest.mark.parametrize("size", [0, 7])
def test_rule_header_short(tmp_path: Path, size: int) -> None:
    folder(tmp_path, model=ONE[:size])
    assert only(tmp_path, "header-short").file == "model.safetensors"


def test_rule_header_length(tmp_path: Path) -> None:
    folder(tmp_path, model=ONE[:20])
    assert only(tmp_path, "header-length").file == "model.safetensors"


def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path: Path) -> None:
    folder(tmp_path, model=b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "git lfs pull" in str(only(tmp_path, "header-length"))


def test_rule_header_limit(tmp_path: Path) -> None:
    folder(tmp_path, model=(2**60).to_bytes(8, "little") + ONE[8:])
    assert only(tmp_path, "header-limit").file == "model.safetensors"


@pytest.mark.parametrize("header", [b"", b"[]", b"\0" * 16, b"[" * 100_000])
def test_rule_header_start(tmp_path: Path, header: bytes) -> None:
    folder(tmp_path, model=framed(header))
    assert only(tmp_path, "header-start").file == "model.safetensors"


@pytest.mark.parametrize("metadata", [[], "x", {"a": 1}, {"a": None}, {"a": {"b": "c"}}])
def test_rule_header_metadata(tmp_path: Path, metadata: object) -> None:
    folder(tmp_path, model=framed({"__metadata__": metadata, "a.weight": entry()}, b"1234"))
    assert only(tmp_path, "header-metadata").file == "model.safetensors"


@pytest.mark.parametrize(
    "value",
    [None, 3, "x", [], {}, ["F16", [2], [0, 4]], {"dtype": "F16", "shape": [2]}, {**entry(), "stride": [1]}],
)
def test_rule_header_entry(tmp_path: Path, value: object) -> None:
    folder(tmp_path, model=framed({"a.weight": value}, b"1234"))
    assert only(tmp_path, "header-entry").tensor == "a.weight"


@pytest.mark.parametrize("dtype", ["Q4", "f16", "", None, 7, ["F16"], "F8_E4M3FNUZ", "F4"])
def test_rule_header_dtype(tmp_path: Path, dtype: str) -> None:
    folder(tmp_path, model=framed({"a.weight": entry(dtype)}, b"1234"))
    assert only(tmp_path, "header-dtype").tensor == "a.weight"


@pytest.mark.parametrize(
    "shape",
    [None, 2, "2", {}, [-2], [2.0], [True, 2], ["2"], [[2]], [2**40, 2**40], [2**62, 2**62, 0], [0, 2**80], [2] + [1] * 32, [10**4000]],
)
def test_rule_header_shape(tmp_path: Path, shape: object) -> None:
    folder(tmp_path, model=framed({"a.weight": entry("F16", shape)}, b"1234"))
    assert only(tmp_path, "header-shape").tensor == "a.weight"


@pytest.mark.parametrize(
    "offsets", [None, 4, [], [0], [0, 4, 8], [4, 0], [-4, 0], [0, 4.0], [False, 4], ["0", "4"], [0, 2**63], [0, 10**4000]]
)
def test_rule_header_offsets(tmp_path: Path, offsets: object) -> None:
    folder(tmp_path, model=framed({"a.weight": {**entry(), "data_offsets": offsets}}, b"1234"))
    assert only(tmp_path, "header-offsets").tensor == "a.weight"


@pytest.mark.parametrize("dtype", ["F32", "U8"])
def test_rule_header_size(tmp_path: Path, dtype: str) -> None:
    folder(tmp_path, model=framed({"a.weight": entry(dtype)}, b"1234"))
    assert only(tmp_path, "header-size").tensor == "a.weight"


def test_rule_header_outside(tmp_path: Path) -> None:
    folder(tmp_path, model=framed({"a.weight": entry(), "b.weight": entry(begin=1000, end=1004)}, b"12345678"))
    assert refused(tmp_path, "header-outside").tensor == "b.weight"


def test_rule_file_truncated(tmp_path: Path) -> None:
    folder(tmp_path, model=weights(TWO)[:-1])
    assert only(tmp_path, "file-truncated").tensor == "b.weight"


def test_rule_header_overlap(tmp_path: Path) -> None:
    folder(tmp_path, model=framed({"a.weight": entry(), "b.weight": entry(begin=2, end=6)}, b"123456"))
    finding = only(tmp_path, "header-overlap")
    assert finding.tensor == "b.weight"
    assert "a.weight" in finding.message


def test_every_tensor_inside_another_is_named(tmp_path: Path) -> None:
    header = {"a": entry("U8", (8,), 0, 8), "b": entry("U8", (2,), 2, 4), "c": entry("U8", (4,), 4, 8)}
    folder(tmp_path, model=framed(header, b"12345678"))
    _, findings = opened(tmp_path)
    assert [(f.code, f.tensor) for f in findings] == [("header-overlap", "b"), ("header-overlap", "c")]


def test_rule_header_hole(tmp_path: Path) -> None:
    folder(tmp_path, model=framed({"a.weight": entry(), "b.weight": entry(begin=12, end=16)}, b"1" * 16))
    assert only(tmp_path, "header-hole").tensor == "b.weight"


def test_rule_file_trailing(tmp_path: Path) -> None:
    folder(tmp_path, model=ONE + b"\0")
    assert only(tmp_path, "file-trailing").file == "model.safetensors"


def test_rule_not_a_checkpoint(tmp_path: Path) -> None:
    folder(tmp_path, config=None)
    assert only(tmp_path, "not-a-checkpoint").file == "config.json"


def test_rule_no_weights(tmp_path: Path) -> None:
    folder(tmp_path, {"adapter_model.safetensors": ONE}, model=None)
    assert "merged" in str(refused(tmp_path, "no-weights"))


def test_rule_weights_pickle(tmp_path: Path) -> None:
    """The pickle would leave a file if anything opened it."""
    trace = tmp_path / "opened"
    folder(tmp_path / "m", {"pytorch_model.bin": f"cos\nsystem\n(S'touch {trace}'\ntR."}, model=None)
    assert only(tmp_path / "m", "weights-pickle").file == "pytorch_model.bin"
    assert not trace.exists()


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": null}'])
def test_rule_index_map(tmp_path: Path, index: str) -> None:
    folder(tmp_path, index=index)
    assert only(tmp_path, "index-map").file == "model.safetensors.index.json"


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/dev/zero", "sub/x.safetensors", "..", "x.bin", ".safetensors", 7, None, ["x.safetensors"], "a\0.safetensors"],
)
def test_rule_index_file_name(tmp_path: Path, file: object) -> None:
    (tmp_path / "x.safetensors").write_bytes(ONE)
    folder(tmp_path / "m", {"y.safetensors": ONE}, index={"b.weight": file, "a.weight": "y.safetensors"})
    assert only(tmp_path / "m", "index-file-name").tensor == "b.weight"


def test_rule_shard_missing(tmp_path: Path) -> None:
    folder(tmp_path, {"x.safetensors": ONE}, index={"a.weight": "x.safetensors", "b.weight": "y.safetensors"})
    finding = only(tmp_path, "shard-missing")
    assert (finding.file, finding.tensor, finding.count) == ("y.safetensors", "b.weight", 1)


def test_a_gap_among_numbered_shards_is_seen_without_an_index(tmp_path: Path) -> None:
    folder(tmp_path, {f"model-0000{i}-of-00003.safetensors": weights({f"{i}.weight": ("F16", (2,))}) for i in (1, 3)}, model=None)
    assert only(tmp_path, "shard-missing").file == "model-00002-of-00003.safetensors"


def test_rule_tensor_missing(tmp_path: Path) -> None:
    files = {"x.safetensors": ONE, "y.safetensors": weights({"b.weight": ("F16", (2,))})}
    folder(tmp_path, files, index={"a.weight": "y.safetensors", "b.weight": "y.safetensors", "c.weight": "x.safetensors"})
    _, findings = opened(tmp_path)
    assert {(f.tensor, f.file) for f in findings.errors} == {("a.weight", "y.safetensors"), ("c.weight", "x.safetensors")}
    assert "it stands in x.safetensors" in refused(tmp_path, "tensor-missing").message


def test_rule_tensor_twice(tmp_path: Path) -> None:
    """The file that the index names is read, and no other."""
    folder(
        tmp_path, {"x.safetensors": ONE, "y.safetensors": weights(TWO)}, index={"a.weight": "y.safetensors", "b.weight": "y.safetensors"}
    )
    checkpoint, findings = opened(tmp_path)
    assert checkpoint is not None
    assert [f.code for f in findings] == ["weights-not-read"]  # x is not named at all
    folder(
        tmp_path,
        {"x.safetensors": weights({**TWO, "c.weight": ("F16", (2,))})},
        index={"a.weight": "y.safetensors", "b.weight": "x.safetensors", "c.weight": "x.safetensors"},
    )
    checkpoint, findings = opened(tmp_path)
    assert checkpoint is not None
    assert checkpoint.tensors["a.weight"].file.name == "y.safetensors"
    assert checkpoint.tensors["b.weight"].file.name == "x.safetensors"
    assert [(f.severity, f.code, f.tensor, f.count) for f in findings] == [
        ("warning", "tensor-twice", "a.weight", 1),
        ("warning", "tensor-twice", "b.weight", 1),
    ]


def test_rule_tensor_ambiguous(tmp_path: Path) -> None:
    folder(tmp_path, {"x.safetensors": ONE, "y.safetensors": weights(TWO)}, model=None)
    finding = only(tmp_path, "tensor-ambiguous")
    assert finding.tensor == "a.weight"
    assert "x.safetensors" in finding.message
    assert "y.safetensors" in finding.message


def test_rule_tensor_unlisted(tmp_path: Path) -> None:
    folder(tmp_path, {"x.safetensors": weights(TWO)}, index={"a.weight": "x.safetensors"})
    finding = only(tmp_path, "tensor-unlisted")
    assert (finding.severity, finding.tensor, finding.count) == ("warning", "b.weight", 1)
    checkpoint, _ = opened(tmp_path)
    assert checkpoint is not None
    assert [*checkpoint.tensors] == ["a.weight"]


@pytest.mark.parametrize("where", ["quantization_config", "compression_config"])
def test_rule_config_section(tmp_path: Path, where: str) -> None:
    folder(tmp_path, config={**CONFIG, where: ["gptq"]})
    assert where in only(tmp_path, "config-section").message


@pytest.mark.parametrize("config", [{}, {"dtype": "posit16"}, {"torch_dtype": 16}])
def test_rule_dtype_unknown(tmp_path: Path, config: dict[str, object]) -> None:
    folder(tmp_path, config=config)
    assert only(tmp_path, "dtype-unknown").severity == "warning"
    checkpoint, _ = opened(tmp_path)
    assert checkpoint is not None
    assert checkpoint.dtype == "F16"  # that of a.weight


def test_rule_dtype_contradiction(tmp_path: Path) -> None:
    folder(tmp_path / "a", config={"dtype": "float16", "torch_dtype": "bfloat16"})
    assert only(tmp_path / "a", "dtype-contradiction").severity == "warning"
    checkpoint, _ = opened(tmp_path / "a")
    assert checkpoint is not None and checkpoint.dtype == "F16"
    folder(tmp_path / "b", config={"dtype": "float16", "torch_dtype": "torch.half"})
    assert not list(opened(tmp_path / "b")[1])


def test_rule_dtype_undecided(tmp_path: Path) -> None:
    folder(tmp_path, config={}, model=weights({"a.weight": ("F16", (2,)), "b.weight": ("BF16", (2,))}))
    assert refused(tmp_path, "dtype-undecided").severity == "error"


def test_rule_file_not_copied(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "tokenizer.json").symlink_to("nowhere")
    assert only(tmp_path, "file-not-copied").file == "tokenizer.json"


def test_rule_file_name(tmp_path: Path) -> None:
    """Without an index such a file would be left out in silence."""
    folder(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")).write_bytes(ONE)
    finding = only(tmp_path, "file-name")
    json.dumps(finding.as_dict(), ensure_ascii=False).encode()


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    files = {
        "x.safetensors": ONE + b"!",
        "y.safetensors": framed({"b.weight": entry("Q4"), "c.weight": entry(shape=(-1,), begin=4, end=8)}, b"12345678"),
        "hf_quant_config.json": "{",
    }
    index = {"a.weight": "x.safetensors", "b.weight": "y.safetensors", "d.weight": "z.safetensors"}
    folder(tmp_path, files, index=index, config='{"a": NaN}')
    _, findings = opened(tmp_path)
    assert {f.code for f in findings.errors} == {
        "json-constant",
        "json-invalid",
        "file-trailing",
        "header-dtype",
        "header-shape",
        "shard-missing",
    }
