"""Digests and canonical JSON."""

from __future__ import annotations

import pytest

from humming_convert.manifest.digests import canonical, digest, digest_stream, manifest_digest


def test_the_digest_of_nothing_is_that_of_xxh3_128_with_seed_0() -> None:
    assert digest(b"") == "xxh3:99aa06d3014798d86001c324468d497f"


def test_pieces_give_the_digest_of_the_whole() -> None:
    assert digest_stream([b"ab", b"", b"c"]) == digest(b"abc")


def test_canonical_json_has_sorted_keys_no_spaces_and_plain_utf8() -> None:
    assert canonical({"b": [1, 2.5], "a": "ü"}) == '{"a":"ü","b":[1,2.5]}'.encode()


def test_infinity_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": float("inf")})


def test_the_manifest_digest_leaves_itself_out() -> None:
    assert manifest_digest({"a": 1}) == manifest_digest({"a": 1, "manifest_digest": "anything"}) == digest(b'{"a":1}')
