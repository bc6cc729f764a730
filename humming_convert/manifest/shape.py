"""Whether a manifest has the parts that everything which reads it takes for granted: the schema as types, so that a large one is looked at in no time.

In: a JSON object.  Out: what is wrong with it and where, None if nothing. Keys that the schema does not know are left alone.
Facts: schemas/manifest.schema.json; architecture.md 9.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal

from msgspec import Meta, ValidationError, convert, defstruct
from msgspec import field as struct_field

from humming_convert.manifest.schema import load_schema

PLAIN = "^[^/\\\\]+$"  # of file names: manifest.inside tells it by a code of its own
SCALARS = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
OPTIONAL = None  # what a part that is not there is read as; what is there may not be null


def wrong_with(manifest: Mapping[str, Any]) -> str | None:
    """One sentence: the first part that is missing or of another type, and its place."""
    kind, ranks = manifest.get("format"), "ranks" in manifest
    try:
        convert(manifest, _types(str(kind), ranks))
    except ValidationError as error:
        return str(error)
    return None


@cache
def _types(kind: str, ranks: bool) -> Any:
    """For one format, with or without manifests of ranks: the conditions of the schema are decided here."""
    schema = load_schema("manifest")
    merged = {k: v for k, v in schema.items() if k != "allOf"}
    for rule in schema["allOf"]:
        said = rule["if"]
        holds = ranks if "required" in said else kind == said["properties"]["format"]["const"]
        merged = _merged(merged, rule["then" if holds else "else"], schema["$defs"])
    return _type(merged, schema["$defs"])


def _merged(one: Mapping[str, Any], other: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Both together. A part that the other forbids is left out."""
    if "$ref" in one:
        one = defs[one["$ref"].rpartition("/")[2]]
    out = dict(one)
    for key, value in other.items():
        if key == "required":
            out[key] = [*out.get(key, ()), *value]
        elif key == "properties":
            mine = dict(out.get(key, {}))
            for name, said in value.items():
                if said is False:
                    mine.pop(name, None)
                else:
                    mine[name] = _merged(mine.get(name, {}), said, defs)
            out[key] = mine
        elif isinstance(value, Mapping):
            out[key] = _merged(out.get(key, {}), value, defs)
        else:
            out[key] = value
    if "type" in other:
        out.pop("anyOf", None)
    return out


def _type(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _type(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return Literal[schema["const"]]
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "anyOf" in schema:
        return _union(_type(x, defs) for x in schema["anyOf"])
    said = schema["type"]
    if isinstance(said, list):
        return _union(SCALARS[x] for x in said)
    if said == "array":
        items = GenericAlias(list, (_type(schema["items"], defs),))
        return Annotated[items, Meta(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))]
    if said == "object":
        return _object(schema, defs)
    pattern = schema.get("pattern")
    if said == "string":
        return Annotated[str, Meta(pattern=None if pattern == PLAIN else pattern)]
    if "minimum" in schema:
        return Annotated[SCALARS[said], Meta(ge=schema["minimum"])]
    return SCALARS[said]


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    if "properties" not in schema and "required" not in schema:
        return dict[str, Any]
    required, properties = schema.get("required", ()), schema.get("properties", {})
    rest = schema.get("additionalProperties", False)
    fields: list[Any] = []
    for name in dict.fromkeys((*required, *properties)):
        kind = _type(properties[name], defs) if name in properties else _type(rest, defs)
        fields.append((name, kind) if name in required else (name, kind, struct_field(default=OPTIONAL)))
    return defstruct("Part", fields, kw_only=True)


def _union(types: Any) -> Any:
    out: Any = None
    for i, x in enumerate(types):
        out = x if i == 0 else out | x
    return out
