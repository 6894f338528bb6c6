"""Which process listens on a port: the real /proc of this machine, and damaged ones."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.daemon.port_owner import port_owner
from dynamod.daemon.sockets import listen
from dynamod.message.errors import UserError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_owner_is_named(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"{host} does not exist here")
    with sock:
        port = sock.getsockname()[1]
        assert port_owner(port).startswith(f"process {os.getpid()} (")
    assert port_owner(port) == ""


def test_another_process_is_named_in_the_error() -> None:
    text = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(
            UserError, match=rf"Frontend cannot listen: port {port} is in use by process {other.pid} \("
        ):
            listen(["127.0.0.1"], port, "Frontend")
    finally:
        other.communicate("\n")


def test_a_process_that_may_not_be_looked_at_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("head\n 0: 0100007F:1F90 00000000:0000 0A 0 0 0 0 0 77\n")
    (tmp_path / "5").mkdir()
    assert port_owner(0x1F90, tmp_path) == "", "its descriptors cannot be read"
    (tmp_path / "5/fd").mkdir()
    (tmp_path / "5/fd/3").symlink_to("socket:[77]")
    assert port_owner(0x1F90, tmp_path) == "process 5", "its name cannot be read"
    assert port_owner(0x1F91, tmp_path) == ""
    assert port_owner(0x1F90, tmp_path / "5/fd") == "", "no /proc at all"
