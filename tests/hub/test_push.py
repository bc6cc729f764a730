"""A finished folder is published whole, by one commit, where it belongs, or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from humming_convert import Refused, api
from humming_convert.engine.finish import CheckFailed
from humming_convert.gemm.rewrite import rewrite, set_file
from humming_convert.hub.failures import HubError
from humming_convert.manifest.tuning import TunedDevice, TuningFile, encode, file_name
from tests.hub.models import deep
from tests.hub.server import TOKEN, Server

BRANCH = "packed-sm90-bf16-tp1-hk0.1.20"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs of one model, by name."""
    home = tmp_path_factory.mktemp("made")
    model = deep(home, layers=2)
    wanted: dict[str, dict[str, Any]] = {
        "bf16": {"target": "sm90", "act": "bf16"},
        "fp8": {"target": "sm90", "act": "fp8"},
        "standard": {"standard": True},
    }
    for name, options in wanted.items():
        api.convert(api.plan(model, **options), out=home / name)
    return {name: home / name for name in wanted}


@pytest.fixture
def mine(hub: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, and this user is its owner."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def held(hub: Server, repo: str, branch: str) -> dict[str, bytes]:
    """Without what belongs to the repository."""
    model = hub.models[repo]
    return {n: c for n, c in model.commits[model.branches[branch]].items() if n != ".gitattributes"}


def codes(refused: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [f.code for f in refused.value.findings]


def writes(hub: Server) -> list[str]:
    return [f"{m} {p}" for m, p in hub.log if m in ("POST", "PUT", "DELETE") and "paths-info" not in p]


def test_a_folder_becomes_one_commit_of_its_very_bytes(mine: Server, made: dict[str, Path]) -> None:
    done = api.push(made["bf16"], "org/out")
    assert held(mine, "org/out", BRANCH) == content(made["bf16"])
    model = mine.models["org/out"]
    assert done.commit == model.branches[BRANCH] and done.checked == len(content(made["bf16"]))
    assert sum(p.startswith("POST /api/models/org/out/commit") for p in writes(mine)) == 1


def test_a_tuning_file_is_published_with_the_folder(mine: Server, made: dict[str, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(made["bf16"], tmp_path / "tuned"))
    device = TunedDevice(name="a GPU", sm=90, compiler="13.0", templates="xxh3:" + "0" * 32, layers=())
    path = out / file_name("sm_90a")
    path.write_bytes(encode(TuningFile(arch="sm_90a", devices=(device,))))
    rewrite(out, lambda manifest: set_file(manifest, path))
    api.push(out, "me/tuned")
    assert held(mine, "me/tuned", BRANCH) == content(out)


def test_what_was_published_can_be_fetched_and_verifies(mine: Server, made: dict[str, Path]) -> None:
    from huggingface_hub import snapshot_download

    api.push(made["fp8"], "org/out")
    got = snapshot_download("org/out", revision="packed-sm90-fp8-tp1-hk0.1.20", ignore_patterns=[".gitattributes"])
    assert not api.verify(got).failed


def test_targets_get_branches_of_their_own_and_the_standard_form_main(mine: Server, made: dict[str, Path]) -> None:
    for name in ("standard", "bf16", "fp8"):
        api.push(made[name], "org/out")
    assert held(mine, "org/out", "main") == content(made["standard"])
    assert held(mine, "org/out", BRANCH) == content(made["bf16"])
    assert held(mine, "org/out", "packed-sm90-fp8-tp1-hk0.1.20") == content(made["fp8"])


def test_a_second_push_replaces_the_state_of_the_same_output(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["bf16"], "org/out")
    model = mine.models["org/out"]
    stale = {**model.commits[model.branches[BRANCH]], "model-packed-tp1of1-00009-of-00009.safetensors": b"old", "config.json": b"{}"}
    model.commit(stale, BRANCH)
    api.push(made["bf16"], "org/out")
    assert held(mine, "org/out", BRANCH) == content(made["bf16"])


def test_a_subfolder_leaves_the_rest_of_main_alone(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    api.push(made["bf16"], "org/out", subfolder="packed/sm90")
    there = held(mine, "org/out", "main")
    assert {n: c for n, c in there.items() if not n.startswith("packed/")} == content(made["standard"])
    assert {n: c for n, c in there.items() if n.startswith("packed/")} == {f"packed/sm90/{n}": c for n, c in content(made["bf16"]).items()}


def test_a_pull_request_leaves_its_branch_alone(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    before = mine.models["org/out"].branches["main"]
    done = api.push(made["bf16"], "org/out", subfolder="sm90", pull_request=True)
    assert mine.models["org/out"].branches["main"] == before
    assert done.url is not None and "discussions/1" in done.url
    assert "sm90/humming_manifest.json" in held(mine, "org/out", "refs/pr/1")


@pytest.mark.parametrize("private", [False, True])
def test_a_repository_that_is_made_is_private_if_asked(mine: Server, made: dict[str, Path], private: bool) -> None:
    api.push(made["bf16"], "org/out", private=private)
    assert mine.models["org/out"].private is private


# ------------------------------------------------------------------ dry run
def test_a_dry_run_lists_the_very_files_and_writes_nothing(mine: Server, made: dict[str, Path]) -> None:
    mine.add("org/out", made["standard"])
    planned = api.push(made["bf16"], "org/out", dry_run=True).document()
    assert not writes(mine)
    assert {f["path"]: f["bytes"] for f in planned["files"]} == {n: len(c) for n, c in content(made["bf16"]).items()}
    assert (planned["status"], planned["new"], planned["branch"]) == ("dry-run", [f"branch {BRANCH}"], BRANCH)
    api.push(made["bf16"], "org/out")
    assert set(held(mine, "org/out", BRANCH)) == {f["path"] for f in planned["files"]}


def test_a_dry_run_needs_no_token(hub: Server, made: dict[str, Path]) -> None:
    assert api.push(made["bf16"], "org/out", dry_run=True).document()["new"] == ["repository org/out (public)", f"branch {BRANCH}"]


def unlicensed(folder: Path) -> Path:
    """An output whose source's card names no licence."""
    model = deep(folder, layers=1)
    (model / "README.md").write_text("---\ntags: [gptq]\n---\n# Deep\n")
    api.convert(api.plan(model, target="sm90", act="bf16"), out=folder / "unlicensed")
    return folder / "unlicensed"


def test_a_dry_run_lists_also_what_would_be_refused_and_says_why(mine: Server, tmp_path: Path) -> None:
    out = unlicensed(tmp_path)
    planned = api.push(out, "org/out", dry_run=True)
    said = planned.document()
    assert planned.refused and said["status"] == "refused" and not writes(mine)
    assert [f["code"] for f in said["findings"]] == ["push-license"]
    assert {f["path"] for f in said["files"]} == content(out).keys() and said["license"] is None
    assert not api.push(out, "org/out", dry_run=True, yes=True).refused


def test_a_dry_run_that_would_be_refused_by_everything_says_all_of_it_and_deletes_nothing(mine: Server, tmp_path: Path) -> None:
    mine.add("org/out", deep(tmp_path / "other", layers=2))
    said = api.push(unlicensed(tmp_path), "org/out", branch="main", private=True, dry_run=True).document()
    assert {f["code"] for f in said["findings"]} == {"push-license", "push-private", "push-target"}
    assert said["files"] and not said["deleted"]


@pytest.mark.parametrize("option", [{"branch": "a..b"}, {"branch": ""}, {"branch": "a b"}, {"subfolder": ""}, {"subfolder": "../a"}])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_name_that_git_does_not_take_is_refused_before_anything_is_asked(
    mine: Server, option: dict[str, str], dry_run: bool, tmp_path: Path
) -> None:
    with pytest.raises(api.UsageError, match=f"--{next(iter(option))} "):
        api.push(tmp_path / "not looked at", "org/out", dry_run=dry_run, **option)  # type: ignore[arg-type]
    assert not mine.log


# ------------------------------------------------------------------ what refuses
def test_rule_push_folder(mine: Server, made: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    for name, raw in content(made["bf16"]).items():
        (folder / name).write_bytes(raw)
    (folder / "LICENSE").write_text("another text\n")
    with pytest.raises(CheckFailed) as failed:
        api.push(folder, "org/out")
    assert failed.value.findings[0].code == "push-folder"
    assert not mine.log


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("tags: [gptq]\n", "no licence"),
        ("license: other\nlicense_name: deep-research\n", "deep-research"),
        ("license: cc-by-nc-4.0\n", "cc-by-nc-4.0"),
    ],
)
def test_rule_push_license(mine: Server, tmp_path: Path, head: str, says: str) -> None:
    model = deep(tmp_path, layers=1)
    (model / "README.md").write_text(f"---\n{head}---\n# Deep\n")
    api.convert(api.plan(model, target="sm90", act="bf16"), out=tmp_path / "out")
    with pytest.raises(Refused, match=says) as refused:
        api.push(tmp_path / "out", "org/out")
    assert codes(refused) == ["push-license"] and not writes(mine)
    assert api.push(tmp_path / "out", "org/out", yes=True).commit


def test_rule_push_target(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["bf16"], "org/out", branch="packed")
    before = held(mine, "org/out", "packed")
    with pytest.raises(Refused, match=r"act bf16.*this is.*act fp8") as refused:
        api.push(made["fp8"], "org/out", branch="packed", yes=True)
    assert codes(refused) == ["push-target"]
    assert held(mine, "org/out", "packed") == before


def test_a_packed_folder_never_replaces_the_standard_form_on_main(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    with pytest.raises(Refused, match="standard form"):
        api.push(made["bf16"], "org/out", branch="main")


def test_a_repository_of_something_else_is_not_touched(mine: Server, made: dict[str, Path], tmp_path: Path) -> None:
    mine.add("org/out", deep(tmp_path, layers=1))
    with pytest.raises(Refused, match="no output of this tool") as refused:
        api.push(made["standard"], "org/out")
    assert codes(refused) == ["push-target"] and not writes(mine)


def test_a_branch_that_is_the_same_as_main_is_not_taken_for_a_new_one(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    mine.models["org/out"].branches["kept"] = mine.models["org/out"].branches["main"]
    with pytest.raises(Refused, match="standard form"):
        api.push(made["bf16"], "org/out", branch="kept")


def test_rule_push_private(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    with pytest.raises(Refused, match="public") as refused:
        api.push(made["bf16"], "org/out", private=True)
    assert codes(refused) == ["push-private"]


def test_publishing_needs_a_token(hub: Server, made: dict[str, Path]) -> None:
    with pytest.raises(HubError, match="needs a token"):
        api.push(made["bf16"], "org/out")


def test_a_token_without_the_right_is_told_so(hub: Server, made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/out", made["standard"])
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(HubError, match="denies access") as failed:
        api.push(made["bf16"], "org/out")
    assert failed.value.finding.code == "hub-denied"


# ------------------------------------------------------------------ races and cuts
@pytest.mark.parametrize("name", ["standard", "bf16"])
def test_rule_push_raced(mine: Server, made: dict[str, Path], name: str) -> None:
    """The other commit comes after the files went up and before ours."""
    branch = {"standard": "main", "bf16": BRANCH}[name]
    api.push(made[name], "org/out")
    other = {**held(mine, "org/out", branch), "notes.txt": b"of somebody else\n"}

    def race(method: str, path: str) -> None:
        if "/commit/" in path:
            mine.faults.before = lambda *_: None
            mine.models["org/out"].commit(other, branch)

    (changed := dict(other)).pop("LICENSE")
    mine.models["org/out"].commit(changed, branch)
    with mine.failing(before=race), pytest.raises(HubError, match="run the same command again") as failed:
        api.push(made[name], "org/out")
    assert failed.value.finding.code == "push-raced"
    assert held(mine, "org/out", branch) == other
    api.push(made[name], "org/out")
    assert held(mine, "org/out", branch) == content(made[name])


def test_a_new_branch_that_somebody_else_makes_first_is_a_race(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    model = mine.models["org/out"]

    def race(method: str, path: str) -> None:
        if "/branch/" in path:
            model.commit({"notes.txt": b"of somebody else\n"}, BRANCH)

    with mine.failing(before=race), pytest.raises(HubError) as failed:
        api.push(made["bf16"], "org/out")
    assert failed.value.finding.code == "push-raced"
    assert held(mine, "org/out", BRANCH) == {"notes.txt": b"of somebody else\n"}


def test_after_an_upload_that_failed_nothing_is_visible_and_the_same_command_goes_on(mine: Server, made: dict[str, Path]) -> None:
    api.push(made["standard"], "org/out")
    with mine.failing(status={r"POST .*/commit/": (500, "Failing")}), pytest.raises(HubError):
        api.push(made["bf16"], "org/out")
    assert held(mine, "org/out", "main") == content(made["standard"])
    mine.forget()
    api.push(made["bf16"], "org/out")
    assert held(mine, "org/out", BRANCH) == content(made["bf16"])
    assert not [w for w in writes(mine) if w.startswith("PUT")]


def test_rule_push_held(mine: Server, made: dict[str, Path]) -> None:
    """What the Hub says after the commit is compared with the folder."""

    def spoil(method: str, path: str) -> None:
        model = mine.models.get("org/out")
        if (
            method == "GET"
            and model is not None
            and (made_it := model.commits[model.branches.get(BRANCH, "")] if BRANCH in model.branches else None)
        ):
            made_it["LICENSE"] = made_it.get("LICENSE", b"") and b"something else\n"

    with mine.failing(before=spoil), pytest.raises(CheckFailed) as failed:
        api.push(made["bf16"], "org/out")
    assert {f.code for f in failed.value.findings} == {"push-held"}
    assert [f.file for f in failed.value.findings] == ["LICENSE"]


# ------------------------------------------------------------------ the card
def test_the_card_says_what_it_is_and_how_it_was_made(made: dict[str, Path]) -> None:
    text = (made["fp8"] / "README.md").read_text()
    head = text.split("---")[1]
    manifest = json.loads((made["fp8"] / "humming_manifest.json").read_text())
    assert all(f"\n{line}\n" in head for line in ("license: apache-2.0", "base_model_relation: quantized", "- sm90", "- humming", "- gptq"))
    assert "humming-convert deep --target sm90 --act fp8" in text
    assert "humming-kernels 0.1.20" in text and manifest["fingerprint"] in text
    assert "codes equal in" in text and "A model for tests." in text
