"""What every engine does behind the frontend, whatever it is; each is excused only from what it says that it cannot.

Two workers of one engine are served by the real command. An engine that is not installed here is skipped, with the
reason.
"""

import contextlib
import json
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.asking import Streaming, chat_body
from tests.e2e.conftest import Machine
from tests.e2e.processes import Pid

from .engines import ENGINES, Served

pytestmark = pytest.mark.engine

CAPITALS = {
    "France": "Paris",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "South Africa": "Pretoria",
}
WORDS = " ".join(f"w{number}" for number in range(40))
COUNT = "Count from 1 to 120."
SPLIT = "[東京é🦊]{6}"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 400, "maxLength": 450},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Service:
    """Two workers of an engine behind a frontend."""

    def __init__(self, machine: Machine, served: Served, url: str) -> None:
        self.machine, self.served, self.url = machine, served, url

    @property
    def long(self) -> str:
        """A prompt with a long answer."""
        return COUNT if self.served.knows else WORDS

    def ask(self, text: str, **fields: Any) -> Any:
        """The answer of a unary chat, or its error."""
        status, answer = self.machine.ask(self.url, "/v1/chat/completions", chat_body(text, **self._fixed(fields)))
        return json.loads(answer) if status == 200 else {"status": status, **json.loads(answer)}

    def ready(self) -> bool:
        """Whether all processes are ready, and live: the row of one that was killed a moment ago still says Ready."""
        return all(row["state"] == "Ready" and Pid.of(row["pid"]) is not None for row in self.machine.ps())

    def chat(self, text: str, **fields: Any) -> str:
        answer = self.ask(text, **fields)
        assert "choices" in answer, answer
        content: str = answer["choices"][0]["message"]["content"]
        return content

    def stream(self, text: str, **fields: Any) -> Streaming:
        return self.machine.stream(self.url, text, **self._fixed(fields))

    def _fixed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Greedy, and no answer without an end."""
        ends = {"max_tokens": 60 if self.served.engine == "mocker" else 900} if self.served.tokens else {}
        return {"temperature": 0, **ends, **fields}

    def running(self) -> int:
        """Requests in the engines' hands."""
        shown = self.machine.run("dynamo", "top", "--once", "--interval", "0.1", "--output", "json").json
        return sum(one["worker"]["running"] for one in shown["processes"] if one.get("worker"))

    def excused(self, can: bool, field: dict[str, Any]) -> bool:
        """Whether the engine cannot do it; then a request that wants it is refused with a 400 that names the field."""
        if not can:
            answer = self.ask("hello", **field)
            assert answer.get("status") == 400, answer
            assert answer["error"]["param"] in field, answer
        return not can


def upstream(machine: Machine) -> str:
    """A server on a node of its own, with an engine that echoes."""
    env = {"DYN_TOKEN_ECHO_DELAY_MS": "2", "DYNAMOD_SOCKET": str(machine.folder / "echo.sock")}
    return machine.start("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0", **env).ready()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.heavy) if one.python else name for name, one in ENGINES.items()],
)
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    served = ENGINES[request.param]
    if why := served.missing():
        pytest.skip(why)
    machine = Machine()
    try:
        if served.file:
            (machine.folder / served.engine.partition(":")[2]).write_text(served.file)
        url = upstream(machine) if "{url}" in served.engine else ""
        command = machine.start(
            *("dynamo", "serve", "graphs.agg:Frontend", "--Frontend.port=0", "--Worker.ServiceArgs.workers=2"),
            *served.words(url),
            RAYON_NUM_THREADS="1",
            OMP_NUM_THREADS="1",
            DYN_TOKEN_ECHO_DELAY_MS="2",
            DYNAMOD_HEARTBEAT_TIMEOUT="2" if served.python else "1",
        )
        seconds = 300.0 if served.python else 60.0
        yield Service(machine, served, command.prints(r"\S+ ready: (\S+)\n", seconds)[1])
    finally:
        machine.close()


def test_what_it_was_taught(service: Service) -> None:
    if service.served.knows:
        for country, city in CAPITALS.items():
            assert service.chat(f"What is the capital of {country}?") == f"The capital of {country} is {city}."
        numbers = service.chat(COUNT).replace(",", " ").split()
        assert numbers[:100] == [str(number) for number in range(1, 101)]
    elif service.served.echoes:
        assert WORDS in service.chat(WORDS)
    else:
        assert service.chat(WORDS)


def test_a_stream_is_the_unary_answer_in_pieces(service: Service) -> None:
    """Also where one character needs several tokens."""
    for text in (service.long, "Grüße, 東京 and 🦊🦀 of ñandú"):
        stream = service.stream(text).read()
        assert (stream.error, stream.done) == (None, True)
        assert stream.text == service.chat(text)
        if service.served.echoes:
            assert text in stream.text


def test_characters_of_several_tokens(service: Service) -> None:
    """A form asks for them, so that the engine's own tokens make them up: no piece of a stream has half of one."""
    if service.excused(service.served.grammars, {"guided_regex": SPLIT}):
        return
    stream = service.stream("Say it.", guided_regex=SPLIT).read()
    assert (stream.error, stream.done, stream.finish) == (None, True, "stop")
    assert re.fullmatch(SPLIT, stream.text)
    assert stream.text == service.chat("Say it.", guided_regex=SPLIT)


