"""A long piece of a model's text is read in turns, in order, and other calls of the event loop come between."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dynamod.ingress.parsing import ParsedSink
from dynamod.parsers import TURN_CHARS, BehindReasoning, make_parser

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


class Seen:
    """What an endpoint would get, and how many turns of the event loop each took."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.done = asyncio.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **named: self.events.append((name, *values, *named.values()))

    def finish(self, index: int, reason: str, *counts: int | None) -> None:
        self.events.append(("finish", index, reason))
        self.done.set()

    @property
    def content(self) -> str:
        return "".join(event[2] for event in self.events if event[0] == "text")


async def test_what_comes_during_a_long_piece_comes_after_it_and_others_are_served() -> None:
    seen = Seen()
    sink = ParsedSink(seen, [make_parser("hermes", "qwen3", seed="s")], None)
    long = '<tool_call>{"x":[' * (20 * TURN_CHARS // 17) + "}"
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        if not seen.done.is_set():
            asyncio.get_running_loop().call_soon(count)

    count()
    sink.text(0, f"first {long}", 1)
    assert not seen.done.is_set()
    sink.text(0, " second", 1)
    sink.logprobs(0, ())
    sink.chunk(0, {"third": 1})
    sink.text(0, f"{CALL}fourth", 1)
    sink.finish(0, "stop", 4)
    assert ("chunk", 0, {"third": 1}) not in seen.events
    await seen.done.wait()
    assert turns > 10
    assert seen.content.startswith("first ")
    assert seen.content.endswith("} secondfourth")
    names = [event[0] for event in seen.events if event[0] != "text"]
    assert names == ["logprobs", "chunk", "chunk", "counted", "finish"]
    assert seen.events[-1] == ("finish", 0, "tool_calls")
    assert sum(event[3] for event in seen.events if event[0] == "text") == 3


async def test_the_end_of_a_text_is_read_in_turns_too() -> None:
    seen = Seen()
    sink = ParsedSink(seen, [make_parser("llama3_json", None, seed="s")], None)
    inner = '{"a": 1}, ' * (4 * TURN_CHARS // 10)
    for at in range(0, len(inner), 1000):
        sink.text(0, ("[" if not at else "") + inner[at : at + 1000], 1)
    sink.finish(0, "stop", 4)
    await asyncio.wait_for(seen.done.wait(), 30)
    assert seen.content == f"[{inner}"


async def test_nothing_comes_after_a_stop() -> None:
    seen = Seen()
    sink = ParsedSink(seen, [make_parser("hermes", None, seed="s")], None)
    sink.text(0, "<tool_call>[" * TURN_CHARS, 1)
    sink.finish(0, "stop", 1)
    before = len(seen.events)
    sink.stop()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(seen.events) == before


@pytest.mark.parametrize("shift", [0, 1, TURN_CHARS])
async def test_behind_reasoning_it_is_the_same(shift: int) -> None:
    def parser() -> BehindReasoning:
        return BehindReasoning("<think>", "</think>", make_parser("hermes", None, seed="s"))

    text = f"<think>{'r' * 3 * TURN_CHARS}</think>" + "a<tool_call> b " * TURN_CHARS
    seen = Seen()
    sink = ParsedSink(seen, [parser()], None)
    sink.text(0, text[:shift], 1)
    sink.text(0, text[shift:], 1)
    sink.finish(0, "stop", 1)
    await seen.done.wait()
    assert seen.content == "a b " * TURN_CHARS
