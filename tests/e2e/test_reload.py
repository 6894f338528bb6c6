"""`dynamo reload`: a running graph gets new settings, and no stream is cut."""

import os
import signal
import threading
import time
from typing import Any

from .together import together

CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: {port}
Worker:
  engine: mocker
  model: sample
  engine_args: {{speedup_ratio: {speed}, block_size: 16}}
  ServiceArgs: {{workers: {workers}}}
"""

OTHER = """\
from dynamo.sdk import api, service

@service(dynamo={"namespace": "other"})
class Frontend:
    @api()
    async def generate(self, request):
        yield "x"
"""


@together
def test_dry_run_then_a_rolling_change_under_load(machine: Any) -> None:
    port = machine.port()

    def write(name: str, **values: Any) -> Any:
        path = machine.folder / name
        path.write_text(CONFIG.format(port=port, **values))
        return path

    old = write("old.yaml", speed=1, workers=2)
    new = write("new.yaml", speed=2, workers=2)
    command = machine.start("dynamo", "serve", "-f", old)
    url = command.ready()
    before = {row["process"]: row["pid"] for row in machine.ps()}
    dry = machine.run("dynamo", "reload", "-f", new, "--dry-run")
    assert "Worker.config.engine_args.speedup_ratio: 1 -> 2" in dry.out
    assert "graph agg would change" in dry.out
    assert "nothing differs" in machine.run("dynamo", "reload", "-f", old).out
    assert {row["process"]: row["pid"] for row in machine.ps()} == before

    whole = machine.chat(url, "tell me", max_tokens=300, ignore_eos=True)
    streams = [machine.stream(url, "tell me", max_tokens=300, ignore_eos=True) for _ in range(4)]
    failures: list[str] = []
    over = threading.Event()

    def asks() -> None:
        while not over.is_set():
            status, text = machine.ask(
                url,
                "/v1/chat/completions",
                {
                    "model": "sample",
                    "messages": [{"role": "user", "content": "x"}],
                    "max_tokens": 2,
                },
            )
            if status != 200:
                failures.append(text)
            time.sleep(0.05)

    thread = threading.Thread(target=asks)
    thread.start()
    try:
        done = machine.run("dynamo", "reload", "-f", new, seconds=60)
        assert done.code == 0, done.err
        assert "graph agg has changed" in done.out
    finally:
        over.set()
        thread.join()
    assert failures == []
    for stream in streams:
        stream.read()
        assert (stream.text, stream.done) == (whole, True)
    machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()))
    after = {row["process"]: row["pid"] for row in machine.ps()}
    assert {name for name in after if after[name] == before[name]} == {"agg/ingress.0"}
    assert "nothing differs" in machine.run("dynamo", "reload", "-f", new).out
    command.end()


@together
def test_mistakes_are_told_and_nothing_is_touched(machine: Any) -> None:
    command = machine.agg()
    command.ready()
    pids = {row["process"]: row["pid"] for row in machine.ps()}
    bad = machine.folder / "bad.yaml"
    bad.write_text("graph: graphs.agg:Frontend\nWorker: {engin: echo_core}\n")
    assert "engin" in machine.run("dynamo", "reload", "-f", bad).mistake()
    unknown = machine.run("dynamo", "reload", "-f", "configs/agg.yaml", "--name", "nobody", cwd=os.getcwd())
    assert "no graph 'nobody'" in unknown.mistake()
    assert "nothing to compare" in machine.run("dynamo", "reload", "--dry-run").mistake()
    (machine.folder / "other.py").write_text(OTHER)
    assert "--name agg changes that one" in machine.run("dynamo", "reload", "other:Frontend").mistake()
    assert {row["process"]: row["pid"] for row in machine.ps()} == pids


@together
def test_what_was_drained_comes_back_with_its_file(machine: Any) -> None:
    file = machine.folder / "one.yaml"
    file.write_text(CONFIG.format(port=0, speed=10, workers=2))
    command = machine.start("dynamo", "serve", "-f", file, "--name", "mine")
    url = command.ready()
    assert machine.run("dynamo", "scale", "Worker", 1).code == 0
    assert "nothing differs" in machine.run("dynamo", "reload", "-f", file).out, "scaled by hand, it stays"
    for drained in ("Worker", "Frontend"):
        assert machine.run("dynamo", "drain", drained, "--force").code == 0
        machine.until(lambda drained=drained: machine.ps(drained) == [])
    dry = machine.run("dynamo", "reload", "-f", file, "--dry-run")
    assert "Worker: 0 -> 2 processes" in dry.out, dry.err
    done = machine.run("dynamo", "reload", "-f", file)
    assert done.code == 0, done.err
    assert "Worker: 0 -> 2 processes" in done.out
    machine.until(lambda: [row["state"] for row in machine.ps()] == ["Ready"] * 4)
    machine.until(lambda: machine.serves(url))
    command.tree()
    assert machine.run("dynamo", "drain", "Worker", "--force").code == 0
    command.send(signal.SIGHUP)
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * 2)
    command.end()
