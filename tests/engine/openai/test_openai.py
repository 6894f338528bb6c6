"""The engine `openai` in a real worker, at a server that misbehaves on purpose: text, errors, clocks, cancels."""

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.actor import Crashed, System
from dynamod.engine.base import EngineOptions
from dynamod.engine.openai import command, upstream
from dynamod.engine.openai import engine as module
from dynamod.engine.openai.engine import OpenAI
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items, Text
from dynamod.message.vectors import unpack
from dynamod.message.worker import Chat

from ...ports import free_port

PROGRAM = str(Path(__file__).with_name("misbehaving.py"))


def made(words: Any, system: System, url: str, served: str = "", named: str = "", **arguments: Any) -> Any:
    arguments = {"health_interval": 0.05, **({"url": url} if url else {}), **arguments}
    return words.House(system, OpenAI, EngineOptions(named, model=served, arguments=arguments))


async def house(words: Any, system: System, *given: str, **arguments: Any) -> Any:
    return await made(words, system, *given, **arguments).start(f"worker-{given[1:]}")


async def refused_start(words: Any, url: str, **arguments: Any) -> str:
    """The line with which a start ends."""
    ended: list[Any] = []
    async with System() as system:
        ref = system.start("worker", made(words, system, url, **arguments)._worker, restart="temporary")
        system.watch(ref, ended.append)
        await words.until(lambda: ended, 30)
    error = ended[0].reason.error
    assert isinstance(error, UserError)
    return error.line()


async def test_text_comes_as_it_is_said_and_the_usage_counts(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url)
        assert (worker.published[0].name, worker.published[0].kind) == ("theirs", "text")
        for _ in range(3):
            answer = await worker.ask(words.chat("hi", max_tokens=5)).wait(5)
            assert (answer.text, answer.finish, answer.count, answer.prompt_tokens) == ("0 1 2 ", "length", 5, 11)
        assert [text.tokens for text in answer.texts] == [1, 1, 1, 2]
        answer = await worker.ask(words.completion("hi", max_tokens=2)).wait(5)
        assert [text.tokens for text in answer.texts] == [1, 0, 0, 4], "the limit of the ingress is never reached early"
        assert worker.statistics.engine.tokens == 20
        await words.until(lambda: worker.statistics.engine.running == 0)
    assert server.is_.open == 0
    assert server.is_.seen[0] == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ("infinite", "a vector without a direction"),
        ("zero", "a vector without a direction"),
        ("words", "answers with no vectors"),
        ("no-end", "more than 1 MB"),
    ],
)
async def test_vectors_that_are_none_are_the_error_of_their_request(
    words: Any, server: Any, served: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "VECTORS", 1 << 20)
    async with System() as system:
        worker = await house(words, system, server.url, served, embeddings=True)
        answer = await worker.ask(Chat("r", served, "embedding", b'{"input": "hi"}')).wait(5)
        assert (answer.error.error, answer.error.code) == ("EngineFailed", "upstream_no_vectors")
        assert says in answer.error.message


async def test_vectors_have_length_one(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, "good", embeddings=True)
        answer = await worker.ask(Chat("r", "good", "embedding", b'{"input": "hi"}')).wait(5)
    (items,) = [delta for delta in answer.deltas if isinstance(delta, Items)]
    assert list(unpack(items.items[0])) == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(
    ("model", "name", "argument", "ours", "theirs"),
    [
        ("", "", "", "theirs", "theirs"),
        ("good", "", "", "good", "good"),
        ("good", "mine", "", "mine", "good"),
        ("", "other", "", "other", "other"),
        ("", "mine", "", "mine", "theirs"),
        ("good", "mine", "better", "mine", "better"),
    ],
)
async def test_names_of_models(
    words: Any, server: Any, model: str, name: str, argument: str, ours: str, theirs: str
) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, model, name, **({"model": argument} if argument else {}))
        assert worker.published[0].name == ours
        await worker.ask(words.chat("hi")).wait(5)
    assert server.is_.seen[0]["model"] == theirs


