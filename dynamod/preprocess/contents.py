"""Which form of a message's content a chat template reads: text, or a list of parts that it goes through on its own.

Only rendering tells. A template that goes through parts shows the text of one; one that does not fails, or shows the
list as it is written.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from dynamod.message.errors import BadRequest

Form = Literal["text", "either", "parts"]
"""What a template takes as content: only text, both, or only parts."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles of OpenAI's API. Templates may show messages of other roles, too."""
OTHER = "dynamod-role"
"""Stands for every role that a template does not name."""

_MARK = "dynamod-part"
_PART = {"type": "text", "text": _MARK}
_WRITTEN = re.compile(r"""['"]type\\?['"]""")
_USER = {"role": "user", "content": "x"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_BEFORE: dict[str, list[dict[str, Any]]] = {"assistant": [_USER], "tool": [_USER, _CALLING]}


class Reading(NamedTuple):
    """How a template reads messages of one role: the form of what they say, and whether the prompt has that."""

    form: Form
    shown: bool


def reading_of(render: Callable[[list[dict[str, Any]]], str], role: str) -> Reading:
    """How messages of `role` are read."""
    plain, listed = _shown(render, role, _MARK), _shown(render, role, [_PART])
    as_text, in_parts = _MARK in plain, _MARK in listed
    if not in_parts or (listed != plain and _WRITTEN.search(listed)):
        return Reading("text", as_text or in_parts)
    return Reading("either" if as_text else "parts", shown=True)


def _shown(render: Callable[[list[dict[str, Any]]], str], role: str, content: Any) -> str:
    message = {"role": role, "content": content, "tool_call_id": "c1", "name": "f"}
    try:
        before = _BEFORE.get(role, [] if role in ROLES else [_USER])
        return render([*before, message, *([] if role == "user" else [_USER])])
    except BadRequest:
        return ""
