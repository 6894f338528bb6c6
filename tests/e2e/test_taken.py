"""A graph whose name or port is taken: one line with the owner, and nothing before it."""

import os
import socket
from typing import Any


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
