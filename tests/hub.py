"""A server that speaks the paths of Hugging Face, for downloads that take their time. Not a test."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHUNK = 8192
LARGE = 100_000
"""Bytes of a file from which on it comes from the other host."""


class Hub:
    """Repositories by name, each a mapping of files. `speed`: bytes per second of one file; `sent`: bytes of bodies.

    `storage`: large files are named by their SHA-256, kept in Xet, and given by another host, whose requests had the
    `credentials`.
    """

    def __init__(
        self, repositories: Mapping[str, Mapping[str, bytes]], speed: float = 1e9, *, storage: bool = False
    ) -> None:
        self.repositories = {name: dict(files) for name, files in repositories.items()}
        self.speed = speed
        self.sent: dict[str, int] = {}
        self.begun: list[str] = []
        self.gated, self.token = False, ""  # whose token opens them
        self.ranges = True  # whether it sends the rest of a file alone
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.credentials: list[str | None] = []
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(1 + storage)]
        self.url, *others = [f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers]
        self.storage = others[0] if others else ""

    @contextmanager
    def running(self) -> Iterator["Hub"]:
        threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for server, thread in zip(self._servers, threads, strict=True):
                server.shutdown()
                thread.join()
                server.server_close()

    def answer(self, request: Any, *, body: bool) -> None:
        parts = request.path.partition("?")[0].strip("/").split("/")
        try:
            if parts[:2] == ["api", "models"]:
                self._api("/".join(parts[2:4]), parts[4:], request)
            else:
                self._file("/".join(parts[:2]), "/".join(parts[4:]), request, body=body)
        except KeyError:
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"}, body=body)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True

    def _api(self, name: str, rest: list[str], request: Any) -> None:
        files = self.repositories[name]
        if self.gated and (not self.token or request.headers["Authorization"] != f"Bearer {self.token}"):
            self._send(request, 403, b"", {"X-Error-Code": "GatedRepo"})
        elif rest[:1] == ["tree"]:
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": oid(data)} for path, data in files.items()
            ]
            self._send(request, 200, json.dumps(entries).encode())
        else:
            siblings = [
                {"rfilename": path, "size": len(data), "blobId": oid(data), **self._large(data)}
                for path, data in files.items()
            ]
            self._send(request, 200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

    def _large(self, data: bytes) -> dict[str, Any]:
        """What the list of files says of one that another host gives."""
        if not self.storage or len(data) < LARGE:
            return {}
        return {"lfs": {"sha256": oid(data, large=True), "size": len(data), "pointerSize": 130}}

    def _file(self, name: str, path: str, request: Any, *, body: bool) -> None:
        data = self.repositories[name][path]
        large = bool(self._large(data))
        headers = {"ETag": f'"{oid(data, large=large)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if large and request.server is self._servers[0]:
            linked = {"X-Linked-Etag": headers.pop("ETag"), "X-Linked-Size": str(len(data))}
            xet = {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{self.url}/api/models/{name}/xet-read-token/main"}
            location = {"Location": f"{self.storage}{request.path}"}
            self._send(request, 302, b"", {**headers, **linked, **xet, **location}, body=body)
            return
        if large:
            self.credentials.append(request.headers["Authorization"])
        if body:
            self.begun.append(path)
        first = re.fullmatch(r"bytes=(\d+)-", request.headers["Range"] or "")
        if first is None or not self.ranges:
            self._send(request, 200, data, headers, body=body, path=path)
            return
        start = int(first[1])
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(request, 206, data[start:], headers, body=body, path=path)

    def _send(
        self,
        request: Any,
        status: int,
        data: bytes,
        headers: Mapping[str, str] = {},
        *,
        body: bool = True,
        path: str = "",
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        for start in range(0, len(data) if body else 0, CHUNK):
            part = data[start : start + CHUNK]
            request.wfile.write(part)
            if path:
                self.sent[path] = self.sent.get(path, 0) + len(part)
                time.sleep(len(part) / self.speed)


def oid(data: bytes, *, large: bool = False) -> str:
    return (hashlib.sha256 if large else hashlib.sha1)(data).hexdigest()
