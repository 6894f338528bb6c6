"""Clients of the frontend: a unary request that is on its way, a stream that is read bit by bit."""

import http.client
import json
from typing import Any


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "sample", "messages": [{"role": "user", "content": text}], **fields}


def request_of(path: str, body: Any) -> tuple[str, str, str | None, dict[str, str]]:
    if body is None:
        return "GET", path, None, {}
    return "POST", path, json.dumps(body), {"Content-Type": "application/json"}


class Begun:
    """A unary request that has been sent."""

    def __init__(self, connection: http.client.HTTPConnection, body: dict[str, Any], request: str) -> None:
        self._connection = connection
        method, path, data, headers = request_of("/v1/chat/completions", body)
        connection.request(method, path, data, {**headers, "x-request-id": request})

    def answer(self) -> dict[str, Any]:
        """Its answer, which must be a good one."""
        response = self._connection.getresponse()
        text = response.read()
        self._connection.close()
        assert response.status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def leave(self) -> None:
        """Do not wait for it."""
        self._connection.close()


class Streaming:
    """An SSE answer that is read bit by bit."""

    def __init__(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
        self._connection = connection
        connection.request(*request_of("/v1/chat/completions", body))
        self._response = connection.getresponse()
        self.status = self._response.status
        self.text = self.id = ""
        self.finish: str | None = None
        self.error: dict[str, Any] | None = None
        self.done = False
        if self.status == 200:
            while not self.text:
                assert self._event(), "the stream has ended at once"
        else:
            self.error = json.loads(self._response.read())

    def _event(self) -> bool:
        """Read one event; False at the end."""
        name, data = "", ""
        while line := self._response.readline().decode():
            line = line.rstrip("\n")
            if not line and data:
                break
            field, _, value = line.partition(":")
            name, data = (value.strip(), data) if field == "event" else (name, data + value.strip())
        if not data:
            return False
        if data == "[DONE]":
            self.done = True
            return True
        value = json.loads(data)
        if name == "error" or "error" in value:
            self.error = {"event": name, **value}
            return True
        self.id = value["id"]
        for choice in value["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
        return True

    def more(self, events: int) -> None:
        """Read some more events; the stream must not end with them."""
        for _ in range(events):
            assert self._event()
        assert (self.finish, self.error) == (None, None)

    def read(self) -> "Streaming":
        """Read to the end."""
        while self._event():
            pass
        self._connection.close()
        return self

    def close(self) -> None:
        """Leave, as a client whose window is closed."""
        self._response.close()
        self._connection.close()


def serving(machine: Any, request: str) -> tuple[int, str]:
    """Instance and process that a request has been sent to last."""
    status, records = machine.raw("GET", f"/v1/requests/{request}/decision")
    assert status == 200, records
    last = records[-1]
    return last["chosen"], next(one["process"] for one in last["candidates"] if one["instance"] == last["chosen"])
