"""A Hub on 127.0.0.1: the parts of its protocol that huggingface_hub uses to read models and to publish them.

Models are commits of files in memory; what is stored apart from git (here: weights, and whatever is larger than a kilobyte and no text) is
served from a second port, as the Hub serves it from a store. `faults` makes it fail on purpose. Facts: the requests of huggingface_hub 1.0 to
2.4, and the Hub's documented HTTP API.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]
TOKEN = "hf_of_the_owner"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def apart(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


@dataclass
class Model:
    """Commits by hash, branches (and `refs/pr/N`) by name."""

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A commit of these files on a branch; its hash."""
        text = f"{branch} {self.branches.get(branch)} {sorted((n, sha256(c)) for n, c in files.items())}"
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def commit_of(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Faults:
    """cut: name of a file -> (bytes after which the connection ends, how often).  status: regular expression of method and path -> status
    and the Hub's code of the error.
    before: called with method and path of every request.  ignore_ranges: answers 200 and the whole file.
    spoil: name of a file -> what is sent in its place by the store.  slow: name of a file -> seconds before all of it is sent; parts come at once."""

    cut: dict[str, tuple[int, int]] = field(default_factory=dict)
    status: dict[str, tuple[int, str]] = field(default_factory=dict)
    before: Callable[[str, str], None] = lambda method, path: None
    ignore_ranges: bool = False
    spoil: dict[str, bytes] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)  # nobody waits any longer for what is slow


class Server:
    """`url`: what HF_ENDPOINT is set to.  `sent`: bytes of each stored file that went out."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.stored: dict[str, bytes] = {}
        self.names: dict[str, str] = {}
        self.faults = Faults()
        self.sent: Counter[str] = Counter()
        self.tokens_in_store = 0
        self.log: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.answering = threading.Condition(self.lock)
        self.under_way = 0
        handler = type("Handler", (Handler,), {"hub": self})
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        here, there = (s.server_address[1] for s in self._servers)
        self.url, self.store = f"http://127.0.0.1:{here}", f"http://localhost:{there}"  # two hosts, as far as a client can see
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo: str, folder: Path, branch: str = "main") -> str:
        """A model of a folder's files; the commit."""
        files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        return self.models.setdefault(repo, Model()).commit(files, branch)

    @contextmanager
    def failing(self, **faults: Any) -> Iterator[None]:
        before, self.faults = self.faults, Faults(**faults)
        try:
            yield
        finally:
            self.faults.over.set()
            self.faults = before

    def forget(self) -> None:
        """What was sent so far; also to a client that has gone, whose request is answered a moment later."""
        with self.answering:
            assert self.answering.wait_for(lambda: self.under_way == 0, timeout=60), "a request is not answered"
        self.sent.clear()
        self.log.clear()
        self.tokens_in_store = 0


