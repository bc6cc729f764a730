"""Hub ids: `org/name`, `org/name@revision`; names of branches and folders that a repository can have.

In: what a user gave as MODEL, --branch or --subfolder.  Out: a HubName, or None where it cannot be one; what is wrong with a name.
A folder wins over a Hub id of the same spelling.
Facts: architecture.md 9.1; git-check-ref-format(1).
"""

from __future__ import annotations

import re

from msgspec import Struct

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_][A-Za-z0-9._/-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(Struct, frozen=True):
    """`repo`: `org/name`.  `revision`: a branch, a tag or a commit; None: the default branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


# git-check-ref-format(1), in its order; of a name as it is given, which is a branch
_NO_BRANCH: tuple[tuple[str, str], ...] = (
    (r"", "it is empty"),
    (r"(.*/)?\..*", "a part of it begins with a dot"),
    (r".*\.lock(/.*)?", "a part of it ends with .lock"),
    (r".*\.\..*", "it has two dots in a row"),
    (r".*[\x00-\x1f\x7f].*", "it has a control character"),
    (r".* .*", "it has a space"),
    (r".*[~^:?*\[\\].*", "it has one of ~ ^ : ? * [ \\"),
    (r"/.*|.*/|.*//.*", "a part of it is empty"),
    (r".*\.", "it ends with a dot"),
    (r".*@\{.*", "it has @{"),
    (r"@|HEAD", "it stands for the commit that is checked out"),
    (r"-.*", "it begins with a dash"),
    (r".*[\ud800-\udfff].*", "it is no UTF-8"),
)
_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*")


def branch_fault(name: str) -> str | None:
    """Why git takes no branch of this name; None if it does (`git check-ref-format --branch`)."""
    return next((why for pattern, why in _NO_BRANCH if re.fullmatch(pattern, name, re.S)), None)


def folder_fault(path: str) -> str | None:
    """Why `path` is no folder that is written; None if it is. Narrower than git, which takes spaces and `-x`."""
    if not path:
        return "it is empty"
    return None if _FOLDER.fullmatch(path) else "it has parts of letters, digits, _ - and ., which begin with a letter, a digit or _"


def hub_name(text: str) -> HubName | None:
    """None for what has no organisation, more than two parts, or characters that no id has."""
    found = _ID.fullmatch(text)
    return HubName(found[1], found[2]) if found else None
