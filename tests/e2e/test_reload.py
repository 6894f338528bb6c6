"""`dynamo reload`: a running graph gets new settings, and no stream is cut."""

import os
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
    assert {row["process"]: row["pid"] for row in machine.ps()} == pids
