"""One request that ends every worker that works on it: it costs two workers a restart, and nobody else anything."""

import json
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from .python_files import COUNT
from .together import together
from .warm import SERVER, Warm

ROOT = Path(__file__).parents[2]
WORDS = " ".join(f"word{n}" for n in range(120))

POISON = """
import sys

if {FORKS, "serve", "dynamod.runtime.host"} & {*sys.orig_argv}:  # a process of a graph, or what they are forked from
    import os, signal
    from dynamod.engine.echo import EchoCore

    submit = EchoCore.submit

    def poisoned(self, request, reply):
        match request.stops.max_tokens:  # how a request of this test says what the engine does with it
            case 61:
                os._exit(3)
            case 62:
                while True:
                    pass
            case 63:
                os.kill(os.getpid(), signal.SIGSEGV)
        submit(self, request, reply)

    EchoCore.submit = poisoned

    from dynamod.engine.mocker.engine import Mocker
    from dynamod.engine.mocker.handoff import Imports

    def computes(request):
        if request.stops.max_tokens == 61:
            os._exit(3)

    def queue(self, request, *rest, queue=Mocker.queue):
        computes(request)
        return queue(self, request, *rest)

    def export(self, request, *rest, export=Mocker.export):
        self.spawn(crash_later(request), "crash")
        return export(self, request, *rest)

    async def crash_later(request):
        import asyncio
        await asyncio.sleep(0.1)
        computes(request)

    def hold(self, request, *rest, hold=Mocker.hold):
        held = hold(self, request, *rest)
        held.request = request
        return held

    def begin(self, begin=Imports._begin):
        computes(self.request)
        begin(self)

    Mocker.queue, Mocker.export, Mocker.hold, Imports._begin = queue, export, hold, begin
"""
"""An engine with a bug: it stands for one of a GPU whose kernel crashes on some prompt."""
_made: list[tuple[Warm, Path]] = []
_making = threading.Lock()  # tests that are played together ask for it at the same time


def poison(machine: Any) -> None:
    """Let the machine's commands be forked from a process whose engines have the bug."""
    with _making:
        if not _made:
            folder = Path(tempfile.mkdtemp(prefix="dm-poison-", dir="/tmp"))
            (folder / "sitecustomize.py").write_text(f"FORKS = {str(SERVER)!r}\n{POISON}")
            _made.append((Warm(environment(machine, folder)), folder))
    machine.forks, folder = _made[0]
    machine.env["PYTHONPATH"] = environment(machine, folder)["PYTHONPATH"]


def environment(machine: Any, folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "dynamod/compat")])
    return {**machine.environ(), "PYTHONPATH": path}


def teardown_module() -> None:
    for forks, folder in _made:
        forks.close()
        shutil.rmtree(folder)


def serve(machine: Any, workers: int, **env: str) -> tuple[Any, str]:
    poison(machine)
    command = machine.agg(f"--Worker.ServiceArgs.workers={workers}", DYN_TOKEN_ECHO_DELAY_MS="8", **env)
    url = command.ready()
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * workers)
    return command, url


def ask(machine: Any, url: str, text: str, kind: int) -> tuple[int, Any]:
    body = {"model": "sample", "messages": [{"role": "user", "content": text}], "max_tokens": kind}
    status, answer = machine.ask(url, "/v1/chat/completions", body, 60)
    return status, json.loads(answer)


@pytest.mark.parametrize("kind", [61, 62, 63])
@together
def test_it_alone_is_refused_and_the_others_go_on(machine: Any, kind: int) -> None:
    clocks = {"DYNAMOD_HEARTBEAT_TIMEOUT": "1", "DYNAMOD_KILL_TIMEOUT": "2", "DYNAMOD_COMPUTE_TIMEOUT": "2"}
    command, url = serve(machine, 3, **clocks)
    streams = [machine.stream(url, WORDS) for _ in range(6)]
    answers: list[tuple[int, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(machine, url, "the bad one", kind))) for _ in range(1)
    ]
    for thread in threads:
        thread.start()
    for stream in streams:
        stream.read()
        assert (stream.error, stream.finish, stream.done) == (None, "stop", True)
        assert stream.text.endswith(WORDS) or WORDS in stream.text
    for thread in threads:
        thread.join(60)
    ((status, answer),) = answers
    assert (status, answer["error"]["code"]) == (422, "poison_request"), answer
    restarts = lambda: sum(row["restarts"] for row in machine.ps("Worker"))  # noqa: E731
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * 3, 60)
    assert restarts() == 2

    status, answer = ask(machine, url, "the bad one", kind)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), "it is remembered"
    assert restarts() == 2
    assert WORDS in machine.chat(url, WORDS)
    command.end()


