"""Requests to a server on a port of this machine."""

import http.client
import json
from typing import Any


def post(port: int, path: str, **body: Any) -> tuple[int, Any]:
    """Status and JSON of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
