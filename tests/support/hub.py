"""A server with the part of the Hugging Face Hub's interface that reading a data set uses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "me/clicks"
_API = re.compile(rf"/api/datasets/{REPOSITORY}(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?")
_FILE = re.compile(rf"/datasets/{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.*)")


class FakeHub:
    """A repository with commits; `main` is the last one."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.address = ""

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with exactly these files; return its name."""
        name = sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[name] = files
        return name

    def named(self, revision: str | None) -> str | None:
        """Return the commit that a revision means."""
        if revision in (None, "main"):
            return list(self.commits)[-1]
        return revision if revision in self.commits else None


def _tree(files: dict[str, bytes], folder: str, is_recursive: bool) -> list[dict[str, Any]]:
    """Return files and folders below a folder, or only those in it."""
    found = {
        path: {"type": "file", "path": path, "size": len(content), "oid": sha1(content).hexdigest()}
        for path, content in files.items()
    }
    for path in files:
        for parent in map(str, PurePosixPath(path).parents):
            if parent != ".":
                found[parent] = {
                    "type": "directory",
                    "path": parent,
                    "size": 0,
                    "oid": sha1(parent.encode()).hexdigest(),
                }
    root = PurePosixPath(folder)
    below = (path for path in found if root in PurePosixPath(path).parents)
    return [found[path] for path in below if is_recursive or PurePosixPath(path).parent == root]


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Yield a hub without commits, which ends with the block."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            asked = _API.fullmatch(path) or _FILE.fullmatch(path)
            commit = hub.named(asked["revision"]) if asked else None
            if asked is None or commit is None:
                return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound" if asked else "RepoNotFound"})
            files = hub.commits[commit]
            if asked.re is _FILE:
                return self._send_file(files.get(asked["path"]))
            if asked["what"] == "tree":
                found = _tree(files, asked["path"] or "", "recursive=true" in self.path.lower())
                missing = {"X-Error-Code": "EntryNotFound"}
                return self._answer(200, json.dumps(found).encode()) if found else self._answer(404, b"{}", missing)
            return self._answer(200, json.dumps({"id": REPOSITORY, "sha": commit, "siblings": []}).encode())

        def _send_file(self, content: bytes | None) -> None:
            if content is None:
                return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if found is None:
                return self._answer(200, content)
            part = content[int(found[1]) : int(found[2]) + 1 if found[2] else None]
            end = int(found[1]) + len(part) - 1
            return self._answer(206, part, {"Content-Range": f"bytes {found[1]}-{end}/{len(content)}"})

        def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