@together
def test_workers_that_are_killed_make_nobody_suspect(machine: Any) -> None:
    command, url = serve(machine, 2)
    streams = [machine.stream(url, WORDS) for _ in range(4)]
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.error, stream.finish) == (None, "stop")
    assert "alone" not in command.err
    command.end()


@together
def test_the_only_worker_crashes(machine: Any) -> None:
    command, url = serve(machine, 1)

    def back(restarts: int) -> bool:
        row = machine.row("Worker")
        return (row["restarts"], row["state"]) == (restarts, "Ready") and machine.serves(url)

    status, answer = ask(machine, url, "the bad one", 61)
    assert status == 503, answer
    machine.until(lambda: back(1))
    status, answer = ask(machine, url, "the bad one", 61)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), (answer, command.err)
    machine.until(lambda: back(2))
    assert ask(machine, url, "the bad one", 61)[0] == 422
    assert machine.ps("Worker")[0]["restarts"] == 2
    command.end()


@together
def test_it_costs_two_python_files_at_most(machine: Any) -> None:
    """The daemon has not started these processes; it knows their exit codes, or that they ended without a word."""
    crashes = COUNT.replace(
        "    for _ in range(left):\n", "    if left == 61:\n        os._exit(3)\n    for _ in range(left):\n"
    )
    engines = [machine.script(crashes, "graceful", name=f"engine_{name}") for name in "abc"]
    url = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0).ready()
    machine.until(lambda: machine.serves(url))
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) >= 3)
    whole = machine.chat(url, "count", max_tokens=200)
    streams = [machine.stream(url, "count", max_tokens=200) for _ in range(6)]
    status, answer = ask(machine, url, "the bad one", 61)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), answer
    for stream in streams:
        stream.read()
        assert (stream.error, stream.finish) == (None, "length")
        assert stream.text == whole
    assert ask(machine, url, "the bad one", 61)[0] == 422
    assert sorted(str(engine.code) for engine in engines) == ["3", "3", "None"]


def disagg(machine: Any, *flags: str, **arguments: Any) -> tuple[Any, str]:
    poison(machine)
    given = json.dumps({"block_size": 16, "max_num_batched_tokens": 64, **arguments})
    command = machine.start(
        *("dynamo", "serve", "graphs.disagg:Frontend", "-f", "configs/disagg.yaml", "--Frontend.port=0"),
        *("--Worker.engine=mocker", "--PrefillWorker.engine=mocker", "--Processor.max-local-prefill-length=32"),
        *(f"--Worker.engine_args={given}", f"--PrefillWorker.engine_args={given}"),
        "--Worker.ServiceArgs.workers=2",
        *flags,
    )
    url = command.ready()
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"})
    return command, url


def refused_beside_others(machine: Any, command: Any, url: str) -> None:
    """The others' answers are whole; all processes are back."""
    whole = machine.chat(url, WORDS, max_tokens=150)
    streams = [machine.stream(url, WORDS, max_tokens=150) for _ in range(3)]
    status, answer = ask(machine, url, f"the bad one {WORDS}", 61)
    assert (status, answer["error"]["code"]) == (422, "poison_request"), (answer, command.err)
    for stream in streams:
        stream.read()
        assert (stream.error, stream.text) == (None, whole)
    machine.until(lambda: {row["state"] for row in machine.ps()} == {"Ready"}, 60)


@together
def test_it_costs_a_prefill_worker_and_one_that_answers(machine: Any) -> None:
    """The worker that answers asks before it computes a prompt at which the prefill worker has crashed."""
    command, url = disagg(machine)
    refused_beside_others(machine, command, url)
    assert machine.row("PrefillWorker")["restarts"] == 1
    assert sum(row["restarts"] for row in machine.ps("Worker")) == 1
    command.end()


@pytest.mark.parametrize("prefill", [1, 3])
@together
def test_it_costs_two_prefill_workers_where_nobody_else_computes_prompts(machine: Any, prefill: int) -> None:
    """With a single one the trial waits for its return."""
    flag = f"--PrefillWorker.ServiceArgs.workers={prefill}"
    command, url = disagg(machine, flag, "--Worker.disaggregation_mode=decode", kv_transfer="rendezvous")
    refused_beside_others(machine, command, url)
    assert sum(row["restarts"] for row in machine.ps("PrefillWorker")) == 2
    assert sum(row["restarts"] for row in machine.ps("Worker")) == 0
    assert ask(machine, url, f"the bad one {WORDS}", 61)[0] == 422, "it is remembered"
    command.end()