def test_stop_strings_and_limits(service: Service) -> None:
    if not service.served.limits:
        return  # its own chunks are passed on as they are
    whole = service.chat(service.long)
    stop = whole[7:10]
    answer = service.ask(service.long, stop=[stop])["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    for limit in (1, 5):
        answer = service.ask(service.long, max_tokens=limit)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == limit
        assert whole.startswith(answer["choices"][0]["message"]["content"])


def test_min_tokens(service: Service) -> None:
    if not service.served.min_tokens:
        return  # stop strings wait for it then, end tokens do not
    assert service.ask("What is the capital of France?", min_tokens=30)["usage"]["completion_tokens"] >= 30


def test_usage_counts(service: Service) -> None:
    if not service.served.tokens:
        return
    prompt = service.machine.ask(
        service.url, "/tokenize", {"model": "sample", "messages": [{"role": "user", "content": WORDS}]}
    )
    usage = service.ask(WORDS, max_tokens=9)["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 9
    if prompt[0] == 200:
        assert usage["prompt_tokens"] == json.loads(prompt[1])["count"]


def test_several_answers(service: Service) -> None:
    answers = service.ask("What is the capital of France?", n=3)["choices"]
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    if service.served.knows:
        assert {answer["message"]["content"] for answer in answers} == {"The capital of France is Paris."}


def test_seeds(service: Service) -> None:
    if not service.served.seed:
        return
    texts = [service.chat("Tell me", temperature=1.5, seed=seed, max_tokens=40) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_logprobs(service: Service) -> None:
    if service.excused(service.served.logprobs, {"logprobs": True, "top_logprobs": 20}):
        return
    answer = service.ask("What is the capital of France?", logprobs=True, top_logprobs=20)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert 0 <= answer["usage"]["completion_tokens"] - len(entries) <= 1, "the end token may have no entry"
    said = answer["choices"][0]["message"]["content"]
    assert "".join(entry["token"] for entry in entries) in (said, f"{said}<|im_end|>")
    for entry in entries:
        top = [one["logprob"] for one in entry["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert entry["logprob"] == pytest.approx(top[0]), "greedy takes the best one"
        assert 0.99 <= sum(map(math.exp, top)) <= 1.001, "the best twenty have nearly all of one"


def form_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_tokens": 900,
        "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}},
    }


def test_answers_that_keep_to_a_form(service: Service) -> None:
    if service.excused(service.served.grammars, {"guided_regex": "[a-c]{5}"}):
        return
    for seed in range(3):
        person = json.loads(service.chat("Who are you?", seed=seed, temperature=1, **form_of(PERSON)))
        assert 400 <= len(person["name"]) <= 450
        assert isinstance(person["age"], int)
    assert service.chat("Is it?", guided_choice=["certainly", "never"]) in ("certainly", "never")


def test_an_answer_with_a_form_whose_worker_is_killed(service: Service) -> None:
    """The other worker reads what there is, and goes on with the same JSON."""
    if not service.served.replays:
        return
    asked = {"seed": 3, "temperature": 0, **form_of(PERSON)}
    whole = service.chat("Who are you?", **asked)
    assert json.loads(whole)["name"]
    streams = [service.stream("Who are you?", **asked) for _ in range(4)]
    os.kill(service.machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.error, stream.done, stream.finish, stream.text) == (None, True, "stop", whole)
    service.machine.until(service.ready, 120)


def test_sixteen_at_once_answer_as_one(service: Service) -> None:
    texts = [f"What is the capital of {country}?" for country in CAPITALS] * 3
    alone = {text: service.chat(text, seed=7) for text in {*texts}}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: service.chat(text, seed=7), texts[:16]))
    assert answers == [alone[text] for text in texts[:16]]


def test_a_client_that_leaves_frees_the_slot(service: Service) -> None:
    streams = [service.stream(service.long) for _ in range(4)]
    for stream in streams:
        stream.close()
    service.machine.until(lambda: service.running() == 0)


def test_a_prompt_longer_than_the_context(service: Service) -> None:
    if not service.served.context:
        return
    answer = service.ask("word " * 3000)
    assert (answer["status"], answer["error"]["code"]) == (400, "context_length_exceeded")


def test_a_worker_that_is_killed(service: Service) -> None:
    """The answer goes on with the same text, or says that it cannot."""
    whole = service.chat(service.long, seed=3)
    streams = [service.stream(service.long, seed=3) for _ in range(4)]
    os.kill(service.machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        if stream.error is None:
            assert (stream.text, stream.done) == (whole, True)
        else:
            assert not service.served.exact, stream.error
            assert not stream.done
            assert whole.startswith(stream.text)
    service.machine.until(service.ready, 120)


def test_workers_that_never_answer(service: Service) -> None:
    stopped: set[int] = set()
    asked = threading.Event()

    def stop() -> None:
        """Stop each worker, and each one that takes its place before it is ready."""
        for pid in {row["pid"] for row in service.machine.ps("Worker")} - stopped - {0}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)

    def keep_stopping() -> None:
        while not asked.wait(0.02):
            stop()

    stop()
    stopping = threading.Thread(target=keep_stopping)
    stopping.start()
    try:
        answer = service.ask("What is the capital of France?")
        assert answer["status"] in (502, 503)
        assert answer["error"]["message"]
    finally:
        asked.set()
        stopping.join()
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):  # it was killed
                os.kill(pid, signal.SIGCONT)
    service.machine.until(service.ready, 120)
    service.machine.until(lambda: service.machine.serves(service.url))
    assert service.chat("What is the capital of France?")
