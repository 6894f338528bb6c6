"""A frontend is replaced while clients use it: nobody waits for the old one's streams, and none of them is cut."""

import time
from typing import Any

from dynamod.graph.load import load_graph

from .together import together

CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: {port}
{more}
Worker:
  engine: mocker
  model: sample
  engine_args: {{speedup_ratio: 1, block_size: 16}}
"""


def rows(machine: Any, component: str) -> list[dict[str, Any]]:
    return [row for row in machine.ps() if row["component"] == component]


@together
def test_the_only_front_door_is_replaced_beside_its_open_stream(machine: Any) -> None:
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(port=0, more=""))
    command = machine.start("dynamo", "serve", "-f", config)
    url = command.ready()
    (before,) = rows(machine, "Frontend")
    whole = machine.chat(url, "tell me", max_tokens=900, ignore_eos=True)
    stream = machine.stream(url, "tell me", max_tokens=900, ignore_eos=True)  # 6 s and more
    began = time.monotonic()
    assert machine.run("dynamo", "restart", "Frontend").code == 0
    machine.chat(url, "x", max_tokens=2)
    took = time.monotonic() - began
    shown = rows(machine, "Frontend")
    assert sorted(row["state"] for row in shown) == ["Draining", "Ready"], (
        "it did not finish its stream beside the new one"
    )
    assert {row["process"] for row in shown} == {before["process"]}
    assert [row["pid"] for row in shown if row["state"] == "Draining"] == [before["pid"]]
    stream.read()
    assert (stream.text, stream.done) == (whole, True)
    assert took < 5, "a new request waited for the old streams"
    machine.until(lambda: [row["state"] for row in rows(machine, "Frontend")] == ["Ready"])
    again = rows(machine, "Frontend")
    assert again[0]["pid"] != before["pid"]

    stream = machine.stream(url, "tell me", max_tokens=900, ignore_eos=True)
    assert machine.run("dynamo", "restart", "Frontend", "--timeout", "0.5").code == 0
    stream.read()
    assert not stream.done, "it was to end after half a second"
    command.end()


@together
def test_a_front_door_that_cannot_start_leaves_the_old_one_in_place(machine: Any) -> None:
    """A graph by hand, since the command looks for the files before it sends one."""
    port = machine.port()
    config, bad = machine.folder / "c.yaml", machine.folder / "bad.yaml"
    config.write_text(CONFIG.format(port=port, more=""))
    bad.write_text(CONFIG.format(port=port, more="  tls_cert_path: /nowhere/cert\n  tls_key_path: /nowhere/key\n"))
    command = machine.start("dynamo", "serve", "-f", config)
    url = command.ready()
    (before,) = rows(machine, "Frontend")
    assert "/nowhere/cert" in machine.run("dynamo", "reload", "-f", bad).mistake()
    graph = load_graph(None, str(bad), working_dir=machine.folder).to_dict()
    machine.raw("POST", "/v1/reload", {"graph": before["graph"], "new": graph, "timeout": 20}, seconds=60)
    machine.until(lambda: len(rows(machine, "Frontend")) == 1)
    (after,) = rows(machine, "Frontend")
    assert (after["pid"], after["state"]) == (before["pid"], "Ready")
    machine.chat(url, "x", max_tokens=2)
    assert "fails with its new settings, it keeps the old" in command.err
    command.end()
