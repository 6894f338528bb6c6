"""Events of a server as deltas of a reply: whatever pieces they come in, whatever other members they have."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamod.engine.openai.answer import Answer
from dynamod.message.errors import EngineFailed
from dynamod.message.ingress import Items, Text
from dynamod.transport.base import Reply


class Deltas:
    """Where a reply puts them."""

    origin = None

    def __init__(self) -> None:
        self.streams: dict[int, Reply] = {}
        self.found: list[Any] = []

    def add(self, delta: Any) -> None:
        self.found.append(delta)

    def backlog(self, stream: int) -> int:
        return 0

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.found if isinstance(delta, Text))

    @property
    def items(self) -> list[Any]:
        return [item for delta in self.found if isinstance(delta, Items) for item in delta.items]

    @property
    def tokens(self) -> int:
        return sum(delta.tokens for delta in self.found if isinstance(delta, Text))


def event(choice: Any, **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [choice], **more}, ensure_ascii=False).encode() + b"\r\n\r\n"


def read(*pieces: bytes, limit: int | None = None) -> Deltas:
    deltas = Deltas()
    answer = Answer(Reply(deltas, 1), limit)
    for piece in pieces:
        answer.feed(piece)
    answer.end()
    return deltas


def test_what_the_server_counts_beside_the_totals_goes_on() -> None:
    cached, thought = {"cached_tokens": 2}, {"reasoning_tokens": 5}
    usage = {"prompt_tokens": 3, "prompt_tokens_details": cached, "completion_tokens_details": thought}
    said = read(event({"delta": {"reasoning": "a"}}), event({"delta": {"content": "b"}}, usage=usage))
    assert said.items[-1] == {
        "choices": [],
        "usage": {"prompt_tokens_details": cached, "completion_tokens_details": thought},
    }
    counted = read(*[event({"delta": {"reasoning": "a"}})] * 3, event({"delta": {"content": "b"}}))
    assert counted.items[-1] == {"choices": [], "usage": {"completion_tokens_details": {"reasoning_tokens": 3}}}
    assert not [item for item in read(event({"delta": {"content": "b"}})).items if "usage" in item]


WORDS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


def test_the_prompts_count_is_known_as_soon_as_the_server_tells_it() -> None:
    """The ingress may end the answer at any delta."""
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    early = read(event({"delta": {"content": "a"}}, **usage), event({"delta": {"content": "b"}}))
    assert [delta.prompt_tokens for delta in early.found] == [3, 3, 3]
    late = read(event({"delta": {"content": "a"}}), event({"delta": {}, "finish_reason": "stop"}, **usage))
    assert [delta.prompt_tokens for delta in late.found] == [None, 3]


@given(WORDS, st.lists(st.integers(0, 2000), max_size=12), st.one_of(st.none(), st.integers(1, 12)))
@example(["\r\n\n", "data: [DONE]\n"], [1, 7, 8], None)
def test_pieces_do_not_matter(words: list[str], cuts: list[int], limit: int | None) -> None:
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": len(words) + 1}}
    events = [event({"delta": {"content": word}, "finish_reason": None}) for word in words]
    data = b": hello\n\nevent: x\n" + b"".join(events) + event({"delta": {}, "finish_reason": "length"}, **usage)
    data += b"data: [DONE]\n\n"
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    cut, whole = read(*pieces, limit=limit), read(data, limit=limit)
    assert cut.found == whole.found
    assert (whole.text, whole.tokens) == ("".join(words), len(words) + 1)
    last = whole.found[-1]
    assert (last.finish, last.prompt_tokens) == ("length", 3)
    if limit is not None:
        assert sum(delta.tokens for delta in whole.found[:-1]) < max(limit, 1), (
            "the ingress would end it before its time"
        )


@pytest.mark.parametrize(
    ("choice", "text", "items"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, "", 0),
        ({"delta": {"content": None, "tool_calls": [], "reasoning": None}}, "", 0),
        ({"delta": {"tool_calls": [{"index": 0}]}}, "", 1),
        ({"delta": {"reasoning_content": "so"}}, "", 1),
        ({"delta": {"content": "a", "reasoning": "b"}}, "", 1),
        ({"delta": {"content": "a"}, "logprobs": {"content": []}}, "", 1),
        ({"delta": {"content": "a"}, "logprobs": None}, "a", 0),
        ({"text": "a"}, "a", 0),
        ({"text": "a", "logprobs": {"tokens": ["a"]}}, "", 1),
        ({"text": ""}, "", 0),
        ({"delta": None}, "", 0),
        ({"delta": {"content": [{"type": "text", "text": "a"}]}}, "", 1),
    ],
)
def test_text_is_text_and_the_rest_goes_on(choice: Any, text: str, items: int) -> None:
    deltas = read(event(choice))
    assert (deltas.text, len([1 for item in deltas.items if item["choices"]])) == (text, items)
    assert deltas.tokens == bool(text or items)


@given(st.binary(max_size=60))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        deltas = read(b"data: " + data + b"\n\n")
    except EngineFailed as error:
        code = error.code
    else:
        code, deltas = "", deltas
    assert code in ("", "upstream_no_stream", "upstream_failed")
