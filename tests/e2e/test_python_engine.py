"""A user's own Python file as an engine or as a client, started with plain `python`, beside the real commands."""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.daemon import infra

from .nodes import Servers, models, on

OWN = """
import asyncio
import sys

import uvloop

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


# 1. Decorate a function to get the runtime
#
@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime):

    # 2. Register ourselves on the network
    #
    component = runtime.namespace("namespace").component("component")
    await component.create_service()
    model_path = "sample"
    model_type = ModelType.Backend
    endpoint = component.endpoint("endpoint")
    # Optional last param to register_llm is model_name. If not present derives it from model_path
    await register_llm(model_type, endpoint, model_path)

    # Initialize your engine here
    engine = 0.005

    # 3. Attach request handler
    #
    await endpoint.serve_endpoint(RequestHandler(engine).generate)


class RequestHandler:
    def __init__(self, engine):
        self.pause = engine

    async def generate(self, request):
        # Call the engine
        # yield result dict
        for token in request["token_ids"][: request["stop_conditions"]["max_tokens"]]:
            await asyncio.sleep(self.pause)
            yield {"token_ids": [token]}


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
"""
"""The file of the guide with its body filled in: it says the prompt again."""

CHAT = """
import asyncio

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker


async def chat(request):
    words = request["messages"][-1]["content"].split()
    if words == ["break"]:
        raise RuntimeError("the engine is broken")
    if words == ["nonsense"]:
        yield "no chunk"
    for word in words:
        yield {"choices": [{"index": 0, "delta": {"content": word.upper() + " "}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": len(words)}}


async def complete(request):
    return {"choices": [{"index": 0, "text": request["prompt"][::-1], "finish_reason": "length"}]}


@dynamo_worker()
async def worker(runtime):
    component = runtime.namespace("mine").component("talker")
    talk, write = component.endpoint("talk"), component.endpoint("write")
    await register_llm(ModelType.Chat, talk, "org/talker")
    await register_llm(ModelType.Completion, write, "org/writer", user_data={"adapter": "a"})
    await asyncio.gather(talk.serve_endpoint(chat), write.serve_endpoint(complete))
    print("both have ended", flush=True)


asyncio.run(worker())
"""

COUNT = '''
import asyncio
import sys

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker

graceful = sys.argv[1] == "graceful"


async def generate(request, context):
    """Numbers of three letters: each depends on all ids before it, so a seam would show."""
    ids, left = request["token_ids"], request["stop_conditions"]["max_tokens"]
    print(f"begins behind {len(ids)} ids, {left} to go", flush=True)
    for _ in range(left):
        if context.is_stopped():
            print("stopped", flush=True)
            return
        ids = [*ids, (sum(ids) * 31 + len(ids)) % 900 + 50]
        yield {"token_ids": ids[-1:], "finish_reason": None}
        await asyncio.sleep(0.01)
    yield {"token_ids": [], "finish_reason": "length"}


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.namespace("mine").component("counter").endpoint("generate")
    await register_llm(ModelType.Backend, endpoint, "sample", migration_limit=3)
    await endpoint.serve_endpoint(generate, graceful_shutdown=graceful)


asyncio.run(worker())
'''

SERVER = """
import asyncio
import os

from pydantic import BaseModel

from dynamo.runtime import dynamo_endpoint, dynamo_worker


class Request(BaseModel):
    text: str


class Handler:
    @dynamo_endpoint(Request, str)
    async def generate(self, request, context):
        for word in request.text.split():
            yield {"word": word, "pid": os.getpid()}


@dynamo_worker(static=__STATIC__)
async def worker(runtime):
    component = runtime.namespace("mine").component("words")
    await component.create_service()
    await component.endpoint("generate").serve_endpoint(Handler().generate)


asyncio.run(worker())
"""

