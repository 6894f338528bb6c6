"""A server that takes objects as S3 does, and checks their signatures (AWS Signature Version 4). Not a test."""

import hashlib
import hmac
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Bucket:
    """Objects by bucket and name. `status`: what the next requests are answered, 200: they are taken."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.kinds: dict[str, str] = {}
        self.regions: set[str] = set()
        self.refused: list[str] = []
        self.status = 200
        self.slow = 0.0  # seconds before each answer
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(bucket.slow)
                status = bucket.put(self, body) if bucket.status == 200 else bucket.status
                self.send_response(status)
                self.send_header("ETag", '"x"')
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    @contextmanager
    def running(self) -> Iterator["Bucket"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def put(self, request: Any, body: bytes) -> int:
        """The status of the answer."""
        if hashlib.sha256(body).hexdigest() != request.headers["x-amz-content-sha256"]:
            self.refused.append("the body is not the signed one")
            return 400
        if not self._signed(request):
            self.refused.append("the signature is wrong")
            return 403
        name = unquote(urlsplit(request.path).path)[1:]
        self.objects[name], self.kinds[name] = body, request.headers["Content-Type"]
        return 200

    def _signed(self, request: Any) -> bool:
        scheme, _, rest = request.headers["Authorization"].partition(" ")
        fields = dict(part.strip().split("=", 1) for part in rest.split(","))
        key, scope = fields["Credential"].split("/", 1)
        day, region, service, end = scope.split("/")
        if (scheme, key, service, end) != ("AWS4-HMAC-SHA256", KEY, "s3", "aws4_request"):
            return False
        self.regions.add(region)
        names = fields["SignedHeaders"].split(";")
        place = urlsplit(request.path)
        asked = [
            *(request.command, place.path, place.query),
            *(f"{name}:{request.headers[name].strip()}" for name in names),
            *("", fields["SignedHeaders"], request.headers["x-amz-content-sha256"]),
        ]
        digest = hashlib.sha256("\n".join(asked).encode()).hexdigest()
        text = "\n".join([scheme, request.headers["x-amz-date"], scope, digest])
        secret = f"AWS4{SECRET}".encode()
        for part in (day, region, service, end):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest() == fields["Signature"]
