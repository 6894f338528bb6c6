"""Lists that come in pages, as OpenAI's are asked for: `limit`, `order`, `after`."""

from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message.errors import BadRequest


def limit_of(text: str | None, usual: int, most: int) -> int:
    """How many entries a page may have. Raises BadRequest."""
    if text is None:
        return usual
    limit = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else 0
    if not 1 <= limit <= most:
        raise BadRequest(f"`limit` is {text[:40]!r}; it must be 1 to {most}", param="limit")
    return limit


def ascending(query: Mapping[str, str]) -> bool:
    """Whether the oldest come first. Raises BadRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest(f"`order` is {order[:40]!r}; it must be asc or desc", param="order")
    return order == "asc"


def listed(entries: Sequence[Any], query: Mapping[str, str], usual: int, most: int) -> dict[str, Any]:
    """OpenAI's list object of a page. `entries`: with an `id`, all in their order. Raises BadRequest."""
    limit, after, begin = limit_of(query.get("limit"), usual, most), query.get("after"), 0
    if after is not None:
        begin = next((place for place, one in enumerate(entries, 1) if one.id == after), -1)
        if begin < 0:
            raise BadRequest(f"`after`: the list has no entry {after[:80]!r}", param="after")
    data = entries[begin : begin + limit]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    more = begin + limit < len(entries)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}
