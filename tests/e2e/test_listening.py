"""Where clients reach a frontend: this machine only, until a `host` says otherwise."""

import http.client
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port, has_ipv6

from .together import together

ALL_LOOPBACKS = ("localhost", "127.0.0.1", "::1")
WARNING = "other machines may use the models"


def outside() -> str:
    """An address of this machine that is no loopback; empty without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(way.getsockname()[0])


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")
needs_outside = pytest.mark.skipif(not outside(), reason="no address but the loopback")


def answers(host: str, port: int) -> bool:
    """Whether a frontend answers at that address; False where no socket listens."""
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request("GET", "/live")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


def reached(port: int) -> dict[str, bool]:
    return {host: answers(host, port) for host in (*ALL_LOOPBACKS, *filter(None, [outside()]))}


def private(port: int) -> bool:
    """Whether all names of this machine's loopback answer, and no other address does."""
    return reached(port) == {**dict.fromkeys(ALL_LOOPBACKS, True), **({outside(): False} if outside() else {})}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


COMMANDS: dict[str, tuple[Any, ...]] = {
    "serve": (
        "dynamo",
        "serve",
        "graphs.agg:Frontend",
        "-f",
        "configs/agg.yaml",
        "--Worker.engine=echo_core",
        "--port",
    ),
    "dynamo-run": ("dynamo-run", "in=http", "out=echo_full", "--model-name", "m", "--http-port"),
    "frontend": ("dynamo.frontend", "--http-port"),
}


@pytest.mark.parametrize(("command", "free"), [("serve", True), ("dynamo-run", False), ("frontend", True)])
def test_without_a_host_this_machine_alone_reaches_it(machine: Any, command: str, free: bool) -> None:
    port = 0 if free else free_port()
    running = machine.start(*COMMANDS[command], port)
    url = running.ready()
    assert url.startswith("http://localhost:")
    assert port_of(url) == port or free
    assert private(port_of(url))
    assert WARNING not in running.out + running.err


@needs_outside
@pytest.mark.parametrize("command", COMMANDS)
def test_with_a_host_other_machines_do(machine: Any, command: str) -> None:
    flag = "--host" if command == "serve" else "--http-host"
    running = machine.start(*COMMANDS[command], 0, flag, "0.0.0.0")
    port = port_of(running.ready())
    assert reached(port) == {"localhost": True, "127.0.0.1": True, "::1": False, outside(): True}
    machine.until(lambda: WARNING in running.out + running.err)


@together
@needs_outside
def test_a_list_of_hosts_in_a_config(machine: Any) -> None:
    file = machine.folder / "mine.yaml"
    shipped = Path(__file__).parents[2] / "configs" / "agg.yaml"
    text = shipped.read_text().replace("Frontend:\n", f"Frontend:\n  host: [localhost, {outside()}]\n  api_keys: k\n")
    file.write_text(text)
    running = machine.start("dynamo", "serve", "-f", file, "--Worker.engine=echo_core", "--port", 0)
    port = port_of(running.ready())
    assert reached(port) == dict.fromkeys([*ALL_LOOPBACKS, outside()], True)
    assert WARNING not in running.out + running.err


def test_several_processes_and_their_stand_in_share_both_addresses(machine: Any) -> None:
    running = machine.agg("--Frontend.ServiceArgs.workers=2")
    port = port_of(running.ready())
    for _ in range(10):
        assert private(port)
    assert machine.run("dynamo", "restart", "Frontend").code == 0
    assert private(port)
    assert machine.run("dynamo", "scale", "Frontend", "1").code == 0
    assert private(port)
    assert machine.run("dynamo", "scale", "Frontend", "0").code == 0
    drained = http.client.HTTPConnection("::1", port, timeout=20)
    drained.request("GET", "/live")
    drained.close()
    assert machine.run("dynamo", "scale", "Frontend", "2").code == 0
    machine.until(lambda: private(port))


def test_a_stranger_at_either_address_is_one_error(machine: Any) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as stranger:
        port = stranger.getsockname()[1]
        done = machine.run("dynamo", "serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--port", port)
        assert f"port {port} is in use" in done.mistake()
