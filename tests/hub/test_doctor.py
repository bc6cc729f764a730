"""`doctor` about the Hub: what is set, what is missing, and never a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming_convert.gemm.doctor import Row
from humming_convert.hub import doctor
from tests.hub.server import Server

SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


def found(**environment: str) -> dict[str, Row]:
    return {r.what: r for r in doctor.rows(environment)}


def test_a_mirror_is_named_and_nothing_is_asked(hub: Server) -> None:
    rows = found(HF_ENDPOINT=hub.url, HTTPS_PROXY="http://proxy")
    assert rows["hub endpoint"].ok and hub.url in rows["hub endpoint"].found and "through HTTPS_PROXY" in rows["hub endpoint"].found
    assert not hub.log


def test_offline_is_said(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in found()["hub endpoint"].found


def test_an_endpoint_that_is_no_address_is_a_fault(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "mirror.example")
    assert found()["hub endpoint"].ok is False and found()["hub endpoint"].advice


def test_no_token_is_no_fault(hub: Server) -> None:
    row = found()["hub token"]
    assert row.ok is None and "none" in row.found and row.advice


def test_neither_a_token_nor_a_password_is_shown(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(constants, "ENDPOINT", f"https://user:{SECRET}@mirror.example:8443/hub")
    rows = found(HF_TOKEN=SECRET, HF_ENDPOINT="set")
    assert rows["hub token"].ok and "HF_TOKEN" in rows["hub token"].found
    assert "https://mirror.example:8443/hub" in rows["hub endpoint"].found
    assert not any(SECRET in str(r.as_dict()) or SECRET[:8] in str(r.as_dict()) for r in rows.values())


@pytest.mark.parametrize(("version", "ok", "says"), [("0.36.2", False, "older"), ("1.0.1", True, "tested"), ("2.11.0", True, "newer")])
def test_the_version_is_held_against_what_is_supported(
    hub: Server, monkeypatch: pytest.MonkeyPatch, version: str, ok: bool, says: str
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "__version__", version)
    row = found()["hub"]
    assert row.ok is ok and version in row.found and says in row.found


def test_the_oldest_version_is_the_one_that_the_package_asks_for() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert f'"huggingface-hub>={doctor.OLDEST[0]}.{doctor.OLDEST[1]}"' in text


def test_a_cache_that_cannot_be_written_is_a_fault(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    row = found()["hub cache"]
    assert row.ok is False and "HF_HOME" in str(row.advice)
