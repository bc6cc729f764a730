"""What huggingface_hub and the network raise, as findings that say what to do.

In: an exception of the library.  Out: a HubError.  Facts: huggingface_hub 1.0 to 2.4, errors.py; what it does not name is its HTTP status.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from humming_convert.checkpoint.reading import SourceError
from humming_convert.checkpoint.rules import broken
from humming_convert.findings import Finding
from humming_convert.hub import rules
from humming_convert.hub.names import HubName

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
LATER = "the same command goes on with what was fetched"
AGAIN = "the same command sends what is not there yet"  # of push


class HubError(SourceError):
    """The Hub did not give, or did not take, what was asked. `findings`: all of why."""

    def __init__(self, finding: Finding, *more: Finding) -> None:
        super().__init__(finding)
        self.findings = (finding, *more)


class HubNotFound(HubError):
    """There is no such model or revision: the request names something else than it means."""


@contextmanager
def told(name: HubName, file: str | None = None, *, pushing: bool = False) -> Iterator[None]:
    """Errors of the library become HubErrors about `name`, and about a file of it. pushing: no cache can help then."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    network = network_error()
    try:
        yield
    except HFValidationError as error:
        raise HubNotFound(broken(rules.NOT_FOUND, f"{name} is no Hub id: {error}", advice="give org/name or org/name@revision")) from error
    except LocalEntryNotFoundError as error:
        raise translated(error.__cause__ or error, name, file, pushing) from error
    except (network, OfflineModeIsEnabled) as error:
        raise translated(error, name, file, pushing) from error
    except OSError as error:
        if "onsistency check failed" not in str(error):
            raise
        why = f"{file or name} came incomplete, again and again"
        raise HubError(broken(rules.DAMAGED, why, file=file, advice=f"look at the connection; {LATER}")) from error


def network_error() -> type[Exception]:
    """The base of all errors of httpx or httpx2, whichever the library stands on."""
    from huggingface_hub.errors import HfHubHTTPError

    base = HfHubHTTPError.__mro__[1]
    assert issubclass(base, Exception)
    return base


def silence(*, quiet: bool) -> None:
    """The library draws no progress of its own; quiet: nor does it tell of its tries."""
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    if quiet:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def translated(error: BaseException, name: HubName, file: str | None, pushing: bool = False) -> HubError:
    """One error of the library."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        why = f"{name} is gated, and this token has no access to it" if _token() else f"{name} is gated, and there is no token"
        return HubError(broken(rules.GATED, why, advice=f"ask for access on the model's page, then {LOGIN}"))
    if isinstance(error, errors.RepositoryNotFoundError):
        hidden = "or it is private and this token may not see it" if _token() else "or it is private, and there is no token"
        why = f"there is no model {name.repo} on the Hub, {hidden}; and there is no folder of this name"
        return HubNotFound(broken(rules.NOT_FOUND, why, advice=f"check the spelling, or {LOGIN}"))
    if isinstance(error, errors.RevisionNotFoundError):
        why = f"{name.repo} has no revision {name.revision or 'main'}"
        return HubNotFound(broken(rules.REVISION, why, advice="give a branch, a tag or a whole commit hash; the model's page lists them"))
    if isinstance(error, errors.RemoteEntryNotFoundError):
        why = f"{file} is listed for {name} and cannot be fetched"
        return HubError(broken(rules.MISSING, why, file=file, advice="ask for another revision, or tell the model's owner"))
    later = AGAIN if pushing else LATER
    if isinstance(error, errors.OfflineModeIsEnabled) and pushing:
        why = f"push asks the Hub what {name} holds, and HF_HUB_OFFLINE is set"
        return HubError(
            broken(rules.OFFLINE, why, advice="unset HF_HUB_OFFLINE; `humming-convert verify` checks the folder without the Hub")
        )
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        why = f"{file or name} is not in the cache, and HF_HUB_OFFLINE is set"
        return HubError(broken(rules.OFFLINE, why, file=file, advice="run once without HF_HUB_OFFLINE, or `hf download` it"))
    if status == 429:
        return HubError(broken(rules.RATE, f"the Hub takes no more requests at the moment ({name})", advice=f"wait some minutes; {later}"))
    if status in (401, 403):
        return HubError(broken(rules.DENIED, f"the Hub denies access to {name} (HTTP {status})", advice=LOGIN))
    if status is not None:
        why = f"the Hub answers with HTTP {status} for {file or name}: {_line(error)}"
        return HubError(broken(rules.FAILED, why, file=file, advice=f"try again later; {later}"))
    why = f"the Hub at {_endpoint()} cannot be reached for {file or name}: {_line(error)}"
    cache = "" if pushing else "; with HF_HUB_OFFLINE=1 only the cache is used"
    advice = f"check the network, HF_ENDPOINT and proxies; {later}{cache}"
    return HubError(broken(rules.UNREACHABLE, why, file=file, advice=advice))


def _line(error: BaseException) -> str:
    """The first line of a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _endpoint() -> str:
    from huggingface_hub import constants

    endpoint: Any = constants.ENDPOINT
    return str(endpoint)
