"""Publishing a finished folder: verify, look, upload, one commit, look again.

In: an output folder and a repository.  Out: a Pushed. Large files go up first and belong to nothing; one commit on top of the state that was
looked at makes all of them visible at once, or, where another commit came between, none.
Facts: runtimes.md 4.3, 4.5; huggingface_hub 1.0 to 2.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from humming_convert import __version__
from humming_convert.checkpoint.rules import broken
from humming_convert.engine.finish import CheckFailed
from humming_convert.findings import Finding, Findings, counted
from humming_convert.hub import rules
from humming_convert.hub.failures import LOGIN, HubError, told
from humming_convert.hub.fetch import blob_id, checksum
from humming_convert.hub.listing import LIBRARY
from humming_convert.hub.names import HubName
from humming_convert.hub.publication import (
    KEPT,
    Publication,
    check_licence,
    check_limits,
    check_place,
    default_branch,
    licence_of,
    read_local,
)
from humming_convert.hub.remote import look, remote_json
from humming_convert.manifest.build import NAME as MANIFEST
from humming_convert.proof.verify import verify_folder

DEFAULT = "main"
CONFLICT = (409, 412)


class Pushed(Struct, frozen=True, kw_only=True):
    """commit: None for a dry run.  url: of the commit, or of the pull request.  checked: files that the Hub was asked about.

    findings: of a dry run, what would refuse it."""

    publication: Publication
    findings: tuple[Finding, ...] = ()
    commit: str | None = None
    url: str | None = None
    checked: int = 0

    @property
    def refused(self) -> bool:
        return any(f.severity == "error" for f in self.findings)

    def document(self) -> dict[str, Any]:
        status = "refused" if self.refused else "dry-run" if self.commit is None else "done"
        done = {"commit": self.commit, "url": self.url, "checked": self.checked}
        return {"status": status, **self.publication.document(), **done, "findings": [f.as_dict() for f in self.findings]}


class PushOptions(Struct, frozen=True, kw_only=True):
    """branch, subfolder: None: default_branch; the top.  yes: a licence that may restrict publishing, or none, is answered for."""

    branch: str | None = None
    subfolder: str | None = None
    pull_request: bool = False
    private: bool = False
    yes: bool = False


def prepare_push(folder: Path, repo: HubName, options: PushOptions, findings: Findings) -> Publication:
    """All that can be known before anything is written. findings: told what refuses it. CheckFailed where there is nothing to publish; HubError."""
    found = verify_folder(folder, None)
    if found.failed:
        errors = [f for f in found.every if f.severity == "error"]
        why = f"{folder.name} does not verify ({counted(len(errors), 'error')}); nothing was published"
        said = broken(rules.FOLDER, why, advice="do what the errors below say; only a whole folder is published")
        raise CheckFailed(why, (said, *errors))
    local = read_local(folder)
    prefix = f"{options.subfolder}/" if options.subfolder else ""
    branch = options.branch or (DEFAULT if prefix else default_branch(local.manifest))
    main = look(HubName(repo.repo))
    there = main if main is None or branch == DEFAULT else look(HubName(repo.repo, branch))
    check_licence(local, options.yes, findings)
    check_limits(local, findings)
    if main is not None and options.private and not main.private:
        why = f"{repo.repo} is there and public"
        findings.add(broken(rules.PRIVATE, why, advice="leave out --private, or make the repository private on its page"))
    # a branch that was made for a push which did not come to its commit still is what main is
    fresh = (
        there is not None
        and main is not None
        and branch != DEFAULT
        and branch == default_branch(local.manifest)
        and there.commit == main.commit
    )
    others = Findings()
    if there is not None and not fresh:
        check_place(local, remote_json(there, f"{prefix}{MANIFEST}"), there, prefix, others)
    findings.extend(others)
    new = [f"repository {repo.repo} ({'private' if options.private else 'public'})"] if main is None else []
    new += [f"branch {branch}"] if there is None and branch != DEFAULT else []
    base = there or main
    paths = {f"{prefix}{name}" for name in local.files}
    # what is somebody else's is never deleted
    stale = [p for p in (base.files if base is not None and not others else ()) if p.startswith(prefix) and p not in paths | KEPT]
    return Publication(
        local=local,
        to=HubName(repo.repo, branch),
        prefix=prefix,
        deleted=tuple(sorted(stale)),
        parent=there.commit if there is not None else None,
        main=main.commit if main is not None else None,
        new=tuple(new),
        makes_repo=main is None,
        licence=licence_of(local),
    )


def dry(publication: Publication, findings: Findings) -> Pushed:
    """As far as it goes without writing."""
    return Pushed(publication=publication, findings=tuple(findings))


def carry_out(publication: Publication, options: PushOptions, said: Callable[[str], None] = lambda _: None) -> Pushed:
    """Uploads, commits, checks. HubError where another commit came between; CheckFailed where the Hub does not hold what was sent."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    to = publication.to
    if get_token() is None:
        raise HubError(broken(rules.DENIED, f"publishing to {to.repo} needs a token", advice=LOGIN))
    api = HfApi(library_name=LIBRARY, library_version=__version__)
    folder = publication.local.folder
    adds = {f"{publication.prefix}{n}": CommitOperationAdd(f"{publication.prefix}{n}", str(folder / n)) for n in publication.local.files}
    with told(to, pushing=True):
        if publication.makes_repo:
            api.create_repo(to.repo, private=True if options.private else None)
        said(f"uploading {counted(len(adds), 'file')} to {to.repo}")
        # where the branch is: the library leaves out of the commit what is there already. One that is to be made will be a copy of main
        base = to.revision if publication.parent else DEFAULT
        api.preupload_lfs_files(to.repo, additions=list(adds.values()), revision=base, create_pr=options.pull_request, free_memory=False)
    parent = publication.parent or _make_branch(api, publication)
    deleted = [CommitOperationDelete(path) for path in publication.deleted]
    with told(to, pushing=True), _raced(to):
        commit = api.create_commit(
            to.repo,
            operations=[*adds.values(), *deleted],
            commit_message=f"{publication.local.title} (humming-convert {__version__})",
            revision=to.revision,
            parent_commit=parent,
            create_pr=options.pull_request,
        )
    revision = commit.pr_revision if options.pull_request else commit.oid
    said("asking the Hub what it holds")
    _check_held(publication, HubName(to.repo, revision))
    return Pushed(publication=publication, commit=commit.oid, url=commit.pr_url or commit.commit_url, checked=len(adds))


