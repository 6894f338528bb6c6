"""Fields of messages that are not served: refused by name, or left out where an operator wants it."""

from typing import Any

from ...left_out import check_left_out

UNSERVED: list[tuple[str, dict[str, Any]]] = [
    ("mcp_servers", {"mcp_servers": [{"type": "url"}]}),
    ("compaction", {"compaction": {"type": "auto"}}),
    ("output_format", {"output_format": {"type": "json_schema", "schema": {}}}),
    ("output_config.format", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
]


async def test_an_operator_may_have_them_left_out(house: Any, serve: Any, until: Any, words: Any) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    asked = {"model": "sample", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    await check_left_out(serve, "/v1/messages", asked, UNSERVED, [{"thread": {"type": "create"}}])
