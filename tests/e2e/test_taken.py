"""A graph whose name or port is taken: one line with the owner, and nothing before it."""

import os
import signal
import socket
from typing import Any

import pytest


def test_a_taken_name_or_port_is_one_line_with_its_owner(machine: Any) -> None:
    url = machine.agg("--name", "first").ready()
    port = url.rpartition(":")[2]
    machine.until(lambda: machine.serves(url))

    second = machine.agg("--name", "first").wait(20)
    assert second.out == "", "the models of the other graph are not its own"
    assert "a graph 'first' runs already (dynamo serve pid " in second.mistake()
    second = machine.agg("--name", "second", "--Frontend.port", port).wait(20)
    assert second.out == ""
    assert f"Frontend cannot listen: port {port} is in use by graph 'first' of this daemon" in second.mistake()

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        second = machine.agg("--name", "second", "--Frontend.port", taken).wait(20)
        assert second.out == ""
        assert f"port {taken} is in use by process {os.getpid()} (" in second.mistake()


@pytest.mark.parametrize("name", [(), ("--name", "mine")])
def test_a_command_that_is_started_again_waits_for_the_end_of_the_one_before(
    machine: Any, name: tuple[str, ...]
) -> None:
    """The graph of the command before still finishes an answer: its port and its name are free after that."""
    port = machine.port()
    words = ("--Frontend.port", port, *name)
    first = machine.agg(*words, DYN_TOKEN_ECHO_DELAY_MS="50")
    url = first.ready()
    (graph,) = {row["graph"] for row in machine.ps()}
    machine.agg("--name", "keeps").ready()
    stream = machine.stream(url, " ".join(f"word{n}" for n in range(30)))
    first.send(signal.SIGKILL)
    first.wait()
    again = machine.agg(*words)
    assert again.ready().endswith(f":{port}")
    assert {row["graph"] for row in machine.ps()} == {graph, "keeps"}
    stream.read()
