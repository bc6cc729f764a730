"""What a repository of the Hub holds at a revision.

In: a repository.  Out: its files with sizes and checksums, and the output manifest that is there; None where there is nothing.
Facts: huggingface_hub 1.0 to 2.4: model_info with files_metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert.hub.failures import told
from humming_convert.hub.listing import LIBRARY, TIMEOUT, HubFile, files_of
from humming_convert.hub.names import HubName


class Remote(Struct, frozen=True, kw_only=True):
    """A repository at a revision. `files`: by path."""

    name: HubName
    commit: str
    private: bool
    files: Mapping[str, HubFile]


def look(name: HubName) -> Remote | None:
    """None if there is no such repository or no such revision, as far as this token can see."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    with told(name, pushing=True):
        try:
            info = HfApi(library_name=LIBRARY).model_info(name.repo, revision=name.revision, files_metadata=True, timeout=TIMEOUT)
        except GatedRepoError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return None
    return Remote(name=name, commit=str(info.sha), private=bool(info.private), files=files_of(info))


def remote_json(remote: Remote, path: str) -> dict[str, Any]:
    """A JSON object of the repository; {} if the file is not there or holds something else."""
    from huggingface_hub import hf_hub_download

    if path not in remote.files:
        return {}
    with told(HubName(remote.name.repo, remote.commit), path, pushing=True):
        local = hf_hub_download(remote.name.repo, path, revision=remote.commit, library_name=LIBRARY)
    try:
        document = json.loads(Path(local).read_bytes())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
