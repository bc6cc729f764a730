"""Exit codes, and how an exception becomes one. Facts: architecture.md 9.3."""

from __future__ import annotations

import errno

DONE, BUG, USAGE, REFUSED, CHECK_FAILED, ENVIRONMENT, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143

REMEDIES: dict[int, str] = {
    errno.ENOSPC: "free some space and run the same command again: it goes on where it stopped",
    errno.EDQUOT: "the quota is used up; free some space and run the same command again",
    errno.EFBIG: "the file system or a limit allows no larger file; a smaller --shard-size helps",
    errno.EACCES: "the user may not read or write this; choose another --out, or change the permissions",
    errno.EROFS: "the file system is read-only; choose another --out",
    errno.EIO: "the device failed; check it before another try",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
"""errno -> what to do."""


class Terminated(BaseException):
    """SIGTERM arrived."""