CLIENT = """
import asyncio
import json
import sys

from dynamo.runtime import dynamo_worker


@dynamo_worker()
async def worker(runtime):
    endpoint = runtime.namespace("mine").component("words").endpoint("generate")
    client = await endpoint.client()
    while len(client.instance_ids()) < int(sys.argv[1]):
        await client.wait_for_instances()
        await asyncio.sleep(0.02)
    request = {"text": "a b c"}

    async def pid(call):
        items = [item.data() async for item in await call]
        assert [item["word"] for item in items] == ["a", "b", "c"], items
        return items[0]["pid"]

    seen = {
        "random": [await pid(client.random(request)) for _ in range(20)],
        "round_robin": [await pid(client.round_robin(json.dumps(request))) for _ in range(4)],
        "direct": [await pid(client.direct(request, one)) for one in client.instance_ids() for _ in range(2)],
    }
    try:
        await pid(client.random({"txt": 1}))
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(seen), flush=True)
    if len(sys.argv) > 2:
        await asyncio.Event().wait()


asyncio.run(worker())
"""

HAMMER = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    client = await runtime.namespace("mine").component("words").endpoint("generate").client()
    while len(client.instance_ids()) < 2:
        await asyncio.sleep(0.02)
    print("begins", flush=True)

    async def call():
        count = 0
        while len(client.instance_ids()) > 1 or count < 50:
            assert len([item async for item in client.round_robin({"text": "a b c"})]) == 3
            count += 1
        return count

    print(sum(await asyncio.gather(*(call() for _ in range(4)))), "calls", flush=True)

asyncio.run(worker())
"""

ECHO = """
import asyncio
from dynamo.runtime import dynamo_worker

@dynamo_worker(static=True)
async def worker(runtime):
    client = await runtime.namespace("mine").component("words").endpoint("generate").client()
    for _ in range(500):
        try:
            print([item.data()["word"] async for item in await client.static({"text": "a b"})])
            return
        except Exception as error:
            await asyncio.sleep(0.02)
    raise error

