"""OpenAI servers behind our frontend: another dynamod, and a program that misbehaves on purpose; with real kills."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from .together import together

MISBEHAVING = Path(__file__).parents[1] / "engine/openai/misbehaving.py"
QUICK = {"health_interval": 0.2}


def started_by_us(machine: Any) -> list[str]:
    """A command line whose server writes the numbers of itself and its child."""
    return [sys.executable, str(MISBEHAVING), "{port}", "--child", str(machine.folder / "pids")]


def pids(machine: Any) -> list[int]:
    """The server and its child, once they run."""
    file = machine.folder / "pids"
    numbers: list[int] = machine.until(lambda: [int(n) for n in file.read_text().split()] if file.exists() else [])
    return numbers


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def front(machine: Any, output: str, *words: Any, **arguments: Any) -> Any:
    extra = json.dumps({**QUICK, **arguments})
    return machine.start(
        "dynamo-run", "in=http", f"out={output}", *words, "--http-port=0", "--extra-engine-args", extra
    )


@together
def test_our_own_frontend_as_the_server(machine: Any) -> None:
    other = {"DYNAMOD_SOCKET": str(machine.folder / "upstream.sock"), "DYN_TOKEN_ECHO_DELAY_MS": "1"}
    words = ("in=http", "out=echo_core", "sample", "--http-port=0", "--api-key=secret")
    upstream = machine.start("dynamo-run", *words, **other).ready()
    machine.env["THEIRS"] = "secret"
    command = front(machine, f"openai:{upstream}/v1", "--model-name=mine", api_key_env="THEIRS")
    url = command.ready()
    assert machine.chat(url, "hello there", model="mine", max_tokens=1000).count("hello there") == 1
    status, text = machine.ask(
        url, "/v1/completions", {"model": "mine", "prompt": "one two three four five", "max_tokens": 3}
    )
    answer = json.loads(text)
    assert (status, answer["model"], answer["choices"][0]["finish_reason"]) == (200, "mine", "length")
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["prompt_tokens"] > 0
    stream = machine.stream(url, "count to three", model="mine").read()
    assert (stream.finish, stream.error, stream.done) == ("stop", None, True)
    assert "count to three" in stream.text
    body = {"model": "mine", "prompt": "x", "max_tokens": 1, "logprobs": 1}
    status, text = machine.ask(url, "/v1/completions", body)
    assert (status, json.loads(text)["error"]["message"]) == (400, "The model 'sample' offers no logprobs.")
    metrics = machine.ask(url, "/metrics")[1]
    assert 'dynamo_frontend_inter_token_latency_seconds_count{model="mine"}' in metrics
    assert machine.row("Worker")["state"] == "Ready"
    command.end()


@together
def test_who_is_not_there_is_one_line(machine: Any) -> None:
    def refused(output: str, **arguments: Any) -> str:
        ended = front(machine, output, **arguments).wait(20)
        assert ended.code != 0
        [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]  # the frontend logs its start
        assert "Traceback" not in ended.err
        assert ended.err.count(line.removeprefix("error: ")) == 1
        return str(line)

    url = f"http://127.0.0.1:{machine.port()}/v1"
    assert f"{url} cannot be reached: Connection refused" in refused(f"openai:{url}")
    line = refused("openai", cmd="sh -c 'echo no such GPU >&2; exit 3'")
    assert "cmd sh ended with code 3: no such GPU" in line
    assert machine.folder.joinpath(f"{len(machine.commands) - 1}.err").read_text().count("no such GPU") == 1


@together
def test_a_program_never_outlives_its_worker(machine: Any) -> None:
    command = front(machine, "openai", "theirs", cmd=shlex.join(started_by_us(machine)))
    url = command.ready()
    assert machine.chat(url, "hi", model="theirs") == "0 1 2 "
    before = pids(machine)
    worker = machine.row("Worker")
    (machine.folder / "pids").unlink()
    os.kill(worker["pid"], signal.SIGKILL)
    machine.until(lambda: not any(map(lives, before)), 5)
    machine.until(lambda: [(row["state"], row["restarts"]) for row in machine.ps("Worker")] == [("Ready", 1)])
    machine.until(lambda: machine.answers(url, "/v1/models") == 200 and '"theirs"' in machine.ask(url, "/v1/models")[1])
    assert machine.chat(url, "hi", model="theirs") == "0 1 2 "

    # the program itself is killed: the worker follows, and both come back
    now = pids(machine)
    assert set(now).isdisjoint(before)
    (machine.folder / "pids").unlink()
    os.kill(now[0], signal.SIGKILL)
    machine.until(lambda: machine.row("Worker")["restarts"] == 2)
    assert "was ended by signal 9" in machine.row("Worker")["last_error"]
    machine.until(lambda: machine.row("Worker")["state"] == "Ready")
    machine.until(lambda: not any(map(lives, now)), 5)

    # daemon and worker are killed together: nobody is left to end the program but the kernel
    program, child = pids(machine)
    daemon, worker = machine.daemon(), machine.row("Worker")
    command.tree()
    for pid in (daemon.pid, worker["pid"]):
        os.kill(pid, signal.SIGKILL)
    machine.until(lambda: not lives(program), 5)
    os.kill(child, signal.SIGKILL)
    command.wait(20)
    command.gone(5)  # the other processes of the daemon notice its end


@together
def test_each_worker_of_a_graph_starts_a_server(machine: Any) -> None:
    words = [sys.executable, str(MISBEHAVING), "{port}"]
    section = {"engine": "openai", "served_model_name": "ours", "engine_args": {**QUICK, "cmd": words}}
    config = {"Frontend": {"port": 0}, "Worker": {**section, "ServiceArgs": {"workers": 2}}}
    (machine.folder / "c.yaml").write_text(json.dumps(config))
    command = machine.start("dynamo", "serve", "graphs.agg:Frontend", "-f", "c.yaml")
    url = command.ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    assert {machine.chat(url, "hi", model="ours") for _ in range(4)} == {"0 1 2 "}
    before = {row["pid"] for row in machine.ps("Worker")}
    assert machine.run("dynamo", "restart", "Worker").code == 0
    assert machine.chat(url, "hi", model="ours") == "0 1 2 "
    assert before.isdisjoint(row["pid"] for row in machine.ps("Worker"))
    command.end()


@together
def test_a_server_that_comes_and_goes(machine: Any) -> None:
    port = machine.port()

    def serve() -> Any:
        return machine.script(MISBEHAVING.read_text(), port, name="upstream")

    server = serve()
    machine.until(lambda: machine.answers(f"http://127.0.0.1:{port}", "/v1/models") == 200)
    machine.ports.clear()
    command = front(machine, f"openai:http://127.0.0.1:{port}/v1")
    url = command.ready()
    assert machine.chat(url, "hi", model="theirs") == "0 1 2 "
    server.send(signal.SIGKILL)
    machine.until(lambda: "theirs" not in machine.ask(url, "/v1/models")[1])
    machine.until(lambda: "cannot be reached" in machine.row("Worker")["last_error"])
    assert machine.ask(
        url, "/v1/chat/completions", {"model": "theirs", "messages": [{"role": "user", "content": "x"}]}
    )[0] in (404, 503)
    serve()
    machine.until(lambda: "theirs" in machine.ask(url, "/v1/models")[1], 30)
    assert machine.chat(url, "hi", model="theirs") == "0 1 2 "
    command.end()


@together
def test_another_server_takes_what_one_refuses(machine: Any) -> None:
    """One refuses every request before its first token, the other serves: no client sees it."""
    ports = [machine.port(), machine.port()]
    for port in ports:
        machine.script(MISBEHAVING.read_text(), port, name="upstream")
        machine.until(lambda port=port: machine.answers(f"http://127.0.0.1:{port}", "/v1/models") == 200)
    machine.ports.clear()
    for port, model in zip(ports, ("broken", "good"), strict=True):
        words = (
            f"in=dyn://dynamo.{model}.generate",
            f"out=openai:http://127.0.0.1:{port}/v1",
            model,
            "--model-name=mine",
        )
        machine.start("dynamo-run", *words)
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port=0").ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    assert {machine.chat(url, "hi", model="mine") for _ in range(6)} == {"0 1 2 "}
