"""`doctor`: what using the Hub needs on this machine. The Hub is not asked, and no token is shown.

Out: rows of (what, found or not, details, advice).
Facts: huggingface_hub's environment variables; the versions that the tests were run with.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from humming_convert.gemm.doctor import Row

OLDEST, NEWEST = (1, 0), (2, 4)  # huggingface_hub: the oldest that is asked for (pyproject.toml), the newest that was tested
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
INSTALL = f"python -m pip install 'huggingface-hub>={OLDEST[0]}.{OLDEST[1]}'"


def rows(environment: Mapping[str, str] = os.environ) -> list[Row]:
    try:
        library = importlib.import_module("huggingface_hub")
    except ImportError as error:
        return [Row("hub", False, f"huggingface_hub cannot be imported ({error}); folders are converted all the same", INSTALL)]
    return [
        _version(str(library.__version__)),
        *_settings(importlib.import_module("huggingface_hub.constants"), environment),
        _token(library, environment),
    ]


def _version(version: str) -> Row:
    number = tuple(int(x) for x in version.split(".")[:2])
    tested = f"tested up to {NEWEST[0]}.{NEWEST[1]}"
    if number < OLDEST:
        return Row("hub", False, f"huggingface_hub {version} is older than {OLDEST[0]}.{OLDEST[1]}", INSTALL)
    return Row("hub", True, f"huggingface_hub {version}, " + (tested if number <= NEWEST else f"newer than what was tested ({tested})"))


def _settings(constants: Any, environment: Mapping[str, str]) -> Iterator[Row]:
    parts = urlsplit(str(constants.ENDPOINT))
    proxies = [name for name in PROXIES if environment.get(name)]
    through = f"; through {', '.join(proxies)}" if proxies else ""
    own = "HF_ENDPOINT" if environment.get("HF_ENDPOINT") else "the library's own"
    # an endpoint may carry a user and a password
    where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield Row(
            "hub endpoint", False, "HF_ENDPOINT is no http or https address", "set it to one such as https://mirror.example, or unset it"
        )
    elif constants.HF_HUB_OFFLINE:
        yield Row("hub endpoint", True, "not used: HF_HUB_OFFLINE is set, and only the cache is read")
    else:
        yield Row("hub endpoint", True, f"{where} ({own}){through}; not asked")
    yield _cache(Path(constants.HF_HUB_CACHE))


def _cache(folder: Path) -> Row:
    above = next(p for p in (folder, *folder.parents) if p.exists())
    writable = os.access(above, os.W_OK)
    models = len(list(folder.glob("models--*"))) if folder.is_dir() else 0
    advice = None if writable else "set HF_HOME to a folder that you may write to"
    return Row("hub cache", writable, f"{folder}: {models} model{'s' * (models != 1)}", advice)


def _token(library: Any, environment: Mapping[str, str]) -> Row:
    if library.get_token() is None:
        return Row("hub token", None, "none; only gated and private models, and push, need one", "hf auth login, or set HF_TOKEN")
    named = next((name for name in TOKENS if environment.get(name)), None)
    return Row("hub token", True, f"there, from {named or 'the file of `hf auth login`'}; not tried")