def _make_branch(api: Any, publication: Publication) -> str:
    """The branch, as it is when it is new: a copy of `main`. Its commit."""
    to = publication.to
    if to.revision != DEFAULT:
        with told(to, pushing=True), _raced(to):
            api.create_branch(to.repo, branch=to.revision)
    made = look(to)
    if made is None or (publication.main is not None and made.commit != publication.main):
        raise _other_commit(to)  # what has to be deleted was found on another commit
    return made.commit


@contextmanager
def _raced(to: HubName) -> Iterator[None]:
    """A conflict is another commit, or another branch of the name, that came between."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        if error.response.status_code in CONFLICT:
            raise _other_commit(to) from error
        raise


def _other_commit(to: HubName) -> HubError:
    why = f"another commit came to {to} while this one was made; nothing of this one is visible"
    return HubError(broken(rules.RACED, why, advice="run the same command again: it looks at what is there now, and uploads nothing twice"))


def _check_held(publication: Publication, at: HubName) -> None:
    """Sizes and checksums of all files by what the Hub says; and that none is there that should not be."""
    remote = look(at)
    files: Mapping[str, Any] = remote.files if remote is not None else {}
    wrong: list[Finding] = []
    advice = f"do not use {at}; run the same command again"
    for name, nbytes in publication.local.files.items():
        path, local = f"{publication.prefix}{name}", publication.local.folder / name
        held = files.get(path)
        if held is None:
            wrong.append(broken(rules.HELD, f"{path} is not there after the commit", file=name, advice=advice))
        elif held.nbytes != nbytes:
            wrong.append(broken(rules.HELD, f"{path} has {held.nbytes} bytes on the Hub, {nbytes} here", file=name, advice=advice))
        elif (held.sha256 or held.blob) != (checksum(local, hashlib.sha256()) if held.sha256 else blob_id(local)):
            wrong.append(broken(rules.HELD, f"{path} has another checksum on the Hub than here", file=name, advice=advice))
    for path in files:
        if path.startswith(publication.prefix) and path not in publication.paths.keys() | KEPT:
            wrong.append(broken(rules.HELD, f"{path} is there after the commit and should not be", file=path, advice=advice))
    if wrong:
        raise CheckFailed(
            f"{counted(len(wrong), 'file')} of {at} {'is' if len(wrong) == 1 else 'are'} not what was published", tuple(wrong)
        )
