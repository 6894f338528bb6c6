"""Records of commands that may have changed something, for features that read them."""

import json
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from dynamod.graph.diff import is_secret
from dynamod.observe.records import CommandRecord

TakeRecord = Callable[[CommandRecord], None]
"""Takes the record of a command at its end. Called in the daemon's event loop: it must not wait."""
BeginRecord = Callable[[], TakeRecord]
"""Called when a command begins, before it changes anything."""
LONGEST = 200
"""Characters of a text in a record."""
DEEP = 8
"""Levels of an argument that a record has."""
MASKED = "***"


async def recorded(
    begins: list[BeginRecord],
    command: str,
    node: str,
    peer: tuple[int, int],
    arguments: Mapping[str, Any],
    answer: Callable[[], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Answer a command, and give its record to all that read records.

    `peer`: user and process of the client, -1 and 0 where the kernel does not say. `arguments`: filled by `answer`.
    """
    takes, began, status, error = [begin() for begin in begins], time.time(), 499, "the client left"
    try:
        response = await answer()
        status, error = response.status, _message(response)
        return response
    finally:
        uid, pid = peer
        record = CommandRecord(
            time=began,
            duration_ms=round((time.time() - began) * 1000, 3),
            command=command,
            arguments=masked(arguments),
            uid=uid if uid >= 0 else None,
            user=_user(uid),
            pid=pid or None,
            status=status,
            error=error,
            node=node,
        )
        for take in takes:
            take(record)


def masked(value: Any, levels: int = DEEP) -> Any:
    """A JSON-like value of a record: values of members that name secrets are masked, long texts are cut."""
    if isinstance(value, Mapping):
        if levels == 0:
            return "..."
        return {key: MASKED if one and is_secret(str(key)) else masked(one, levels - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, levels - 1) for one in value] if levels else "..."
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{value[:LONGEST]}..."
    return value


def _message(response: web.StreamResponse) -> str:
    if response.status < 400 or not isinstance(response, web.Response):
        return ""
    return str(json.loads(response.text or "{}").get("error", {}).get("message", ""))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name if uid >= 0 else ""
    except KeyError:
        return ""  # a user of a container, for instance
