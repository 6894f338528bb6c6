"""A user's own Python file as an engine or as a client, started with plain `python`, beside the real commands."""

import http.client
import itertools
import json
import os
import re
import signal
import time
from typing import Any

import pytest

from .nodes import Servers, models, on
from .python_files import BLOCKS, CACHED, CHAT, CLIENT, COUNT, ECHO, HAMMER, LOGS, OWN, SERVER, SHIPPED, SLOWLY, WAITS
from .together import together


def front(machine: Any) -> str:
    url: str = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0).ready()
    return url


def test_the_file_of_the_guide(machine: Any) -> None:
    engine = machine.script(OWN, name="my_engine", fresh=True)  # an interpreter that ends has nothing to say either
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
    assert (row["state"], row["session"]) == ("Ready", f"python script pid {engine.pid}")
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
        ("break", "chat raised RuntimeError; the worker's log has more under this request's id"),
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
@together
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


@together
def test_scripts_find_each_other_without_a_daemon(machine: Any) -> None:
    text = SERVER.replace("__STATIC__", "False")
    client = machine.script(CLIENT, 2, name="client")  # the first starts the daemon
    daemon = machine.until(machine.raw_status)
    servers = [machine.script(text, name=f"server_{name}") for name in "ab"]
    seen = json.loads(client.prints(r"\{.*\}\n")[0])
    pids = {server.pid for server in servers}
    assert client.wait(5).code == 0
    assert set(seen["random"]) == pids
    assert (seen["round_robin"][:2], set(seen["round_robin"])) == (seen["round_robin"][2:], pids)
    assert seen["direct"][0] == seen["direct"][1] != seen["direct"][2] == seen["direct"][3]
    assert seen["error"].startswith("EngineFailed: Handler.generate: ValueError: the request is no Request")

    # the daemon goes on without the client
    assert machine.raw_status() == daemon
    machine.until(lambda: {row["pid"] for row in machine.ps()} == pids)
    assert {row["graph"] for row in machine.ps()} == {"python-2", "python-3"}

    # without the daemon they start another, and are found under the ids that they had
    os.kill(daemon, signal.SIGKILL)
    machine.until(lambda: machine.raw_status() not in (0, daemon))
    machine.until(lambda: {row["pid"] for row in machine.ps() if row["state"] == "Ready"} == pids)
    waiting = machine.script(CLIENT, 2, "and waits", name="client", fresh=True)
    waiting.prints(r"\{.*\}\n")
    result = waiting.end()  # it serves nothing: it is cancelled, and says nothing
    assert (result.code, result.err) == (0, "")
    for server in servers:
        result = server.end()
        assert (result.code, result.out) == (0, "")
    # the daemon, which any of them may have started, ends after the last of them and leaves nothing but its lock
    machine.until(lambda: not machine.find_daemons())
    assert not [path for path in machine.folder.iterdir() if path.name in ("d.sock", "d.sock.link", "d.sock.d")]


@together
def test_calls_go_elsewhere_when_a_process_ends(machine: Any) -> None:
    text = SERVER.replace("__STATIC__", "False")
    client = machine.script(HAMMER, name="client")
    servers = [machine.script(text, name=f"server_{name}") for name in "ab"]
    client.prints("begins")
    assert servers[0].end(signal.SIGTERM).code == 0
    client.prints("[0-9]+ calls")
    assert client.wait(5).code == 0


def test_workers_that_ship_can_be_called(machine: Any) -> None:
    machine.start("dynamo-run", "in=dyn://tokens.c.e", "out=echo_core", "sample").ready()
    machine.start("dynamo-run", "in=dyn://text.c.e", "out=echo_full", "--model-name", "text").ready()
    done = machine.script(SHIPPED, name="client").wait()
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        '[[5, 6, 7], "length"]',
        "hello",
        "BadRequest: model 'sample' takes a dict, not str",
    ]


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
    machine.until(machine.raw_status)  # of a daemon that the engine has started, and that outlives it
    words = ("out=dyn://namespace.component.endpoint", "--model-name", "mine", "--model-path", "sample")
    url = machine.start("dynamo-run", "in=http", *words, "--http-port", 0).ready()
    machine.until(lambda: models(machine, url) == ["mine"])
    assert "hello" in machine.chat(url, "hello", model="mine")
    assert engine.end().code == 0


def test_a_file_that_keeps_its_loop_busy_does_not_hold_up_the_node(machine: Any) -> None:
    busy = OWN.replace("engine = 0.005", "engine = 0.005; import time; time.sleep(60)")
    loading = machine.script(busy, name="loading")
    machine.until(machine.raw_status)
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
    assert "hello" in machine.chat(url, "hello")
    own.end()


@together
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
    assert client.wait(60).out == "['a', 'b']\n"
    assert fixed.end().code == 0


