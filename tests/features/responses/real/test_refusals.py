"""Fields of responses that are not served: refused by name, or left out where an operator wants it."""

import asyncio
import json
from typing import Any

from ...left_out import ask, check_left_out

UNSERVED: list[tuple[str, dict[str, Any]]] = [
    ("background", {"background": True}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("include", {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}),
    ("text.verbosity", {"text": {"verbosity": "low"}}),
    ("text.format", {"text": {"format": {"type": "json_object"}, "verbosity": "medium"}}),
]
HELD: list[dict[str, Any]] = [{"conversation": "c"}, {"prompt": {"id": "p"}}, {"tools": [{"type": "telepathy"}]}]


async def test_an_operator_may_have_them_left_out(house: Any, serve: Any, until: Any, words: Any) -> None:
    await house.start()
    await house.worker(words.Seen)
    text = await house.worker(words.Manual, "text")
    await until(lambda: len(house.processor.cards) == 2)
    asked = {"model": "sample", "input": "hi", "max_output_tokens": 2}
    lax = await check_left_out(serve, "/v1/responses", asked, UNSERVED, HELD)
    many = ["message.output_text.logprobs"] * 20_000
    assert (await ask(lax, {**asked, "include": many}))[0] == 200, "at once"
    fields = {
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "text": {"verbosity": "high"},
    }
    waiting = asyncio.ensure_future(ask(lax, {**asked, **fields, "model": "text"}))
    await until(lambda: text.engine.requests)
    text.engine.replies[0].text("ok", 1, "stop", 1)
    assert (await waiting)[0] == 200
    served = {"model", "messages", "max_completion_tokens", "stream", "logprobs"}  # of this engine
    assert json.loads(text.engine.requests[0].body).keys() <= served
