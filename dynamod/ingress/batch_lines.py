"""Lines of files of requests in OpenAI's form: a request, an answer, and how a line is written.

A request is `{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}`.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

import msgspec

from dynamod.message.errors import UserError


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt. `keys`: members that the line of the answer repeats. `url`, `body`: of a request in OpenAI's form."""

    keys: dict[str, Any]
    url: str = ""
    body: dict[str, Any] | None = None


def request_entry(value: Mapping[str, Any], where: str, urls: Collection[str]) -> Entry:
    """The request of a line. `where`: begin of error texts. `urls`: routes that lines may ask. Raises UserError."""
    name, body, url = value.get("custom_id"), value.get("body"), value.get("url")
    if not isinstance(name, str) or not name:
        raise UserError(f"{where}: custom_id is {name!r}", "give each request a text of its own")
    if value.get("method") != "POST" or url not in urls:
        raise UserError(f"{where}: {value.get('method')} {url} cannot be asked", f"known: POST {', POST '.join(urls)}")
    if not isinstance(body, dict):
        raise UserError(f"{where}: body is no object", "it is the request as a client sends it")
    if body.get("stream"):
        raise UserError(f"{where}: a request of a batch does not stream", "leave out body.stream")
    return Entry({"custom_id": name}, str(url), body)


def answer_row(name: str, keys: Mapping[str, Any], status: int, request: str, body: Any) -> dict[str, Any]:
    """The line of an answer. `name`: id of the line. `request`: id of the HTTP request. `body`: JSON-like."""
    answer = {"status_code": status, "request_id": request, "body": body}
    return {"id": name, **keys, "response": answer, "error": None}


def failure_row(name: str, keys: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    """The line of a request without an answer."""
    return {"id": name, **keys, "response": None, "error": {"code": code, "message": message}}


def write_row(file: FileIO, row: Mapping[str, Any]) -> None:
    """Write one line; the file has the line when the call returns. Raises OSError."""
    try:
        line = msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair is written as its escape, which means the same in JSON
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=msgspec.json.decode) + "\n"
        line = text.encode("utf-8", "backslashreplace")
    while line:
        line = line[file.write(line) or 0 :]
