"""Requests that an HTTP server has answered, and those in work, as the console shows them."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from dynamod.http.context import RequestContext
from dynamod.http.records import RecordReader
from dynamod.observe.bounded import bounded
from dynamod.observe.records import RequestRecord
from dynamod.observe.timeline import PHASES

KEPT = 1000
"""Requests that are kept."""
OPEN = 500
"""Requests in work that are shown."""


class Recorder(RecordReader):
    """Keeps the last requests that asked a model. `in_work`: gives the requests in work."""

    def __init__(self, in_work: Callable[[], Iterable[RequestContext]]) -> None:
        self._in_work = in_work
        self._ended: OrderedDict[int, RequestRecord] = OrderedDict()
        self.number = 0
        """Of the last record."""
        bounded(self, "requests for the console", KEPT, lambda one: len(one._ended), "requests")

    def take(self, record: RequestRecord) -> None:
        """Keep a record."""
        if not record.model:
            return  # no model was asked
        self.number += 1
        self._ended[self.number] = replace(record, **_WITHOUT)
        if len(self._ended) > KEPT:
            self._ended.popitem(last=False)

    async def close(self) -> None:
        """Nothing is kept beyond the server."""

    def after(self, number: int, owner: str | None) -> list[dict[str, Any]]:
        """The requests after that number, the oldest first. `owner`: only those of the key of this name."""
        found: list[dict[str, Any]] = []
        for place in reversed(self._ended):
            if place <= number:
                break
            record = self._ended[place]
            if owner is None or record.key == owner:
                found.append({**_row(record), "number": place})
        return found[::-1]

    def find(self, request: str, owner: str | None) -> dict[str, Any] | None:
        """The newest request of an id."""
        for record in reversed(self._ended.values()):
            if record.id == request and (owner is None or record.key == owner):
                return _row(record)
        return None

    def open(self, owner: str | None) -> list[dict[str, Any]]:
        """The requests in work that ask a model, OPEN at most."""
        now, at = time.time(), perf_counter()
        found: list[dict[str, Any]] = []
        for context in self._in_work():
            response = context.response
            if context.meter is None or (owner is not None and context.caller.name != owner):
                continue
            age = at - context.begun
            found.append(
                {
                    "id": context.id,
                    "time": now - age,
                    "duration_ms": round(age * 1000),
                    "first_ms": round(response.first * 1000, 1) if response is not None and response.first else None,
                    "key": context.caller.name,
                    "endpoint": context.endpoint,
                    "model": context.model,
                    "stream": context.stream,
                    "prompt_tokens": response.prompt_tokens if response is not None else 0,
                    "cached_tokens": response.cached_tokens if response is not None else None,
                    "completion_tokens": response.output_tokens if response is not None else 0,
                }
            )
            if len(found) >= OPEN:
                break
        return found


_WITHOUT: Mapping[str, Any] = {
    "prompts": (),
    "choices": (),
    "headers": {},
    "request_body": None,
    "response_body": None,
}
"""Fields of a record that are not kept: other readers may want them, and each may have megabytes."""
_SHOWN = [name for name in RequestRecord.__struct_fields__ if name not in (*_WITHOUT, "timeline")]
"""Fields of a record that a browser gets. The others have objects of the process, or texts of clients."""


def _row(record: RequestRecord) -> dict[str, Any]:
    found = {name: getattr(record, name) for name in _SHOWN}
    row: dict[str, Any] = msgspec.to_builtins({name: value for name, value in found.items() if value not in (None, "")})
    if record.timeline is not None:
        phases = record.timeline.phases()
        row["phases"] = [[name, round(phases[name] * 1000, 3)] for name in PHASES if phases[name] > 0]
    for one in row.get("workers", ()):
        one["instance"] = f"{one['instance']:x}"  # more digits than a number has in a browser
    return row
