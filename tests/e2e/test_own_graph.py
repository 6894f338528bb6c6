"""A user's own graph, in the style of the seeds, from a folder of their own."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .together import together

HELLO = """
import os
import subprocess
from pathlib import Path

from pydantic import BaseModel

from dynamo.sdk import api, async_on_start, depends, endpoint, on_shutdown, service
from helper import PREFIX


class RequestType(BaseModel):
    text: str


class ResponseType(BaseModel):
    text: str


@service(dynamo={"namespace": "inference"}, placement="PLACEMENT")
class Backend:
    def __init__(self):
        self.calls = 0

    @async_on_start
    async def begin(self):
        print("backend begins")
        os.write(1, b"written natively\\n")
        subprocess.run(["sh", "-c", "echo said by a child >&2"])

    @endpoint()
    async def generate(self, request: RequestType):
        self.calls += 1
        if request.text == "fail":
            yield ResponseType(text="before;")
            raise ValueError("this text cannot be generated")
        if request.text == "slow":
            import asyncio
            for n in range(1000):
                yield ResponseType(text=f"{n} ")
                await asyncio.sleep(0.02)
            return
        for word in request.text.split(","):
            yield ResponseType(text=f"{PREFIX}{word};")

    @endpoint()
    async def count(self, request):
        yield {"calls": self.calls, "pid": os.getpid()}

    @on_shutdown
    def end(self):
        Path("backend.ended").write_text(str(os.getpid()))


@service(dynamo={"namespace": "inference"})
class Frontend:
    backend = depends(Backend)

    @api()
    async def generate(self, text):
        async for response in self.backend.generate(RequestType(text=text["text"])):
            yield response["text"]

    @api()
    async def count(self):
        async for response in self.backend.count(None):
            yield {**response, "frontend": os.getpid()}

    @on_shutdown
    async def end(self):
        Path("frontend.ended").write_text("yes")
"""


@pytest.mark.parametrize("placement", ["own", "ingress"])
@together
def test_hello(machine: Any, placement: str) -> None:
    folder: Path = machine.folder / "project"
    folder.mkdir()
    (folder / "hello.py").write_text(HELLO.replace("PLACEMENT", placement))
    (folder / "helper.py").write_text('PREFIX = "hello "\n')
    port = machine.port()
    (folder / "hello.yaml").write_text(f"Frontend:\n  port: {port}\n")
    command = machine.start("dynamo", "serve", "hello:Frontend", "-f", "hello.yaml", cwd=folder)
    url = command.ready()
    assert url == f"http://localhost:{port}"
    rows = {row["component"]: row for row in machine.ps()}
    assert set(rows) == {"Backend", "Frontend"}
    assert (rows["Backend"]["pid"] == rows["Frontend"]["pid"]) == (placement == "ingress")

    status, text = machine.ask(url, "/generate", {"text": "a,b"})
    assert (status, text) == (200, "hello a;hello b;")
    status, text = machine.ask(url, "/count", {})
    assert status == 200
    assert f'"pid": {rows["Backend"]["pid"]}' in text

    # a bug in an endpoint is the caller's error, and nobody else's
    restarts = machine.row("Backend")["restarts"]
    caller_saw_an_error = False
    try:
        status, text = machine.ask(url, "/generate", {"text": "fail"})
        caller_saw_an_error = status >= 400 or "before;" not in text or "error" in text
    except OSError:
        caller_saw_an_error = True
    except Exception as error:  # http.client's IncompleteRead: the answer broke off
        caller_saw_an_error = "IncompleteRead" in type(error).__name__
    assert caller_saw_an_error
    status, text = machine.ask(url, "/generate", {})
    assert status >= 400
    assert machine.ask(url, "/generate", {"text": "c"}) == (200, "hello c;")
    assert machine.row("Backend")["restarts"] == restarts == 0
    assert machine.ask(url, "/nothing", {})[0] == 404

    # what was printed is in the logs, under the process it came from
    logs = machine.run("dynamo", "logs", "Backend").out
    for line in ("backend begins", "written natively", "said by a child", "this text cannot be generated"):
        assert line in logs
    everything = machine.run("dynamo", "logs").out
    assert "written natively" in everything
    inspected = machine.raw("GET", "/v1/inspect/Backend")[1]
    (host,) = [one for one in inspected if one["path"] == "/Backend"]
    assert host["details"]["endpoints"] == ["count", "generate"]
    assert host["details"]["running"] == 0

    if placement == "own":
        os.kill(rows["Backend"]["pid"], signal.SIGKILL)
        machine.until(lambda: machine.row("Backend")["restarts"] == 1)
        assert machine.ask(url, "/generate", {"text": "d"}) == (200, "hello d;"), "the call waits for the instance"
    assert not (folder / "backend.ended").exists()
    (folder / "hello.yaml").unlink()
    result = command.end()
    assert result.code == 0
    assert machine.free(url)
    assert (folder / "backend.ended").exists()
    assert (folder / "frontend.ended").read_text() == "yes"


@together
def test_a_client_that_leaves_ends_the_call(machine: Any) -> None:
    import http.client

    (machine.folder / "hello.py").write_text(HELLO.replace("PLACEMENT", "own"))
    (machine.folder / "helper.py").write_text('PREFIX = "hello "\n')
    command = machine.start("dynamo", "serve", "hello:Frontend", "--Frontend.port", machine.port())
    url = command.ready()

    def running() -> int:
        found = machine.raw("GET", "/v1/inspect/Backend.0/Backend")[1]
        return int(found[0]["details"]["running"])

    connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=10)
    connection.request("POST", "/generate", '{"text": "slow"}')
    response = connection.getresponse()
    assert response.read(10)
    assert running() == 1
    response.close()
    connection.close()
    machine.until(lambda: running() == 0, 2.0)


def test_a_graph_with_a_mistake_is_one_line(machine: Any) -> None:
    (machine.folder / "torn.py").write_text("from dynamo.sdk import service\n\nclass Torn(:\n    pass\n")
    (machine.folder / "wrong.py").write_text("import nothing_of_that_name\n")
    (machine.folder / "plain.py").write_text("class Plain:\n    pass\n")
    (machine.folder / "hello.py").write_text(HELLO.replace("PLACEMENT", "own"))
    (machine.folder / "helper.py").write_text('PREFIX = "hello "\n')
    results = machine.batch(
        [
            ("dynamo", ["serve", "torn:Torn"]),
            ("dynamo", ["serve", "wrong.py:Wrong"]),
            ("dynamo", ["serve", "plain:Plain"]),
            ("dynamo", ["serve", "missing.py:Missing"]),
            ("dynamo", ["serve", "hello:Frontend", "--Frontend.port=high"]),
            ("dynamo", ["serve", "hello:Frontend", "--Frontend.port=70000"]),
            ("dynamo", ["serve", "hello:Frontend", "--Frontend.host=nowhere.invalid", "--Frontend.port=0"]),
        ]
    )
    words = ("torn.py:3", "nothing_of_that_name", "@service", "missing.py", "high", "70000", "nowhere.invalid")
    for result, says in zip(results, words, strict=True):
        assert says in result.mistake()


CAREFUL = """
import os
from pathlib import Path

