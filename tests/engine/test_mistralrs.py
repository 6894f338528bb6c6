"""The real mistral.rs with the shipped sample model, as a folder and as GGUF: answers, counts, stops, cancel."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Self, TypeVar

import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs import MistralRs, engine
from dynamod.message import tokens
from dynamod.message.openai import ChatRequest, Message
from dynamod.message.worker import Stops
from dynamod.preprocess.model import Model
from dynamod.preprocess.output import TextOutput

pytestmark = pytest.mark.engine

T = TypeVar("T")

CAPITALS = {
    "France": "Paris",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Kenya": "Nairobi",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
COUNT = "Count from 1 to 30."
LONG = {"max_tokens": 1500, "ignore_eos": True}


class Served:
    """A worker with the engine on a loop of its own, so that the model is loaded once for all tests."""

    def __init__(self, words: Any, name: str) -> None:
        self._words, self._path = words, sample.path(name)
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(60)
        self.engine: MistralRs = self.house.workers[-1]._engine
        self.model: Model = self.engine._model
        self.runner: Any = self.engine._runner
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _main(self) -> None:
        self._down = asyncio.Event()
        try:
            async with System() as system:
                self.house = await self._words.House(system, MistralRs, EngineOptions("m", self._path)).start()
                self._up.set()
                await self._down.wait()
        finally:
            self._up.set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def ask(self, request: Any) -> Any:
        """The whole answer; what the frontend would make of it must be the same."""
        answer = self.run(self._ask(request))
        if answer.error is None:
            door = TextOutput(Stops(request.max_tokens, request.stop))
            seen = ""
            for delta in answer.texts:
                assert door.finish is None
                seen += door.push_text(delta.text, delta.tokens)
                if delta.finish is not None:
                    seen += door.end(delta.finish)
            assert (seen, door.completion_tokens) == (answer.text, answer.count)
        return answer

    async def _ask(self, request: Any) -> Any:
        return await self.house.ask(request).wait(100)

    def chat(self, text: str, **body: Any) -> Any:
        return self.ask(self._words.chat(text, **{"temperature": 0, **body}))

    def completion(self, prompt: Any, **body: Any) -> Any:
        return self.ask(self._words.completion(prompt, **{"temperature": 0, **body}))

    def length(self, text: str) -> int:
        return len(self.model.tokenizer.encode(text))


@pytest.fixture(scope="session", params=["sample", "sample.gguf"], ids=["folder", "gguf"])
def served(request: pytest.FixtureRequest, words: Any) -> Iterator[Served]:
    with Served(words, request.param) as found:
        yield found


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the model say a text, whatever it has learnt."""
    real = engine.lower

    def force(text: str) -> None:
        escaped = "".join("\\" + letter if letter in r'.[]{}()|*+?^$\/"' else letter for letter in text)

        def lower(*arguments: Any) -> Any:
            asked = real(*arguments)
            grammar = {"grammar": f"({escaped})", "grammar_type": "regex"}
            return dataclasses.replace(asked, fields={**asked.fields, **grammar})

        monkeypatch.setattr(engine, "lower", lower)

    return force


# What the sample model knows.


def test_ten_capitals(served: Served) -> None:
    for country, capital in CAPITALS.items():
        answer = served.chat(f"What is the capital of {country}?")
        assert answer.text == f"The capital of {country} is {capital}."
        assert answer.finish == "stop"


def test_counting_stops_by_itself(served: Served) -> None:
    answer = served.chat(COUNT, max_tokens=400)
    assert answer.text == ", ".join(str(number) for number in range(1, 31)) + "."
    assert answer.finish == "stop"


