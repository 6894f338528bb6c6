"""mistralrs without its engine: arguments, deltas, and what happens when the engine fails in every way it can."""

import asyncio
import inspect
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mistralrs
import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs import MistralRs, engine
from dynamod.engine.mistralrs.loading import _files, load, max_seqs, split
from dynamod.engine.mistralrs.lowering import PlainText, prepare
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items

OPTIONS = EngineOptions("m", sample.path("sample"))


def choice(
    content: str | None = None,
    finish: str | None = None,
    *,
    reasoning: str | None = None,
    calls: Any = None,
    token: bytes | None = None,
) -> SimpleNamespace:
    delta = SimpleNamespace(content=content, reasoning_content=reasoning, tool_calls=calls)
    logprobs = None if token is None else SimpleNamespace(bytes=token)
    return SimpleNamespace(delta=delta, finish_reason=finish, logprobs=logprobs)


def chunk(
    content: str | None, finish: str | None = None, usage: int | None = None, cached: int | None = None
) -> SimpleNamespace:
    details = None if cached is None else SimpleNamespace(cached_tokens=cached)
    counted = None if usage is None else SimpleNamespace(completion_tokens=usage, prompt_tokens_details=details)
    return SimpleNamespace(choices=[choice(content, finish)], usage=counted)


class Panic(BaseException):
    """What a panic of the engine looks like: no Exception."""


