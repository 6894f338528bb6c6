"""What fails at every start is tried some times, is given up, and says why. Each test waits for all those times."""

import json
import shutil
import signal
from typing import Any

from .together import together

BROKEN = """
from dynamo.sdk import service, endpoint

@service(dynamo={"namespace": "broken"})
class Broken:
    def __init__(self):
        raise RuntimeError("no luck today")

    @endpoint()
    async def generate(self, request):
        yield 1
"""


@together
def test_a_component_that_fails_at_every_start_is_given_up(machine: Any) -> None:
    (machine.folder / "broken.py").write_text(BROKEN)
    daemon = machine.start("dynamod")
    machine.until(lambda: machine.socket.exists())
    handed = machine.run("dynamo", "serve", "broken:Broken", "--detach")
    assert handed.code == 0, handed.err
    alone = machine.start("dynamo", "serve", "broken:Broken", DYNAMOD_SOCKET=str(machine.folder / "alone.sock"))

    result = alone.wait(60)
    assert result.code not in (0, 3)
    lines = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, result.err
    assert "Broken" in lines[0]
    assert "no luck today" in lines[0]
    alone.gone(5)

    row = machine.until(lambda: [row for row in machine.ps("Broken") if row["state"] == "Fatal"], 60)[0]
    assert "no luck today" in row["last_error"]
    assert row["restarts"] >= 3
    assert row["pid"] == 0
    assert "Fatal" in machine.run("dynamo", "ps").out
    status = machine.run("dynamo", "status")
    assert status.code == 1
    assert "problem: broken/Broken.0 has failed for good: " in status.out
    doctor = machine.run("dynamo", "doctor", "--port", machine.port())
    assert doctor.code == 1
    assert "FAIL health: broken/Broken.0 has failed for good" in doctor.out
    assert daemon.code is None, "the daemon lives on"
    (machine.folder / "broken.py").write_text(BROKEN.replace("raise", "return  #"))
    assert machine.run("dynamo", "restart", "Broken").code == 0
    row = machine.until(lambda: [row for row in machine.ps("Broken") if row["state"] == "Ready"])[0]
    assert (row["restarts"], row["last_error"]) == (0, ""), "the error was that of the process before"
    (machine.folder / "broken.py").write_text(BROKEN)
    assert "no luck today" in machine.run("dynamo", "restart", "Broken").mistake()


@together
def test_the_error_names_the_phase_of_the_start_in_which_a_worker_crashed(machine: Any) -> None:
    program = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nasync def generate(request):\n    yield {}\n"
    (machine.folder / "engine.py").write_text(program)
    result = machine.run("dynamo-run", "in=http", "out=pystr:engine.py", "--http-port=0", cwd=machine.folder)
    assert "error: Worker cannot start: killed by SIGSEGV during load" in result.err
    assert result.code == 1


PICKY = """
from dynamo.sdk import endpoint, service
from dynamo.sdk.lib.config import ServiceConfig

@service(dynamo={"namespace": "picky"}, placement="own", workers=2)
class Back:
    def __init__(self):
        self.mood = ServiceConfig.get_instance().get("Back", {}).get("mood", "good")
        if self.mood == "bad":
            raise ValueError("in a bad mood")

    @endpoint()
    async def generate(self, request):
        yield self.mood
"""


@together
def test_new_settings_that_do_not_work_reach_one_replica_only(machine: Any) -> None:
    def write(mood: str) -> None:
        text = f"graphs:\n  - {{target: 'picky:Back', overrides: ['--Back.mood={mood}']}}\n"
        (machine.folder / "d.yaml").write_text(text)

    def states() -> dict[str, str]:
        return {row["process"]: row["state"] for row in machine.ps()}

    (machine.folder / "picky.py").write_text(PICKY)
    write("good")
    daemon = machine.start("dynamod", "-c", "d.yaml")
    machine.until(lambda: states() == {"picky/Back.0": "Ready", "picky/Back.1": "Ready"})
    before = {row["process"]: row["pid"] for row in machine.ps()}
    write("bad")
    daemon.send(signal.SIGHUP)
    machine.until(lambda: "picky/Back.0 fails with its new settings, the others keep the old" in daemon.err)
    machine.until(lambda: states()["picky/Back.0"] == "Fatal", 60)
    daemon.tree()
    (row,) = [row for row in machine.ps() if row["process"] == "picky/Back.1"]
    assert (row["state"], row["pid"]) == ("Ready", before["picky/Back.1"])
    write("fair")
    daemon.send(signal.SIGHUP)
    machine.until(lambda: states() == {"picky/Back.0": "Ready", "picky/Back.1": "Ready"})
    daemon.tree()
    machine.until(lambda: before["picky/Back.1"] not in {row["pid"] for row in machine.ps()})
    machine.until(lambda: states() == {"picky/Back.0": "Ready", "picky/Back.1": "Ready"})
    daemon.tree()


MINE = """
from dynamo.sdk import api, service
from words import greeting

@service(dynamo={"namespace": "mine"})
class Front:
    @api()
    async def generate(self, request):
        yield greeting
"""


@together
def test_a_graph_of_the_callers_folder_is_handed_over_and_comes_back(machine: Any) -> None:
    caller, elsewhere, state = (machine.folder / name for name in ("caller", "elsewhere", "state"))
    (caller / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (caller / "sub/mine.py").write_text(MINE)
    (caller / "sub/words.py").write_text("greeting = 'from the folder of the caller'\n")
    (caller / "sub/mine.yaml").write_text(f"Front:\n  port: {machine.port()}\n")
    words = ("--socket", machine.socket, "--state-dir", state)
    daemon = machine.start("dynamod", *words, cwd=elsewhere)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    target = ("mine:Front", "-f", "mine.yaml", "--working-dir", "sub")
    handed = machine.run("dynamo", "serve", *target, "--detach", cwd=caller)
    assert handed.code == 0, handed.err
    url = handed.out.split()[-1]
    for _ in range(2):
        machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"])
        daemon.tree()
        assert machine.ask(url, "/generate", {}) == (200, "from the folder of the caller")
        daemon.end(signal.SIGTERM)
        daemon = machine.start("dynamod", *words, cwd=elsewhere)
        machine.until(machine.raw_status)
    daemon.end(signal.SIGTERM)
    shutil.rmtree(caller)  # what it was made of is gone: it is not forgotten, and says why it does not run
    daemon = machine.start("dynamod", *words, cwd=elsewhere)
    machine.until(lambda: machine.raw_status() == daemon.pid)
    row = machine.until(lambda: [row for row in machine.ps("Front") if row["state"] == "Fatal"])[0]
    assert "mine" in row["last_error"]
    assert [entry["name"] for entry in json.loads((state / "graphs.json").read_text())["graphs"]] == ["mine"]
