"""A manifest without a part, or with one of another type, is found before anything trips over it; the types are those of the schema."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from humming_convert import api
from humming_convert.manifest.schema import load_schema
from humming_convert.manifest.shape import wrong_with
from tests.report.samples import even
from tests.samples import sample


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One of every kind: packed, standard, the common part of several ranks, one rank's."""
    root = tmp_path_factory.mktemp("shapes")
    model = sample("gptq-4bit-v2-asym").write(root)
    api.convert(api.plan(model, target="sm90", act="fp8"), out=root / "packed")
    api.convert(api.plan(model, standard=True), out=root / "standard")
    api.convert(api.plan(even(root), target="sm90", tp=2), out=root / "ranks")
    paths = {name: root / name / "humming_manifest.json" for name in ("packed", "standard", "ranks")}
    paths["rank"] = root / "ranks" / "humming_manifest-tp1of2.json"
    return {name: json.loads(path.read_text()) for name, path in paths.items()}


def places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every part; of a list its first entry."""
    each = body.items() if isinstance(body, dict) else list(enumerate(body))[:1] if isinstance(body, list) else ()
    for key, value in each:
        yield (*at, key)
        yield from places(value, (*at, key))


def changed(manifest: dict[str, Any], at: tuple[Any, ...], value: Any = ...) -> dict[str, Any]:
    out = copy.deepcopy(manifest)
    body = out
    for key in at[:-1]:
        body = body[key]
    if value is ...:
        del body[at[-1]]
    else:
        body[at[-1]] = value
    return out


@pytest.mark.parametrize("kind", ["packed", "standard", "ranks", "rank"])
def test_what_the_schema_refuses_is_found(manifests: dict[str, dict[str, Any]], kind: str) -> None:
    """Each part is left out, and replaced by values of every type."""
    validator, manifest = jsonschema.Draft202012Validator(load_schema("manifest")), manifests[kind]
    assert wrong_with(manifest) is None
    needed = load_schema("manifest")["$defs"]["layer"]["properties"]["flags"]["required"]
    refused = 0
    for at in places(manifest):
        for value in (..., None, "text", 7, True, [], {}):
            other = changed(manifest, at, value)
            bad, found = not validator.is_valid(other), wrong_with(other)
            if at[-1] in ("format", "ranks") or (value is ... and isinstance(at[-1], int)):
                continue  # another kind of manifest
            if "flags" in at[:-1] and at[-1] not in needed:
                continue  # flags that a version of the library has beside those that are read
            # rules of content alone, which break no reader: lengths of texts, patterns of file names, lists of distinct entries
            if bad and value not in ("", []) and at[-1] not in ("name", "file"):
                assert found is not None, (at, value)
            assert bad or found is None, (at, value, found)
            refused += found is not None
    assert refused > 100


def test_unknown_keys_are_left_alone(manifests: dict[str, dict[str, Any]]) -> None:
    assert wrong_with({**manifests["packed"], "news": 1}) is None


def test_the_place_is_named(manifests: dict[str, dict[str, Any]]) -> None:
    found = wrong_with(changed(manifests["packed"], ("layers", 0, "shape", "n"), "7"))
    assert found is not None and "$.layers[0].shape.n" in found