class Handler(BaseHTTPRequestHandler):
    hub: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: Any) -> None: ...

    # ------------------------------------------------------------------ answers
    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, file: str = "") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        limit, times = self.hub.faults.cut.get(file, (len(body), 0))
        if times and limit < len(body):
            self.hub.faults.cut[file] = limit, times - 1
            self.wfile.write(body[:limit])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        with self.hub.lock:
            self.hub.sent[file] += len(body) if file else 0
        self.wfile.write(body)

    def json(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.answer(status, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def error(self, status: int, code: str, message: str = "") -> None:
        self.json({"error": message or code}, status, {"X-Error-Code": code, "X-Error-Message": message or code})

    def content(self, body: bytes, file: str, headers: Mapping[str, str]) -> None:
        """All of it, or the range that was asked for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or self.hub.faults.ignore_ranges:
            faults = self.hub.faults
            faults.over.wait(faults.slow.get(file, 0))
            self.answer(200, body, headers, file)
            return
        start, stop = int(wanted[1]), int(wanted[2]) + 1 if wanted[2] else len(body)
        said = f"bytes {start}-{min(stop, len(body)) - 1}/{len(body)}"
        self.answer(206, body[start:stop], {**headers, "Content-Range": said}, file)

    # ------------------------------------------------------------------ requests
    def handle_any(self) -> None:
        with self.hub.answering:
            self.hub.under_way += 1
        try:
            self.handle_one_kind()
        finally:
            with self.hub.answering:
                self.hub.under_way -= 1
                self.hub.answering.notify_all()

    def handle_one_kind(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.log.append((self.command, url.path))
        self.hub.faults.before(self.command, url.path)
        for pattern, (status, code) in self.hub.faults.status.items():
            if re.search(pattern, f"{self.command} {url.path}"):
                self.error(status, code)
                return
        for pattern, method in ROUTES:
            found = re.fullmatch(pattern, f"{self.command} {url.path}")
            if found is not None:
                getattr(self, method)(*(unquote(g) for g in found.groups()), query=parse_qs(url.query), body=body)
                return
        self.error(404, "NoRoute", f"{self.command} {self.path}")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def model(self, repo: str, write: bool = False) -> Model | None:
        """None if it was refused."""
        model, mine = self.hub.models.get(repo), self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if model is None or (model.private and not mine):
            self.error(404 if mine else 401, "RepoNotFound", "Repository not found")
            return None
        if model.gated and not mine:
            self.error(403, "GatedRepo", "Access to this model is restricted")
            return None
        if write and not mine:
            self.error(403, "Forbidden", "no right to write")
            return None
        return model

    def at(self, repo: str, revision: str) -> tuple[Model, str] | None:
        model = self.model(repo)
        if model is None:
            return None
        commit = model.commit_of(revision)
        if commit is None:
            self.error(404, "RevisionNotFound", f"no revision {revision}")
            return None
        return model, commit

    def listed(self, name: str, content: bytes) -> dict[str, Any]:
        out: dict[str, Any] = {"size": len(content)}
        if apart(name):
            out["lfs"] = {"sha256": sha256(content), "oid": sha256(content), "size": len(content), "pointerSize": 134}
        return out

    def info(self, repo: str, revision: str = "main", **_: Any) -> None:
        found = self.at(repo, revision)
        if found is not None:
            model, commit = found
            siblings = [{"rfilename": n, "blobId": blob_id(c), **self.listed(n, c)} for n, c in sorted(model.commits[commit].items())]
            self.json({"id": repo, "modelId": repo, "sha": commit, "private": model.private, "siblings": siblings, "tags": []})

    def paths(self, repo: str, revision: str, *, body: bytes, **_: Any) -> None:
        found = self.at(repo, revision)
        if found is not None:
            files = found[0].commits[found[1]]
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            self.json([{"type": "file", "path": p, "oid": blob_id(files[p]), **self.listed(p, files[p])} for p in asked if p in files])

    def tree(self, repo: str, revision: str, **_: Any) -> None:
        found = self.at(repo, revision)
        if found is not None:
            files = found[0].commits[found[1]]
            self.json([{"type": "file", "path": p, "oid": blob_id(c), **self.listed(p, c)} for p, c in sorted(files.items())])

    def refs(self, repo: str, **_: Any) -> None:
        model = self.model(repo)
        if model is not None:
            branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in model.branches.items() if "/" not in n]
            self.json({"branches": branches, "tags": [], "converts": []})

    def resolve(self, repo: str, revision: str, file: str, **_: Any) -> None:
        found = self.at(repo, revision)
        if found is None:
            return
        model, commit = found
        content = model.commits[commit].get(file)
        if content is None:
            self.json({"error": "no entry"}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        elif apart(file):
            self.hub.stored[sha256(content)] = content
            self.hub.names[sha256(content)] = file
            linked = {"X-Linked-Etag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content)), "ETag": f'"{sha256(content)}"'}
            self.answer(302, b"", {**linked, "X-Repo-Commit": commit, "Location": f"{self.hub.store}/stored/{sha256(content)}"})
        else:
            self.content(content, file, {"X-Repo-Commit": commit, "ETag": f'"{blob_id(content)}"'})

    def store_get(self, digest: str, **_: Any) -> None:
        name = self.hub.names.get(digest, digest)
        self.hub.tokens_in_store += "Authorization" in self.headers
        self.content(self.hub.faults.spoil.get(name, self.hub.stored[digest]), name, {"ETag": f'"{digest}"'})

    # ------------------------------------------------------------------ publishing
    def create(self, *, body: bytes, **_: Any) -> None:
        asked = json.loads(body)
        repo = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.error(401, "Unauthorized", "Invalid username or password.")
        elif repo in self.hub.models:
            self.json({"error": "You already created this model repo", "url": f"{self.hub.url}/{repo}"}, 409)
        else:
            hidden = bool(asked.get("private")) or asked.get("visibility") == "private"
            self.hub.models[repo] = Model(private=hidden)
            self.hub.models[repo].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
            self.json({"url": f"{self.hub.url}/{repo}", "name": repo, "id": repo})

    def branch(self, repo: str, branch: str, *, body: bytes, **_: Any) -> None:
        model = self.model(repo, write=True)
        if model is None:
            return
        start = model.commit_of((json.loads(body or b"{}") or {}).get("startingPoint") or "main")
        assert start is not None
        if branch in model.branches:
            self.json({"error": "Reference already exists"}, 409)
        else:
            model.branches[branch] = start
            self.json({})

    def preupload(self, repo: str, revision: str, *, body: bytes, **_: Any) -> None:
        model = self.model(repo, write=True)
        if model is not None:
            files = model.commits[model.commit_of(revision) or ""]
            asked = [f["path"] for f in json.loads(body)["files"]]
            self.json(
                {
                    "files": [
                        {
                            "path": p,
                            "uploadMode": "lfs" if apart(p) else "regular",
                            "shouldIgnore": False,
                            "oid": None if p not in files else sha256(files[p]) if apart(p) else blob_id(files[p]),
                        }
                        for p in asked
                    ]
                }
            )

    def batch(self, repo: str, *, body: bytes, **_: Any) -> None:
        if self.model(repo, write=True) is not None:
            objects = []
            for o in json.loads(body)["objects"]:
                actions = {"upload": {"href": f"{self.hub.store}/upload/{o['oid']}"}, "verify": {"href": f"{self.hub.url}/verify"}}
                objects.append({**o, **({} if o["oid"] in self.hub.stored else {"actions": actions})})
            self.json({"transfer": "basic", "objects": objects})

    def upload(self, digest: str, *, body: bytes, **_: Any) -> None:
        self.hub.stored[digest] = body
        self.answer(200)

    def verified(self, *, body: bytes, **_: Any) -> None:
        asked = json.loads(body)
        there = self.hub.stored.get(asked["oid"])
        self.answer(200 if there is not None and len(there) == asked["size"] else 404)

    def yaml(self, **_: Any) -> None:
        self.json({"errors": [], "warnings": []})

    def commit(self, repo: str, revision: str, *, query: Mapping[str, list[str]], body: bytes, **_: Any) -> None:
        model = self.model(repo, write=True)
        if model is None:
            return
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        head = next(x["value"] for x in lines if x["key"] == "header")
        before = model.commit_of(revision)
        if before is None:
            self.error(404, "RevisionNotFound")
            return
        if head.get("parentCommit") not in (None, before):
            self.error(412, "Conflict", "A commit has happened since. Please refresh and try again.")
            return
        files = dict(model.commits[before])
        for x in lines:
            value = x["value"]
            if x["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif x["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif x["key"] == "deletedFile":
                files.pop(value["path"], None)
        pull = query.get("create_pr") == ["1"]
        number = 1 + sum(b.startswith("refs/pr/") for b in model.branches)
        to = f"refs/pr/{number}" if pull else revision
        commit = model.commit(files, to)
        out = {"commitUrl": f"{self.hub.url}/{repo}/commit/{commit}", "commitOid": commit, "success": True}
        self.json({**out, **({"pullRequestUrl": f"{self.hub.url}/{repo}/discussions/{number}"} if pull else {})})


_REPO = "([^/]+/[^/]+)"
ROUTES = (
    (f"GET /api/models/{_REPO}", "info"),
    (f"GET /api/models/{_REPO}/revision/([^/]+)", "info"),
    (f"GET /api/models/{_REPO}/refs", "refs"),
    (f"GET /api/models/{_REPO}/tree/([^/]+)", "tree"),
    (f"POST /api/models/{_REPO}/paths-info/([^/]+)", "paths"),
    (f"POST /api/models/{_REPO}/branch/([^/]+)", "branch"),
    (f"POST /api/models/{_REPO}/preupload/([^/]+)", "preupload"),
    (f"POST /api/models/{_REPO}/commit/([^/]+)", "commit"),
    ("POST /api/repos/create", "create"),
    ("POST /api/validate-yaml", "yaml"),
    (f"POST /{_REPO}.git/info/lfs/objects/batch", "batch"),
    ("PUT /upload/([0-9a-f]+)", "upload"),
    ("POST /verify", "verified"),
    (f"(?:GET|HEAD) /{_REPO}/resolve/([^/]+)/(.+)", "resolve"),
    ("(?:GET|HEAD) /stored/([0-9a-f]+)", "store_get"),
)
"""Method and path -> what answers."""