asyncio.run(worker())
"""


def front(machine: Any) -> str:
    url: str = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0).ready()
    return url


def test_the_file_of_the_guide(machine: Any) -> None:
    engine = machine.script(OWN, name="my_engine")
    url = front(machine)
    machine.until(lambda: machine.serves(url))
    assert "hello there" in machine.chat(url, "hello there")
    status, answer = machine.ask(
        url, "/v1/completions", {"model": "sample", "prompt": "one two three", "max_tokens": 2}
    )
    assert status == 200
    answer = json.loads(answer)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2
    row = machine.row("component")
    assert (row["graph"], row["process"], row["state"], row["pid"]) == (
        "python",
        "python/my_engine.0",
        "Ready",
        engine.pid,
    )
    assert "python/my_engine.0" in machine.run("dynamo", "ps").out
    scaled = machine.run("dynamo", "scale", "component", "2")
    assert "python is a Python process that the node did not start" in scaled.mistake()
    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (counted,) = [line for line in text.splitlines() if line.startswith("dynamod_worker_engine_tokens_total{")]
    assert 'process="python/my_engine.0"' in counted
    assert float(counted.split()[-1]) > 4
    assert "/component/namespace.endpoint" in machine.run("dynamo", "inspect", "my_engine").out
    (process,) = [
        one
        for one in machine.run("dynamo", "top", "--once", "--interval", "0.1", "--output", "json").json["processes"]
        if one["graph"] == "python"
    ]
    assert (process["answers"], process["pid"], process["worker"]["running"]) == (True, engine.pid, 0)

    # Ctrl-C while it works: what is open finishes, and nobody is left
    stream = machine.stream(url, " ".join(map(str, range(40))))
    engine.send(signal.SIGINT)
    stream.read()
    assert (stream.finish, stream.error) == ("stop", None)
    assert " ".join(map(str, range(40))) in stream.text
    result = engine.wait(5)
    assert (result.code, result.out, result.err) == (0, "", "")
    machine.until(lambda: models(machine, url) == [])

    # a second time, and ended by the node
    engine = machine.script(OWN, name="my_engine")
    machine.until(lambda: machine.serves(url))
    assert machine.run("dynamo", "stop", "python").out == "stopped python\n"
    assert engine.wait(5).code == 0


def test_chat_and_completion_engines_in_one_process(machine: Any) -> None:
    url = front(machine)
    engine = machine.script(CHAT)
    machine.until(lambda: models(machine, url) == ["org/talker", "org/writer"])
    (row,) = machine.ps("talker")
    assert (row["state"], row["guest"].startswith("python script pid")) == ("Ready", True)
    body = {"model": "org/talker", "messages": [{"role": "user", "content": "how are you"}]}
    status, answer = machine.ask(url, "/v1/chat/completions", body)
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"] == "HOW ARE YOU "
    assert json.loads(answer)["usage"] == {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
    stream = machine.stream(url, "how are you", model="org/talker").read()
    assert (stream.text, stream.finish, stream.error) == ("HOW ARE YOU ", "stop", None)
    status, answer = machine.ask(url, "/v1/completions", {"model": "org/writer", "prompt": "abc"})
    assert json.loads(answer)["choices"][0]["text"] == "cba"
    assert json.loads(answer)["choices"][0]["finish_reason"] == "length"

    # what is wrong with one request is told there, and the next is served
    for text, message in (
        ("break", "chat: RuntimeError: the engine is broken"),
        ("nonsense", "chat yielded 'no chunk' (str): an OpenAI chunk as a dict is needed"),
    ):
        body["messages"][0]["content"] = text  # type: ignore[index]
        status, answer = machine.ask(url, "/v1/chat/completions", body)
        assert (status, json.loads(answer)["error"]["message"]) == (502, message)
    assert machine.chat(url, "on", model="org/talker") == "ON "
    result = engine.end()
    assert (result.code, result.out) == (0, "both have ended\n")
    assert "RuntimeError: the engine is broken" in result.err
    machine.until(lambda: models(machine, url) == [])


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "graceful"), (signal.SIGTERM, "cut")])
def test_streams_go_on_in_another_process(machine: Any, number: int, how: str) -> None:
    engines = [machine.script(COUNT, how, name=f"engine_{name}") for name in "ab"]
    url = front(machine)
    machine.until(lambda: machine.serves(url))
    machine.until(lambda: [row["state"] for row in machine.ps("counter")] == ["Ready"] * 2)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) >= 2)
    whole = machine.chat(url, "count", max_tokens=60)
    streams = [machine.stream(url, "count", max_tokens=60) for _ in range(4)]
    victim = max(engines, key=lambda engine: engine.out.count("begins"))
    other = next(engine for engine in engines if engine is not victim)
    victim.send(number)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.error) == ("length", None)
        assert stream.text == whole
    assert victim.wait(5).code == (0 if how == "cut" else -signal.SIGKILL)
    assert victim.err == ""
    moved = [line for line in other.out.splitlines() if not line.endswith(", 60 to go") and line.startswith("begins")]
    assert moved

    # a client that leaves stops the handler
    stream = machine.stream(url, "count", max_tokens=1000)
    stream.close()
    machine.until(lambda: "stopped" in other.out, 3)

    # nobody else can go on with this one, and it is too long to be waited for
    stream = machine.stream(url, "count", max_tokens=1500)
    assert other.end().code == 0
    stream.read()
    assert stream.finish is None
    assert "no other instance is ready" in stream.error["error"]["message"]


def test_scripts_find_each_other_without_a_daemon(machine: Any) -> None:
    text = SERVER.replace("__STATIC__", "False")
    client = machine.script(CLIENT, 2, name="client")  # the first holds the node
    machine.until(lambda: machine.raw_status() == client.pid)
    servers = [machine.script(text, name=f"server_{name}") for name in "ab"]
    seen = json.loads(client.prints(r"\{.*\}\n")[0])
    pids = {server.pid for server in servers}
    assert client.wait(5).code == 0
    assert set(seen["random"]) == pids
    assert (seen["round_robin"][:2], set(seen["round_robin"])) == (seen["round_robin"][2:], pids)
    assert seen["direct"][0] == seen["direct"][1] != seen["direct"][2] == seen["direct"][3]
    assert seen["error"].startswith("EngineFailed: Handler.generate: ValueError: the request is no Request")

    # the client held the node; one of the servers does now, and they are found again
    machine.until(lambda: machine.raw_status() in pids)
    machine.until(lambda: {row["pid"] for row in machine.ps()} == pids)
    assert {row["graph"] for row in machine.ps()} == {"python-2", "python-3"}
    waiting = machine.script(CLIENT, 2, "and waits", name="client")
    waiting.prints(r"\{.*\}\n")
    result = waiting.end()  # it serves nothing: it is cancelled, and says nothing
    assert (result.code, result.err) == (0, "")
    for server in servers:
        result = server.end()
        assert (result.code, result.out) == (0, "")
    assert not [path for path in machine.folder.iterdir() if path.name in ("d.sock", "d.sock.link", "d.sock.d")]


def test_calls_go_elsewhere_when_a_process_ends(machine: Any) -> None:
    text = SERVER.replace("__STATIC__", "False")
    client = machine.script(HAMMER, name="client")
    servers = [machine.script(text, name=f"server_{name}") for name in "ab"]
    client.prints("begins")
    assert servers[0].end(signal.SIGTERM).code == 0
    client.prints("[0-9]+ calls")
    assert client.wait(5).code == 0


def test_a_static_worker(machine: Any) -> None:
    text = SERVER.replace("__STATIC__", "True")
    server = machine.script(text, name="server")
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"])
    client = machine.script(ECHO, name="client")
    assert client.wait().out == "['a', 'b']\n"
    taken = machine.script(text, name="second").wait()
    assert taken.code == 1
    assert "UserError: a static worker serves dyn://mine.words.generate already" in taken.err
    assert "a static address is for one worker: choose another" in taken.err
    assert server.end().code == 0

    engine = machine.script(OWN.replace("static=False", "static=True"), name="engine")
    words = ("out=dyn://namespace.component.endpoint", "--model-name", "mine", "--model-path", "sample")
    url = machine.start("dynamo-run", "in=http", *words, "--http-port", 0).ready()
    machine.until(lambda: models(machine, url) == ["mine"])
    assert "hello" in machine.chat(url, "hello", model="mine")
    assert engine.end().code == 0


def test_a_file_that_keeps_its_loop_busy_does_not_hold_up_the_node(machine: Any) -> None:
    busy = OWN.replace("engine = 0.005", "engine = 0.005; import time; time.sleep(60)")
    loading = machine.script(busy, name="loading")
    machine.until(lambda: machine.raw_status() == loading.pid)
    own = machine.script(OWN, name="own")
    url = front(machine)
    machine.until(lambda: machine.serves(url))
    assert "hello" in machine.chat(url, "hello")
    loading.send(signal.SIGINT)
    time.sleep(0.3)  # two signals at a time are one
    assert loading.code is None
    loading.send(signal.SIGINT)  # nothing else would reach it
    result = loading.wait(5)
    assert "KeyboardInterrupt" in result.err
    machine.until(lambda: machine.raw_status() not in (0, loading.pid))
    assert "hello" in machine.chat(url, "hello")
    own.end()


@pytest.fixture
def servers(machine: Any) -> Iterator[Servers]:
    started = Servers(machine)
    yield started
    infra.down(started.folder)


def test_engines_and_clients_of_other_nodes(machine: Any, servers: Servers) -> None:
    words = ("in=http", "out=auto", "--http-port", 0)
    url = machine.start("dynamo-run", *words, **on(machine, servers, "one")).ready()
    engine = machine.script(OWN, name="my_engine", **on(machine, servers, "two"))
    machine.until(lambda: models(machine, url) == ["sample"])
    assert "hello there" in machine.chat(url, "hello there")
    server = machine.script(SERVER.replace("__STATIC__", "False"), name="server", **on(machine, servers, "two"))
    client = machine.script(CLIENT, 1, name="client", **on(machine, servers, "one"))
    seen = json.loads(client.prints(r"\{.*\}\n")[0])
    assert set(seen["random"] + seen["direct"]) == {server.pid}
    assert client.wait(5).code == 0
    result = engine.end()
    assert result.code == 0
    assert "Traceback" not in result.err
    machine.until(lambda: models(machine, url) == [], 2.0)
    assert server.end().code == 0

    fixed = machine.script(SERVER.replace("__STATIC__", "True"), name="server", **on(machine, servers, "two"))
    client = machine.script(ECHO, name="client", **on(machine, servers, "one"))
    assert client.wait().out == "['a', 'b']\n"
    assert fixed.end().code == 0