class FakeRunner:
    """Plays `script` for each request: chunks are yielded, exceptions raised, events waited for."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.asked: list[Any] = []
        self.dropped = threading.Event()

    def max_sequence_length(self) -> int:
        return 1000

    def tokenize_text(self, text: str, special: bool, thinking: Any) -> list[int]:
        return []

    def send_chat_completion_request(self, request: Any) -> Iterator[Any]:
        self.asked.append(request)
        return self._play()

    def _play(self) -> Iterator[Any]:
        try:
            for item in self.script:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, threading.Event):
                    item.wait()
                else:
                    yield item
        finally:
            self.dropped.set()


async def served(words: Any, system: System, monkeypatch: pytest.MonkeyPatch, *script: Any, **arguments: Any) -> Any:
    runner = FakeRunner(list(script))
    monkeypatch.setattr(engine, "load", lambda options: runner)
    options = EngineOptions("m", sample.path("sample"), arguments=arguments)
    house = await words.House(system, MistralRs, options).start()
    house.runner = runner
    return house


@pytest.mark.parametrize(
    ("broken", "why", "logged"),
    [
        (
            ValueError("argmax received invalid logits\n   0: back\n   1: trace"),
            "ValueError",
            "argmax received invalid",
        ),
        (Panic("called `unwrap` on a `None` value"), "Panic", "called `unwrap`"),
        (Panic(), "Panic", "Panic"),
        (chunk("", "error", 3), "ended the answer with 'error'", ""),
        (None, "stopped in the middle", ""),
    ],
)
async def test_a_failing_engine_ends_the_stream(
    words: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: Any, why: str, logged: str
) -> None:
    script = [chunk("a"), chunk("b"), *([] if broken is None else [broken])]
    async with System() as system:
        house = await served(words, system, monkeypatch, *script)
        answer = await house.ask(words.chat("x")).wait(5)
        assert answer.text == "ab"
        assert answer.error is not None
        assert (answer.error.error, answer.error.retry) == ("EngineFailed", False)
        assert why in answer.error.message
        assert logged in caplog.text
        assert "\n" not in answer.error.message
        house.runner.script = [chunk("c"), chunk("", "stop", 2)]
        assert (await house.ask(words.chat("x")).wait(5)).text == "c", "the worker serves the next request"
        assert house.statistics.engine.running == 0


async def test_a_refusal_has_its_code(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch)
        long = await house.ask(words.completion("word " * 1500)).wait(5)
        wrong = await house.ask(words.completion("x", stop_token_ids=[5])).wait(5)
    assert long.error is not None
    assert (long.error.error, long.error.param, long.error.code) == ("BadRequest", "prompt", "context_length_exceeded")
    assert wrong.error is not None
    assert (wrong.error.param, wrong.error.code) == ("stop_token_ids", None)


async def test_the_usage_corrects_the_count_at_the_end(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), chunk("😀"), chunk("", "stop", 9))
        answer = await house.ask(words.chat("x")).wait(5)
        assert [delta.tokens for delta in answer.texts] == [1, 1, 7]
        assert house.statistics.engine.tokens == 9
        assert not [delta for delta in answer.deltas if isinstance(delta, Items)], "it has said nothing of its cache"


async def test_what_was_cached_goes_on(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), chunk("", "stop", 2, cached=3))
        answer = await house.ask(words.chat("x")).wait(5)
        assert (answer.finish, answer.text) == ("stop", "a")
        (said,) = [delta.items for delta in answer.deltas if isinstance(delta, Items)]
        assert said == ({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}},)


async def test_ids_are_a_prompt_too(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), chunk("", "stop", 2))
        model, text = house.workers[-1]._engine._model, "What is <|im_end|> the capital?"
        asked = words.completion(ids := model.tokenizer.encode(text))
        answer = await house.ask(asked).wait(5)
        assert (answer.finish, answer.prompt_tokens) == ("stop", len(ids))
        assert prepare(model, asked).prompt == text


async def test_a_stop_string_ends_the_reading(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("one tw"), chunk("o th"), chunk("ree"), never)
        answer = await house.ask(words.chat("x", stop=["two three"])).wait(5)
        assert (answer.text, answer.finish, answer.count) == ("one ", "stop", 3)
        assert [delta.text for delta in answer.texts] == ["one ", "", ""]
        assert house.runner.dropped.wait(5), "the iterator is given up"


async def test_a_stop_string_may_be_shown_and_waits_for_min_tokens(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [chunk("a"), chunk("b"), chunk("a"), chunk("b"), chunk("", "stop", 5)]
    async with System() as system:
        house = await served(words, system, monkeypatch, *script)
        shown = await house.ask(words.chat("x", stop="b", include_stop_str_in_output=True)).wait(5)
        later = await house.ask(words.chat("x", stop="b", min_tokens=3)).wait(5)
        assert (shown.text, shown.count) == ("ab", 2)
        assert (later.text, later.count, later.finish) == ("aba", 4, "stop")


async def test_an_end_at_the_limit_is_a_stop(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), chunk("", "stop", 2))
        answer = await house.ask(words.chat("x", max_tokens=2)).wait(5)
        assert (answer.finish, answer.count) == ("stop", 2)


async def test_requests_beyond_max_seqs_wait_and_can_be_cancelled(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), gate, chunk("", "stop", 2), max_seqs=2)
        answers = [house.ask(words.chat("x")) for _ in range(4)]
        await words.until(lambda: all(answer.texts for answer in answers[:2]))
        busy = house.statistics.engine
        assert (busy.running, busy.waiting) == (2, 2)
        assert busy.in_step_for is not None
        answers[3].stream.cancel()
        assert house.statistics.engine.waiting == 1
        gate.set()
        for answer in answers[:3]:
            assert (await answer.wait(5)).text == "a"
        assert len(house.runner.asked) == 3, "the cancelled one never reached the engine"
        await words.until(lambda: not house.statistics.engine.running)
        assert house.statistics.engine.in_step_for is None


async def test_cancel_gives_up_the_iterator(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), gate, *[chunk("b")] * 9, threading.Event())
        answer = house.ask(words.chat("x"))
        await words.until(lambda: answer.texts)
        answer.stream.cancel()
        gate.set()
        assert house.runner.dropped.wait(5)
        assert answer.text == "a"


async def test_the_end_of_the_worker_ends_its_threads(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch, *[chunk("b")] * 3, chunk("", "stop", 4))
        await house.ask(words.chat("x")).wait(5)
        threads = list(house.workers[-1]._engine._pool._threads)
        assert any(thread.is_alive() for thread in threads)
    assert not any(thread.is_alive() for thread in threads)


async def test_a_hanging_engine_does_not_keep_the_worker(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(engine, "CLOSE", 0.05)
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("a"), gate)
        answer = house.ask(words.chat("x"))
        await words.until(lambda: answer.texts)
        async with asyncio.timeout(2):
            await system.root.stop_child("worker")
        assert answer.error is not None
        assert answer.error.retry
    gate.set()


async def test_a_context_that_the_engine_cuts_shorter_is_the_cards(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with System() as system:
        house = await served(words, system, monkeypatch)
        assert house.published[0].context_length == 1000


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {"temperature": 0.0, "top_k": None, "max_tokens": 1000 - 9, "logprobs": False}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9, "top_k": 1024}),
        ({"nvext": {"greed_sampling": True}}, {"temperature": 0.0}),
        ({"temperature": 1, "nvext": {"top_k": 3}}, {"top_k": 3}),
        ({"temperature": 1, "top_k": 0}, {"top_k": 1024}),
        ({"temperature": 1, "top_k": -1}, {"top_k": 1024}),
        ({"logit_bias": {"5": 3}}, {"logit_bias": {5: 3}}),
        ({"min_p": 0.2, "presence_penalty": 1, "frequency_penalty": -1}, {"min_p": 0.2, "presence_penalty": 1}),
        ({"repetition_penalty": 1.0}, {"repetition_penalty": 1.0}),
        ({"max_tokens": 4}, {"max_tokens": 4, "ignore_eos": False}),
        ({"max_tokens": 4, "min_tokens": 4}, {"ignore_eos": True}),
        ({"max_tokens": 4, "min_tokens": 3}, {"ignore_eos": False}),
        ({"nvext": {"ignore_eos": True}}, {"ignore_eos": True}),
        ({"n": 5, "user": "u", "strange": 1}, {"n_choices": 1}),
        ({"stop": ["x"]}, {"stop_seqs": None, "logprobs": True}),
    ],
)
async def test_what_the_engine_is_asked(
    words: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    real = mistralrs.ChatCompletionRequest
    defaults = {name: item.default for name, item in inspect.signature(real).parameters.items()}

    def make(**given: Any) -> SimpleNamespace:
        assert real(**given) is not None  # which cannot be read
        return SimpleNamespace(**{**defaults, **given})

    monkeypatch.setattr(mistralrs, "ChatCompletionRequest", make)
    async with System() as system:
        house = await served(words, system, monkeypatch, chunk("", "stop", 1))
        answer = await house.ask(words.chat("x", **fields)).wait(5)
        assert answer.finish == "stop"
        [asked] = house.runner.asked
        assert {key: getattr(asked, key) for key in sent} == sent
        assert asked.messages == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_thoughts_and_calls_become_text_again() -> None:
    function = SimpleNamespace(name='get "it"', arguments='{"a": 1}')
    plain = PlainText()
    parts = [
        choice(reasoning="so "),
        choice(reasoning="what"),
        choice("well"),
        choice(calls=[SimpleNamespace(function=function), SimpleNamespace(function=function)]),
        choice(),
    ]
    call = '<tool_call>\n{"name": "get \\"it\\"", "arguments": {"a": 1}}\n</tool_call>'
    assert "".join(plain.of(part) for part in parts) == f"<think>\nso what\n</think>\n\nwell{call}{call}"


@pytest.mark.parametrize(
    ("content", "token", "text"),
    [
        ("", b" ", " "),
        ("lead", b" lead", " lead"),
        ("", b"\n\n", "\n\n"),
        ("lead", b"lead", "lead"),
        ("", b"<|im_end|>", ""),
        ("", b"\xf0", ""),
        ("lead", None, "lead"),
        ("x", b" y", "x"),
    ],
)
def test_white_space_at_the_start_comes_back(content: str, token: bytes | None, text: str) -> None:
    plain = PlainText()
    assert plain.of(choice(content, token=token)) == text
    assert plain.of(choice("", token=b" ")) == "", "only the first is cut"


def test_arguments_find_their_place() -> None:
    given = {"prefix-cache-n": 4, "in_situ_quant": "Q4K", "dtype": "f32"}
    runner, which = split(given, mistralrs.Runner, mistralrs.Which.Plain)
    assert runner == {"prefix_cache_n": 4, "in_situ_quant": "Q4K"}
    assert which == {"dtype": "f32"}


def test_an_unknown_argument_names_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        load(EngineOptions("m", sample.path("sample"), arguments={"max-seq": 3}))
    line = caught.value.line()
    assert "mistralrs takes no argument 'max-seq'; did you mean 'max_seqs'?" in line
    assert "prefix_cache_n" in line
    assert "jinja_explicit" not in line, "the template is ours"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"arch": "Lama"}, "knows no arch 'Lama'; known: .*Llama"),
        ({"dtype": "f99"}, "knows no dtype 'f99'; known: .*BF16"),
        ({"prefix_cache_n": "many"}, "prefix_cache_n"),
        ({"prefix_cache_n": -1}, "negative"),
        ({"in_situ_quant": "Q99"}, "Q4K"),
    ],
)
def test_a_wrong_argument_is_explained(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as caught:
        load(EngineOptions("m", sample.path("sample"), arguments=arguments))
    assert re.search(why, caught.value.line()), caught.value.line()


@pytest.mark.parametrize("value", [0, -1, "8", True, 1.5])
def test_max_seqs_is_a_number_from_1(value: Any) -> None:
    with pytest.raises(UserError, match="max_seqs"):
        max_seqs({"max-seqs": value})
    assert max_seqs({}) == 32
    assert max_seqs({"max_seqs": 3}) == 3


def test_all_shards_of_a_gguf_are_named(tmp_path: Path) -> None:
    found = _files(tmp_path / "big-00001-of-00003.gguf", None)
    assert found["quantized_filename"] == [f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert found["quantized_model_id"] == str(tmp_path)


def test_a_config_folder_lends_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert _files(Path("/m/a.gguf"), tmp_path)["tok_model_id"] == str(tmp_path)
    assert _files(Path("/m"), tmp_path / "config.json")["tokenizer_json"] == str(tmp_path / "tokenizer.json")
    assert "tok_model_id" not in _files(Path("/m/a.gguf"), None)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sample.path("sample"), folder)
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (b"garbage", b"", whole[:-1], whole[:9], (1 << 60).to_bytes(8, "little") + b"{}"):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(UserError) as caught:
            load(EngineOptions("m", folder))
        assert "model.safetensors is damaged or cut off" in caught.value.line()


@pytest.mark.parametrize(("given", "expected"), [({}, 0), ({"prefix_cache_n": 4}, 4), ({"prefix-cache-n": 4}, 4)])
def test_the_prefix_cache_is_off_unless_asked_for(
    given: dict[str, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def runner(*, which: Any, max_seqs: int, prefix_cache_n: int, jinja_explicit: str) -> None:
        seen.append(prefix_cache_n)

    monkeypatch.setattr(mistralrs, "Runner", runner)
    load(EngineOptions("m", sample.path("sample"), arguments=given))
    assert seen == [expected]