async def test_what_is_no_text_goes_on_as_it_came(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, "tools")
        answer = await worker.ask(words.chat("hi")).wait(5)
        items = [
            item["choices"][0]["delta"]
            for delta in answer.deltas
            if isinstance(delta, Items)
            for item in delta.items
            if item["choices"]
        ]
        assert [item.get("reasoning_content") for item in items[:2]] == ["so ", "so"]
        assert items[2]["tool_calls"][0]["function"]["name"] == "f"
        last = answer.deltas[-1]
        assert isinstance(last, Text)
        assert (answer.finish, last.prompt_tokens, answer.count) == ("tool_calls", 7, 9)
        worker = await house(words, system, server.url, "logprobs")
        answer = await worker.ask(words.chat("hi", logprobs=True)).wait(5)
        (item,) = [delta.items[0] for delta in answer.deltas if isinstance(delta, Items)]
        assert item["choices"][0]["delta"] == {"content": "hi"}
        assert item["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
        assert answer.count == 1


@pytest.mark.parametrize(
    ("how", "error", "code", "retry", "text"),
    [
        ("401", "EngineFailed", "upstream_unauthorized", False, "answers 401: 401 on purpose"),
        ("403", "EngineFailed", "upstream_unauthorized", False, "answers 403"),
        ("unknown", "NotFound", "model_not_found", False, "answers 404: unknown on purpose"),
        ("busy", "Overloaded", "upstream_overloaded", True, "answers 429"),
        ("broken", "Overloaded", "upstream_failed", True, "answers 500"),
        ("loading", "Overloaded", "upstream_failed", True, "answers 503"),
        ("wrong", "BadRequest", "purpose", False, "wrong on purpose"),
        (
            "html",
            "EngineFailed",
            "upstream_no_stream",
            False,
            "text/html; charset=utf-8, not with a stream of events: <h1>Log in first",
        ),
        ("whole", "EngineFailed", "upstream_no_stream", False, "application/json"),
        ("nonsense", "EngineFailed", "upstream_no_stream", False, "no OpenAI chunk"),
        ("no-end", "EngineFailed", "upstream_no_stream", False, "without an end"),
        ("closes", "Overloaded", "upstream_unreachable", True, "cannot be reached"),
        ("ends-at-once", "Overloaded", "no_workers", True, "without an answer"),
        ("cut", "EngineFailed", "upstream_cut", False, "cut in the middle of the answer"),
        ("ends-early", "EngineFailed", "upstream_cut", False, "cut in the middle of the answer"),
        ("error-event", "EngineFailed", "upstream_failed", False, "out of memory"),
        ("stalls", "TimedOut", "upstream_stalled", False, "paused for more than 0.3 s"),
        ("silent", "TimedOut", "upstream_silent", False, "no token came from the server within 0.4 s"),
    ],
)
async def test_every_fault_is_an_error_of_its_own(
    words: Any, server: Any, how: str, error: str, code: str, retry: bool, text: str
) -> None:
    async with System() as system:
        clocks = {"stalls": {"gap_timeout": 0.3}, "silent": {"first_timeout": 0.4}}.get(how, {})
        worker = await house(words, system, server.url, how, **clocks)
        answer = await worker.ask(words.chat("hi")).wait(10)
        assert answer.error is not None
        assert (answer.error.error, answer.error.code, answer.error.retry) == (error, code, retry), answer.error
        assert text in answer.error.message
        await words.until(lambda: server.is_.open == 0)
        await words.until(lambda: worker.statistics.engine.running == 0)
        assert worker.statistics.open == 0


async def test_a_server_that_forgets_the_end_or_the_usage(words: Any, server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "AFTER_FINISH", 0.2)
    async with System() as system:
        worker = await house(words, system, server.url, "no-done")
        answer = await worker.ask(words.chat("hi")).wait(5)
        assert (answer.text, answer.finish, answer.count, answer.prompt_tokens) == ("0 1 2 ", "length", 3, None)
        worker = await house(words, system, server.url, "no-usage")
        answer = await worker.ask(words.chat("hi")).wait(5)
        assert (answer.finish, answer.count) == ("length", 3)
        await words.until(lambda: server.is_.open == 0)


async def test_a_slow_server_has_its_time_for_the_usage(words: Any, server: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "AFTER_FINISH", 1.5)
    async with System() as system:
        worker = await house(words, system, server.url, "late-usage")
        answer = await worker.ask(words.chat("hi")).wait(10)
        assert (answer.finish, answer.count, answer.prompt_tokens) == ("length", 5, 11)


async def test_who_leaves_ends_the_request_there(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, "drips")
        answers = [worker.ask(words.chat("hi")) for _ in range(8)]
        await words.until(lambda: server.is_.open == 8 and all(answer.text for answer in answers))
        for answer in answers:
            answer.stream.cancel()
        await words.until(lambda: server.is_.open == 0)
        assert worker.statistics.cancelled == 8


async def test_the_trace_of_a_request_goes_with_it(words: Any, server: Any) -> None:
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "a=1", "baggage": "user=alice"}
    async with System() as system:
        worker = await house(words, system, server.url)
        await worker.ask(msgspec.structs.replace(words.chat("hi"), trace=trace)).wait(5)
        await worker.ask(words.chat("hi")).wait(5)
    first, second = server.is_.headers[-2:]
    assert trace.items() <= {name.lower(): value for name, value in first.items()}.items()
    assert not [name for name in second if name.lower() in trace]


