"""Items of conversations that are kept: what a reference stands for, and pages of them."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from dynamod.ingress.api.pages import ascending, limit_of
from dynamod.message.errors import BadRequest, NotFound

from .messages import InputItem, InputPart, ResponsesRequest
from .store import ResponseStore
from .values import CustomToolCallItem, FunctionCallItem, Item, OutputMessage, ReasoningItem

REFERENCE = "item_reference"
SEALED = "reasoning.encrypted_content"
"""What clients ask to `include` that keep conversations themselves, and send reasoning back as it came."""
_SEAL = "dynamod:"
PAGE, LONGEST_PAGE = 20, 100
"""Items of a page when nothing else is asked for, and at most."""
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "namespace", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "namespace", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary", "content", "encrypted_content"),
}


def sealed(reasoning: str) -> str:
    """Reasoning in the form in which clients carry it. There is nothing to hide: it is in `content`, too."""
    return _SEAL + base64.b64encode(reasoning.encode()).decode()


def unsealed(text: str | None) -> str:
    """The reasoning; empty for that of another server, which is encrypted."""
    if text is None or not text.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(text.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return ""


class ItemList(msgspec.Struct):
    """A page of items. `data`: as clients send them, each with its id."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def items_of(request: ResponsesRequest) -> Sequence[InputItem]:
    """The input as items."""
    return (InputItem(role="user", content=request.input),) if isinstance(request.input, str) else request.input


async def resolved(request: ResponsesRequest, kept: ResponseStore, owner: str | None) -> ResponsesRequest:
    """The request with items instead of references. `owner`: of `ResponseStore.item`. Raises NotFound, Overloaded."""
    if isinstance(request.input, str) or not any(item.type == REFERENCE for item in request.input):
        return request
    found: list[InputItem] = []
    for place, item in enumerate(request.input):
        here = await kept.item(item.id or "", owner) if item.type == REFERENCE else item
        if here is None:
            text = f"there is no item `{(item.id or '')[:200]}` here; the newest responses are kept only"
            raise NotFound(text, param=f"input[{place}].id", code="item_not_found")
        found.append(here)
    return msgspec.structs.replace(request, input=found)


def as_input(item: Item) -> InputItem:
    """An item of an answer as clients send it back."""
    match item:
        case OutputMessage():
            parts = [InputPart("output_text", part.text) for part in item.content]
            return InputItem("message", "assistant", parts, item.id, status=item.status)
        case ReasoningItem():
            parts = [InputPart("reasoning_text", part.text) for part in item.content]
            summary = [InputPart("summary_text", part.text) for part in item.summary]
            return InputItem("reasoning", None, parts, item.id, summary=summary, status=item.status)
        case FunctionCallItem():
            return InputItem(
                "function_call",
                id=item.id,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
                status=item.status,
                namespace=item.namespace or None,
            )
        case CustomToolCallItem():
            return InputItem(
                "custom_tool_call",
                id=item.id,
                call_id=item.call_id,
                name=item.name,
                input=item.input,
                status=item.status,
                namespace=item.namespace or None,
            )


def page(items: Sequence[InputItem], key: str, query: Mapping[str, str]) -> ItemList:
    """The page that a query asks for with `limit`, `order` and `after`; the newest come first. Raises BadRequest.

    `key`: what the ids of items begin with that came without one.
    """
    limit, after = limit_of(query.get("limit"), PAGE, LONGEST_PAGE), query.get("after")
    places = range(len(items)) if ascending(query) else range(len(items) - 1, -1, -1)
    begin = 0
    if after is not None:
        begin = next((n for n, place in enumerate(places, 1) if _id(items[place], key, place) == after), -1)
        if begin < 0:
            raise BadRequest(f"`after`: the input has no item {after[:80]!r}", param="after")
    data = [_listed(items[place], _id(items[place], key, place)) for place in places[begin : begin + limit]]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return ItemList(data, first, last, begin + limit < len(items))


def _id(item: InputItem, key: str, place: int) -> str:
    return item.id or f"{_PREFIXES[item.type]}_{key}{place:06x}"


def _listed(item: InputItem, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"id": name, "type": item.type, "status": item.status or "completed"}
    for field in _FIELDS[item.type]:
        value = getattr(item, field)
        if field == "content" and isinstance(value, str):
            value = [InputPart("output_text" if item.role == "assistant" else "input_text", value)]
        if value is not None:
            found[field] = [_part(part) for part in value] if isinstance(value, list) else value
    if item.type == "reasoning":
        found.setdefault("summary", [])
    return found


def _part(part: InputPart) -> dict[str, Any]:
    found = {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}
    return found | ({"annotations": []} if part.type == "output_text" else {})