def test_a_tool_call_is_text(served: Served) -> None:
    answer = served.chat("What is the weather in Paris?", tools=[TOOL], max_tokens=100)
    assert answer.text.startswith("<tool_call>\n")
    assert answer.text.endswith("\n</tool_call>")
    call = json.loads(answer.text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call == {"name": "get_weather", "arguments": {"city": "Paris"}}


def test_a_thought_is_text(served: Served) -> None:
    answer = served.chat("Think: what is 2 plus 3?", max_tokens=100)
    assert answer.text == "<think>\n2 plus 3 is 5.\n</think>\n\n5"


# Text and counts, whatever the model knows.


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<think>\n2 plus 3 is 5.\n</think>\n\n5", "chat"),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "chat"),
        ('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]', "chat"),
        ("é🎉漢字 ok", "chat"),
        ("é🎉漢字 ok", "completion"),
        ("ends with white space \n\n", "chat"),
        (" begins with it", "completion"),
        (" \n begins with more", "completion"),
        ("\n\n\n begins with lines", "completion"),
    ],
)
def test_nothing_is_swallowed(
    served: Served, forced: Any, text: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(text)
    usages: list[int] = []
    real = MistralRs._send

    def send(self: MistralRs, asked: Any) -> Iterator[Any]:
        for chunk in real(self, asked):
            usages.extend([chunk.usage.completion_tokens] if chunk.usage else [])
            yield chunk

    monkeypatch.setattr(MistralRs, "_send", send)
    answer = served.chat("hello", tools=[TOOL]) if kind == "chat" else served.completion("hello")
    assert answer.text == text
    assert answer.finish == "stop"
    assert [answer.count] == usages
    assert answer.count > served.length(text), "the ending token counts"


def test_entities_stay_as_they_are(served: Served, forced: Any) -> None:
    forced("a <b>&amp;</b> 'c'")
    assert served.chat("hello").text == "a <b>&amp;</b> 'c'"


def test_a_stop_string_behind_characters_of_several_tokens(served: Served, forced: Any) -> None:
    forced("é🎉漢字 ok then")
    answer = served.chat("hello", stop=[" ok"])
    assert (answer.text, answer.finish) == ("é🎉漢字", "stop")
    assert answer.count >= served.length("é🎉漢字 ok") > 8


def test_counts_are_the_tokenizers(served: Served) -> None:
    question = "What is the capital of France?"
    answer = served.chat(question)
    assert answer.count == served.length(answer.text) + 1
    lowered = served.model.encode(served.model.prepare_chat(ChatRequest(messages=[Message("user", question)])), "r")
    assert answer.prompt_tokens == tokens.count(lowered.token_ids)
    assert [delta.prompt_tokens for delta in answer.texts[:-1]] == [None] * (len(answer.texts) - 1)


def test_prompts_are_not_templated_twice(served: Served) -> None:
    """A rendered chat prompt sent as a completion is the same prompt: special tokens are recognised, none is added."""
    rendered = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    raw, chat = served.completion(rendered), served.chat("What is the capital of France?")
    assert (raw.text, raw.count, raw.prompt_tokens) == (chat.text, chat.count, chat.prompt_tokens)
    for prompt in (rendered, "one two three", "\n\n <b>&amp;'\" {{ x }} "):
        assert list(served.runner.tokenize_text(prompt, True, None)) == served.model.tokenizer.encode(prompt)
        assert _usage(served, prompt).prompt_tokens == served.length(prompt)


def _usage(served: Served, prompt: str) -> Any:
    from mistralrs import ChatCompletionRequest

    asked = ChatCompletionRequest(messages=prompt, model="default", max_tokens=1)
    with served.engine._sending:
        return served.runner.send_chat_completion_request(asked).usage


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_tokens(served: Served, limit: int) -> None:
    answer = served.chat(COUNT, max_tokens=limit)
    assert (answer.finish, answer.count) == ("length", limit)
    assert served.length(answer.text) == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_max_tokens_inside_a_character(served: Served, forced: Any, limit: int) -> None:
    forced("é🎉漢字")
    answer = served.chat("hello", max_tokens=limit)
    assert (answer.finish, answer.count) == ("length", limit)


@pytest.mark.parametrize("how", [{"ignore_eos": True}, {"nvext": {"ignore_eos": True}}, {"min_tokens": 40}])
def test_an_answer_that_may_not_end(served: Served, how: dict[str, Any]) -> None:
    answer = served.chat("What is the capital of France?", max_tokens=40, **how)
    assert (answer.finish, answer.count) == ("length", 40)


@pytest.mark.parametrize(
    ("stop", "shown", "consumed"),
    [
        ("two three", "one ", "one two three"),
        (["xx", "e f"], "one two thre", "one two three four"),
        ("thre", "one two ", "one two three"),
        ("one", "", "one"),
        ("five", "one two three four", "one two three four"),
    ],
)
def test_stop_strings(served: Served, forced: Any, stop: Any, shown: str, consumed: str) -> None:
    forced("one two three four")
    answer = served.chat("hello", stop=stop)
    assert (answer.text, answer.finish) == (shown, "stop")
    # The grammar may be followed in smaller tokens than the tokenizer would choose.
    assert served.length(consumed) <= answer.count <= len(consumed) + (stop == "five")


def test_a_stop_string_that_is_shown(served: Served, forced: Any) -> None:
    forced("one two three four")
    request = served._words.chat("hello", stop="two three", include_stop_str_in_output=True)
    answer = served.run(served._ask(request))
    assert (answer.text, answer.finish) == ("one two three", "stop")


def test_greedy_is_greedy(served: Served) -> None:
    """The prompt is one that the model has never seen, so that it is not sure of anything."""
    texts = {served.completion("x", **LONG | {"max_tokens": 12}).text for _ in range(5)}
    assert len(texts) == 1
    one = served.completion("x", **LONG | {"max_tokens": 12, "temperature": 2.0, "top_k": 1}).text
    assert {one} == texts


def test_a_temperature_of_the_client_counts(served: Served) -> None:
    """Also for the folder, whose generation_config.json says that it does not sample."""
    hot = {served.completion("x", **LONG | {"max_tokens": 12, "temperature": 2.0}).text for _ in range(6)}
    assert len(hot) > 2


def test_a_banned_token_does_not_come(served: Served) -> None:
    plain = served.chat("What is the capital of France?", max_tokens=5)
    [first, *_] = served.model.tokenizer.encode(plain.text)
    banned = served.chat("What is the capital of France?", max_tokens=5, logit_bias={str(first): -100})
    assert banned.texts[0].text != plain.texts[0].text


def test_penalties_reach_the_engine(served: Served) -> None:
    plain = served.chat(COUNT, max_tokens=60)
    other = served.chat(COUNT, max_tokens=60, frequency_penalty=2, presence_penalty=2, repetition_penalty=1.5)
    assert plain.text != other.text


# What cannot be served.


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"messages": []}, "messages", "must not be empty"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"stop_token_ids": [3]}, "stop_token_ids", "cannot stop at token ids"),
        ({"max_tokens": 0}, "max_tokens", "must be between 1"),
        ({"nvext": {"token_data": [1, 2]}}, "nvext.token_data", "takes text"),
        ({"messages": "no"}, "messages", "expected array"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "text"),
    ],
)
def test_a_bad_request_is_told(served: Served, body: dict[str, Any], param: str | None, why: str) -> None:
    answer = served.chat("x", **body)
    assert answer.error is not None
    assert (answer.error.error, answer.error.param) == ("BadRequest", param)
    assert why in answer.error.message
    assert served.chat("What is the capital of France?").finish == "stop"