async def test_a_key_goes_with_every_request_and_into_no_message(
    words: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "right-key")
    async with System() as system:
        worker = await house(words, system, server.url, api_key_env="THEIR_KEY")
        await worker.ask(words.chat("hi")).wait(5)
    assert server.is_.headers[0]["Authorization"] == "Bearer right-key"
    monkeypatch.setenv("THEIR_KEY", "wrong-key")
    line = await refused_start(words, server.url, api_key_env="THEIR_KEY")
    assert "answers 401: no such key: ***" in line
    assert "api_key_env" in line
    monkeypatch.delenv("THEIR_KEY")
    assert "THEIR_KEY is empty or not set" in await refused_start(words, server.url, api_key_env="THEIR_KEY")


async def test_who_does_not_answer_at_the_start_is_a_line(words: Any, server: Any) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    line = await refused_start(words, url)
    assert f"{url} cannot be reached" in line
    server.is_.down = True
    assert "answers 503: down on purpose" in await refused_start(words, server.url)


async def test_a_server_without_a_list_of_models_needs_a_name(words: Any, server: Any) -> None:
    nowhere = server.url.replace("/v1", "/elsewhere")
    assert "/models lists no model" in await refused_start(words, nowhere)
    async with System() as system:
        worker = await house(words, system, nowhere, "theirs")
        assert worker.published[0].name == "theirs"
        answer = await worker.ask(words.chat("hi")).wait(5)
        assert answer.error.error == "NotFound"


async def test_a_server_that_is_gone_ends_the_worker(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url)
        ended: list[Any] = []
        system.watch(worker.ref, ended.append)
        server.is_.down = True
        await words.until(lambda: ended, 30)
        assert isinstance(ended[0].reason, Crashed)
        assert "answers 503" in str(ended[0].reason)
        assert worker.withdrawn


async def test_a_server_that_computes_may_be_slow_to_tell_its_health(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, "drips")
        answer = worker.ask(words.chat("hi"))
        await words.until(lambda: answer.text)
        server.is_.down = True
        await asyncio.sleep(0.5)
        assert worker.statistics.open == 1
        answer.stream.cancel()
        ended: list[Any] = []
        system.watch(worker.ref, ended.append)
        await words.until(lambda: ended, 30)


async def test_several_choices_have_several_seeds(words: Any, server: Any) -> None:
    async with System() as system:
        worker = await house(words, system, server.url)
        request = words.chat("hi", n=2, seed=5, nvext={"top_k": 3, "annotations": ["request_id"]}, echo=True)
        for number in range(2):
            await worker.ask(msgspec.structs.replace(request, request_id=f"r#{number}")).wait(5)
    first, second = server.is_.seen
    assert (first["seed"], second["seed"]) == (5, 6)
    assert first["nvext"] == {"top_k": 3}
    assert not first.keys() & {"n", "echo"}


def cmd(*words: str) -> list[str]:
    return [sys.executable, PROGRAM, "{port}", *words]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is told to end has little time until it is killed: it waits for its connections."""
    monkeypatch.setattr(command, "GRACE", 0.3)


async def test_a_program_is_started_and_ended_with_the_worker(words: Any, tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "pids"
    async with System() as system:
        worker = await house(words, system, "", cmd=cmd("--child", str(file)))
        answer = await worker.ask(words.chat("hi")).wait(5)
        assert answer.text == "0 1 2 "
        program, child = map(int, file.read_text().split())
        assert alive(program)
    assert not alive(program)
    os.kill(child, signal.SIGKILL)  # it is of the group of the worker's process, which the daemon ends


async def test_a_program_that_ends_takes_the_worker_with_it(words: Any, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with System() as system:
        worker = await house(words, system, "", cmd=shlex.join(cmd("--child", str(file))))
        ended: list[Any] = []
        system.watch(worker.ref, ended.append)
        program, child = map(int, file.read_text().split())
        os.kill(program, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        await words.until(lambda: ended, 30)
        assert "was ended by signal 9" in str(ended[0].reason)


@pytest.mark.parametrize(
    ("words_of_cmd", "text"),
    [
        (["nosuchprogram"], "cmd nosuchprogram ended with code 1: nosuchprogram: No such file or directory"),
        ([sys.executable, "-c", "print('one'); print('no GPU here'); raise SystemExit(3)"], "code 3: no GPU here"),
    ],
)
async def test_a_program_that_cannot_start_says_why(words: Any, words_of_cmd: list[str], text: str) -> None:
    assert text in await refused_start(words, "", cmd=words_of_cmd)


async def test_a_program_that_never_answers(words: Any, tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "pids"
    line = await refused_start(words, "", cmd=cmd("--silent", "--child", str(file)), start_timeout=4)
    assert "within 4 s" in line
    program, child = map(int, file.read_text().split())
    os.kill(child, signal.SIGKILL)
    assert not alive(program)