@pytest.mark.parametrize("how", ["stopped", "stopped first", "blocked"])
@together
def test_a_silent_engine_is_left_alone_until_it_is_heard_again(machine: Any, how: str) -> None:
    """`first`: it came before all others, and has started the daemon."""
    text = COUNT.replace("    for _ in range(left):\n", BLOCKS) if how == "blocked" else COUNT
    url, engines = "", []
    for name in ("ab", "front") if how == "stopped first" else ("front", "ab"):
        if name == "front":
            url = front(machine)
        for letter in name if name == "ab" else "":
            engines.append(machine.script(text, "graceful", name=f"engine_{letter}"))
            machine.until(lambda: len(machine.ps("counter")) == len(engines))
    machine.until(lambda: machine.serves(url))
    machine.until(lambda: [row["state"] for row in machine.ps("counter")] == ["Ready"] * 2)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) >= 2)
    victim, other = engines

    whole = machine.chat(url, "count", max_tokens=100)
    streams = [machine.stream(url, "count", max_tokens=100) for _ in range(4)]
    machine.until(lambda: "100 to go" in victim.out)
    began = time.monotonic()
    if how == "blocked":
        (machine.folder / f"block.{victim.pid}").touch()
    else:
        victim.send(signal.SIGSTOP)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.error) == ("length", None)
        assert stream.text == whole
    assert time.monotonic() - began < 8
    assert re.findall(r"begins behind \d+ ids, (?!100)\d+ to go", other.out), "they went on, and did not begin again"
    before = victim.out.count("begins")
    assert len({machine.chat(url, "count", max_tokens=5) for _ in range(4)}) == 1
    assert victim.out.count("begins") == before, "nothing new goes there"
    asked = time.monotonic()
    (row,) = [row for row in machine.ps("counter") if row["pid"] == victim.pid]
    assert (row["state"], row["last_error"]) == ("Silent", "silent for 2 s")
    assert time.monotonic() - asked < 1.0, "nobody waits for it"

    if how != "blocked":
        victim.send(signal.SIGCONT)
    machine.until(lambda: [row["state"] for row in machine.ps("counter")] == ["Ready"] * 2)

    def serves_again() -> bool:
        machine.chat(url, "count", max_tokens=2)
        return bool(victim.out.count("begins") > before)

    machine.until(serves_again)


@together
def test_a_call_of_a_silent_process_ends_with_an_error(machine: Any) -> None:
    machine.start("dynamod")
    machine.until(machine.raw_status)
    server = machine.script(SERVER.replace("__STATIC__", "False").replace("for word in", SLOWLY), name="server")
    client = machine.script(WAITS, name="client")
    client.prints("'a'")
    server.send(signal.SIGSTOP)
    assert "its process does not answer any more" in client.wait(10).out
    server.send(signal.SIGCONT)
    machine.until(lambda: machine.row("words")["state"] == "Ready")


def test_a_prompt_goes_where_an_engine_says_that_it_is_cached(machine: Any) -> None:
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0, "--router-mode", "kv").ready()
    engines = {name: machine.script(CACHED, name=f"engine_{name}") for name in "ab"}
    machine.until(lambda: machine.serves(url))
    machine.until(lambda: [row["state"] for row in machine.ps("cached")] == ["Ready"] * 2)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) >= 2)
    text, count = " ".join(f"word {n}" for n in range(60)), itertools.count()

    def where(overlap: bool) -> str:
        """Who gets the prompt once the router knows that it is cached, or that it is not."""

        def asked() -> str:
            request = f"request-{next(count)}"
            body = {"model": "sample", "messages": [{"role": "user", "content": text}], "max_tokens": 3}
            connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=20)
            headers = {"Content-Type": "application/json", "x-request-id": request}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            assert connection.getresponse().read()
            connection.close()
            (decision,) = machine.raw("GET", f"/v1/requests/{request}/decision")[1]
            found = {one["instance"]: one["process"] for one in decision["candidates"]}
            assert sorted(name.rpartition("/")[2] for name in found.values()) == ["engine_a.0", "engine_b.0"]
            return str(found[decision["chosen"]])[-3] if bool(decision["overlap"]) == overlap else ""

        return str(machine.until(asked))

    def cache(name: str, what: str) -> None:
        """An engine's cache changes by itself."""
        file = machine.folder / f"cache.{engines[name].pid}"
        part = machine.folder / "part"
        part.write_text(json.dumps([what, ids]))
        part.rename(file)
        machine.until(lambda: not file.exists())

    first = where(overlap=False)
    ids = json.loads(engines[first].prints(r"ids (.*)\n")[1])
    assert {where(overlap=True) for _ in range(4)} == {first}

    # counter-check: only what the engines say can tell that the other one has it now
    other = "a" if first == "b" else "b"
    cache(first, "remove")
    cache(other, "store")
    machine.until(lambda: where(overlap=True) == other)
    assert {where(overlap=True) for _ in range(4)} == {other}


@pytest.mark.parametrize("configured", [True, False])
@together
def test_what_a_file_logs_is_in_dynamo_logs_and_its_terminal_is_as_it_was(machine: Any, configured: bool) -> None:
    machine.start("dynamod")
    machine.until(machine.raw_status)
    file = machine.script(LOGS, *(["configured"] * configured), name="own")
    file.prints("hello")
    lines = machine.until(lambda: [one for one in [machine.run("dynamo", "logs", "own").out] if "one of ours" in one])[
        0
    ]
    assert "WARN mine.engine: warned of 7% component=python/own.0\n" in lines
    assert "ERROR mine.engine: it failed component=python/own.0\n  Traceback" in lines
    assert "\n  ValueError: no luck\n" in lines
    assert " WARN dynamod.mine: as one of ours" in lines
    assert ("INFO mine.engine: told hello" in lines) == configured
    assert machine.run("dynamo", "logs", "logs").out == lines, "the component is named, too"
    err = file.end().err
    first = "mine: " * configured
    assert err.count("warned of 7%") == 1
    assert [line for line in err.splitlines() if "warned" in line] == [f"{first}warned of 7%"]
    assert (f"{first}told hello\n" in err) == configured