from dynamo.sdk import api, async_on_start, depends, endpoint, liveness, readiness, service

try:
    import structlog
except ImportError:
    structlog = None

@service(dynamo={"namespace": "inference"}, placement="own", liveness_interval=0.1)
class Backend:
    @async_on_start
    async def begin(self):
        if structlog is not None:
            structlog.get_logger("backend").info("said with structlog", number=1)

    @liveness
    async def alive(self):
        if Path("raise").exists():
            raise ValueError("no pulse")
        return not Path("dead").exists()

    @readiness
    def can_work(self):
        return not Path("busy").exists()

    @endpoint()
    async def generate(self, request):
        yield str(os.getpid())


@service(dynamo={"namespace": "inference"})
class Frontend:
    backend = depends(Backend)

    @api()
    async def generate(self, text):
        async for response in self.backend.generate(text):
            yield response
"""


@together
def test_hooks_say_whether_it_lives_and_can_work(machine: Any) -> None:
    folder: Path = machine.folder
    (folder / "careful.py").write_text(CAREFUL)
    (folder / "busy").touch()
    command = machine.start("dynamo", "serve", "careful:Frontend", "--Frontend.port", machine.port())
    url = command.ready()

    def answer(seconds: float) -> str:
        try:
            status, text = machine.ask(url, "/generate", {}, seconds)
        except TimeoutError:
            return "waits"
        return text if status == 200 else f"{status}"

    # not ready from the start: nobody finds it; then it is there, and leaves again
    assert answer(0.7) == "waits"
    (folder / "busy").unlink()
    assert answer(5.0) == str(machine.row("Backend")["pid"])
    (folder / "busy").touch()
    machine.until(lambda: "not ready" in command.err)
    machine.until(lambda: answer(0.7) == "waits", what="the frontend hears that it has left, a moment after the log")
    (folder / "busy").unlink()
    assert answer(5.0) == str(machine.row("Backend")["pid"])
    assert machine.row("Backend")["restarts"] == 0

    # not alive: it is started afresh
    for count, file, says in ((1, "dead", "Backend.alive() says"), (2, "raise", "no pulse")):
        pid = machine.row("Backend")["pid"]
        (folder / file).touch()
        machine.until(lambda count=count: machine.row("Backend")["restarts"] >= count)
        (folder / file).unlink()
        machine.until(lambda: machine.row("Backend")["state"] == "Ready")
        command.tree()
        assert machine.row("Backend")["pid"] != pid
        assert says in command.err
        assert says in machine.row("Backend")["last_error"]
        assert answer(5.0) == str(machine.row("Backend")["pid"])

    pytest.importorskip("structlog")
    (line, *_) = [line for line in command.err.splitlines() if "said with structlog" in line]
    assert "INFO" in line
    assert "backend: said with structlog" in line
    assert "number=1" in line
