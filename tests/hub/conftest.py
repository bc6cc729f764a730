"""A Hub of its own for the tests, and a cache of its own: the library reads both from the environment when it is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from humming_convert.hub import ranges
from tests.hub.server import Faults, Server

UNSET = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_ASSETS_CACHE", "HTTP_PROXY", "http_proxy")


def library() -> list[str]:
    return [m for m in sys.modules if m == "huggingface_hub" or m.startswith("huggingface_hub.")]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    hub, before = Server(), dict(os.environ)
    for name in UNSET:
        os.environ.pop(name, None)
    os.environ |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path_factory.mktemp("hf")),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    for name in library():
        del sys.modules[name]
    yield hub
    for name in library():
        del sys.modules[name]
    os.environ.clear()
    os.environ |= before
    hub.close()


@pytest.fixture
def hub(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server without models and faults, and an empty cache."""
    from huggingface_hub import constants

    server.models.clear()
    server.stored.clear()
    server.faults = Faults()
    server.forget()
    home = tmp_path / "hf"
    for name, folder in (("HF_HOME", ""), ("HF_HUB_CACHE", "hub"), ("HF_ASSETS_CACHE", "assets"), ("HF_TOKEN_PATH", "token")):
        monkeypatch.setattr(constants, name, str(home / folder))
    monkeypatch.setenv("HF_HOME", str(home))
    return server


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch, hub: Server) -> None:
    """Between two tries of this program and of the library."""
    from huggingface_hub import file_download
    from huggingface_hub.utils import _http

    for module in (ranges, file_download, _http):
        real = module.time
        monkeypatch.setattr(module, "time", SimpleNamespace(**{n: getattr(real, n) for n in dir(real)} | {"sleep": lambda _: None}))
