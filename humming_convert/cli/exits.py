"""Exit codes, and how an exception becomes one. Facts: architecture.md 9.3."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from humming_convert.findings import Finding

DONE, BUG, USAGE, REFUSED, CHECK_FAILED, ENVIRONMENT, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143

REMEDIES: dict[int, str] = {
    errno.ENOSPC: "free some space and run the same command again: it goes on where it stopped",
    errno.EDQUOT: "the quota is used up; free some space and run the same command again",
    errno.EFBIG: "the file system or a limit allows no larger file; a smaller --shard-size helps",
    errno.EACCES: "the user may not read or write this; change the permissions, or name another place",
    errno.EROFS: "the file system is read-only; name a place on another one",
    errno.EIO: "the device failed; check it before another try",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
"""errno -> what to do."""


UNREADABLE = "file-unreadable"
"""Code of a finding: the system gave an error for a file that is there."""
CONSEQUENCES = frozenset({UNREADABLE, "push-folder"})


def code_of(findings: Iterable[Finding], otherwise: int) -> int:
    """Of a run that ended with these. What could not be read is no fault of the checkpoint, and says nothing of it; damage that was found stays damage."""
    codes = {f.code for f in findings if f.severity == "error"}
    unread = UNREADABLE in codes and (otherwise == REFUSED or codes <= CONSEQUENCES)
    return ENVIRONMENT if unread else otherwise


class Terminated(BaseException):
    """SIGTERM arrived."""