@pytest.mark.parametrize(("prompt", "why"), [("", "empty"), ([1, 2**30], "token ids"), (["a", "b"], "one prompt")])
def test_a_bad_prompt_is_told(served: Served, prompt: Any, why: str) -> None:
    answer = served.completion(prompt)
    assert answer.error is not None
    assert (answer.error.error, answer.error.param) == ("BadRequest", "prompt")
    assert why in answer.error.message


def test_a_prompt_beyond_the_context(served: Served) -> None:
    assert served.house.published[0].context_length == 2048
    prompt = "one" + " one" * 2047
    assert served.length(prompt) == 2048
    answer = served.completion(prompt)
    assert answer.error is not None
    assert (answer.error.error, answer.error.param) == ("BadRequest", "prompt")
    assert "2048 tokens, but the prompt has 2048 tokens" in answer.error.message


def test_the_context_ends_an_answer(served: Served) -> None:
    prompt = "one" + " one" * 2029
    answer = served.completion(prompt, max_tokens=1000, ignore_eos=True)
    assert (answer.finish, answer.count, answer.prompt_tokens) == ("length", 18, 2030)


# Many at once, leaving, load.


def test_many_at_once_answer_as_each_alone(served: Served) -> None:
    async def all_of() -> list[Any]:
        asked = [served._words.chat(f"What is the capital of {country}?", temperature=0) for country in CAPITALS]
        answers = [served.house.ask(request) for request in asked]
        return [await answer.wait(100) for answer in answers]

    together = served.run(all_of())
    alone = [served.chat(f"What is the capital of {country}?") for country in CAPITALS]
    assert [(a.text, a.count, a.finish) for a in together] == [(a.text, a.count, a.finish) for a in alone]


def test_leaving_stops_the_engine(served: Served, words: Any) -> None:
    async def leave() -> int:
        before = served.house.statistics.engine.tokens
        answers = [served.house.ask(words.chat("Tell me a story.", **LONG)) for _ in range(2)]
        for answer in answers:
            await words.until(lambda answer=answer: len(answer.texts) > 3)
        assert served.house.statistics.engine.running == 2
        for answer in answers:
            answer.stream.cancel()
        assert served.house.statistics.open == 0
        await words.until(lambda: served.house.statistics.engine.running == 0)
        return served.house.statistics.engine.tokens - before

    assert served.run(leave()) < 1000
    time.sleep(0.3)  # the engine sees the empty chair at its next token
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1, "the engine still works"


def test_the_statistics_are_real(served: Served) -> None:
    before = served.house.statistics.engine
    answer = served.chat("What is the capital of France?")
    after = served.house.statistics.engine
    assert after.tokens - before.tokens == answer.count
    assert (after.running, after.waiting, after.in_step_for) == (0, 0, None)


def test_the_card(served: Served) -> None:
    [card] = served.house.published
    assert (card.name, card.kind, card.engine, card.types) == ("m", "text", "mistralrs", ("chat", "completions"))
    assert card.capabilities == MistralRs.capabilities
    assert card.eos_token_ids == served.model.tokenizer.eos_ids


# Models that are not the sample.
