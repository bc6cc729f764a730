"""The command line as a new user meets it: exit codes, one JSON document, messages that say what to do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.samples import sample

CLI = [sys.executable, "-c", "from humming_convert.cli.main import run; run()"]


def call(*arguments: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env={**os.environ, "NO_COLOR": "1", **env}, timeout=120
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample("gptq-4bit-v1-sym").write(tmp_path_factory.mktemp("models"))


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_help_names_every_verb() -> None:
    out = call("--help").stdout
    assert all(verb in out for verb in ("convert", "inspect", "plan", "verify", "targets", "formats", "demo", "schema"))


def test_converting_is_the_default_verb_and_the_folder_names_itself(model: Path, tmp_path: Path) -> None:
    done = call(model, "--target", "h100", "--act", "fp8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [f"{model.name}-humming-sm90-fp8"]
    assert "proof" in done.stdout


def test_json_is_one_document_on_stdout(model: Path, tmp_path: Path) -> None:
    done = call(model, "--standard", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0
    assert document(done)["status"] == "done"
    assert all(json.loads(line)["event"] for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "sm91"], "sm90"),
        (["--target", "sm90", "--act", "fp7"], "fp8"),
        (["--target", "sm90", "--act", "bf16", "--dtype", "fp16"], "contradict"),
        (["--target", "sm75"], "give --dtype fp16"),
        (["--target", "sm75", "--act", "bf16"], "give --act fp16"),
        (["--target", "sm90", "--address", "a:1"], "--engine ray"),
        (["--target", "sm90", "--max-memory", "1"], "MB or more"),
        (["--target", "sm90", "--standard"], "exclude each other"),
        ([], "--target"),
        (["--target", "sm90", "--frobnicate"], "frobnicate"),
        (["--target", "sm90", "--shard-size", "many"], "5GB"),
        (["--target", "sm90", "--include", "("], "regular expression"),
        (["--target", "sm90", "--cuda-compiler-version", "new"], "13.0"),
    ],
)
def test_a_request_that_makes_no_sense_is_a_usage_error(model: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    model_dtype = ["--dtype", "bf16"] if arguments == ["--target", "sm75"] else []
    done = call(model, *arguments, *model_dtype, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    done = call(tmp_path / "nowhere", "--target", "sm90")
    assert done.returncode == 2
    assert "no such folder" in done.stderr


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call(tmp_path / "empty", "--target", "sm90", "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert any(f["severity"] == "error" for f in document(done)["findings"])
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_a_dense_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    from dataclasses import replace

    made = sample("gptq-4bit-v1-sym")
    dense = replace(
        made,
        name="dense",
        config={k: v for k, v in made.config.items() if k != "quantization_config"},
        tensors={k: v for k, v in made.tensors.items() if k.rpartition(".")[2] == "weight"},
    )
    done = call(dense.write(tmp_path), "--target", "sm90", cwd=tmp_path)
    assert done.returncode == 3
    assert "nothing-quantized" in done.stderr


def test_an_illegal_activation_lists_the_legal_ones_by_layer(tmp_path: Path) -> None:
    model = sample("nvfp4-modelopt").write(tmp_path)
    done = call(model, "--target", "sm90", "--act", "fp8", "--json", cwd=tmp_path)
    assert done.returncode == 3
    errors = [f for f in document(done)["findings"] if f["severity"] == "error"]
    assert len(errors) > 3
    assert all(f["layer"] and "bf16" in f["message"] for f in errors)


def test_plan_ends_as_convert_would_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    done = call("plan", model, "--target", "sm90", "--act", "bf16", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert document(done)["fingerprint"].startswith("xxh3:")
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_is_the_same_every_time(model: Path, tmp_path: Path) -> None:
    seen = {
        document(call("plan", model, "--target", "sm90", "--act", "bf16", "--json", PYTHONHASHSEED=seed))["fingerprint"]
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_verify_ends_with_4_on_a_damaged_folder(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call(model, "--target", "sm90", "--out", out).returncode == 0
    assert call("verify", out, "--source", model).returncode == 0
    path = next(out.glob("model-packed-*"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    done = call("verify", out, "--json")
    assert done.returncode == 4
    assert any(f["severity"] == "error" and f["tensor"] for f in document(done)["findings"])


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_a_folder_that_goes_on(model: Path, tmp_path: Path, sent: signal.Signals, code: int) -> None:
    """The signal arrives while the first file is written; a slow write stands in for a large model."""
    slow = (
        "import time, humming_convert.engine.output as o\n"
        "real = o.OutputWriter.write\n"
        "def write(self, data, offset):\n    print('writing', flush=True); time.sleep(0.2); real(self, data, offset)\n"
        "o.OutputWriter.write = write\n"
        "from humming_convert.cli.main import run; run()"
    )
    command = [sys.executable, "-c", slow, str(model), "--target", "sm90", "--act", "bf16", "--out", str(tmp_path / "out"), "-q"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert "writing" in running.stdout.readline()  # two workers may print at once
    time.sleep(0.1)
    running.send_signal(sent)
    _, error = running.communicate(timeout=60)
    assert running.returncode == code, error
    assert "Traceback" not in error and "goes on where it stopped" in error
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    assert call(model, "--target", "sm90", "--act", "bf16", "--out", tmp_path / "out").returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["manifest", "plan", "findings"])
def test_schemas_are_printed(name: str) -> None:
    assert "$schema" in document(call("schema", name))


def test_tables_are_printed() -> None:
    assert "sm90" in call("targets").stdout
    assert "GPTQ" in call("formats").stdout
    assert document(call("targets", "--json"))["targets"]


def test_findings_of_several_targets_stand_together_each_once() -> None:
    from humming_convert.cli.say import joined

    assert joined([[{"code": "a"}, {"code": "b"}], [{"code": "b"}, {"code": "c"}], []]) == [{"code": "a"}, {"code": "b"}, {"code": "c"}]


@pytest.mark.parametrize("verb", ["verify", "doctor", "bench", "tune", "kernels build", "kernels list", "kernels clean", "push", "recheck"])
def test_a_folder_that_is_not_there_is_a_usage_error_that_says_what_to_give(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    more = {"push": ["org/name"], "recheck": ["--humming-version", "0.1.19"]}.get(verb, [])
    for name, says in (("gone", "is not there"), ("file", "is a file")):
        done = call(*verb.split(), tmp_path / name, *more)
        assert done.returncode == 2 and says in done.stderr and "that `convert` wrote" in done.stderr


def test_the_memory_that_a_refusal_asks_for_is_enough(model: Path, tmp_path: Path) -> None:
    done = call(model, "--target", "sm90", "--out", "out", "--max-memory", "1MB", cwd=tmp_path)
    assert done.returncode == 2 and list(tmp_path.iterdir()) == []
    enough = re.search(r"give (\d+ MB)", done.stderr)
    assert enough is not None
    assert call(model, "--target", "sm90", "--out", "out", "--max-memory", enough[1], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("dtype", [[], ["--dtype", "bf16"]])
@pytest.mark.parametrize("act", [[], ["--act", "bf16"]])
def test_what_a_usage_error_advises_is_not_refused_next(model: Path, tmp_path: Path, dtype: list[str], act: list[str]) -> None:
    """bfloat16 on a GPU that has none: the option that asked for it is the one to change."""
    given = dict([dtype] if dtype else []) | dict([act] if act else [])
    done = call("plan", model, "--target", "sm75", *(x for pair in given.items() for x in pair))
    if given:
        assert done.returncode == 2
        advised = dict.fromkeys(re.findall(r"(--act|--dtype) fp16", done.stderr), "fp16")
        assert advised.keys() == given.keys()
        done = call("plan", model, "--target", "sm75", *(x for pair in (given | advised).items() for x in pair))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("verfy", "verify"),
        ("Verify", "verify"),
        ("insepct", "inspect"),
        ("kernel", "kernels"),
        ("target", "targets"),
        ("docter", "doctor"),
        ("plann", "plan"),
    ],
)
def test_a_misspelt_verb_is_told_the_nearest_one(word: str, verb: str, tmp_path: Path) -> None:
    for more in (["out"], ["out", "--json"], []):
        done = call(word, *more, cwd=tmp_path)
        assert done.returncode == 2
        assert f"humming-convert {verb}" in done.stdout + done.stderr and "extra argument" not in done.stderr


def test_a_word_that_is_near_to_no_verb_is_told_all_of_them(tmp_path: Path) -> None:
    done = call("frobnicate", "out", cwd=tmp_path)
    assert done.returncode == 2 and "recheck" in done.stderr


def test_a_folder_that_is_called_like_a_verb_is_a_folder(model: Path, tmp_path: Path) -> None:
    (tmp_path / "verfy").symlink_to(model)
    assert call("verfy", "--target", "sm90", "--out", "out", cwd=tmp_path).returncode == 0
    (tmp_path / "gone").symlink_to("nowhere")
    assert "no such folder" in call("gone", "--target", "sm90", cwd=tmp_path).stderr


@pytest.mark.parametrize("verb", [["convert", "--target", "sm90"], ["plan", "--target", "sm90"], ["inspect"]])
@pytest.mark.parametrize("name", ["model/config.json", "config.json", "a/b/config.json"])
def test_a_file_is_told_to_be_one_and_nothing_else(verb: list[str], name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    done = call(verb[0], name, *verb[1:], cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("config.json is a file") == 1 and "is a folder" not in done.stderr and "hub-or-folder" not in done.stderr
