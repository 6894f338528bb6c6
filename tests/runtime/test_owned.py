"""What another user of the machine has put in the place of our folders, files and sockets is refused, and untouched."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.daemon import cluster
from dynamod.daemon.lock import NodeLock
from dynamod.daemon.port_owner import listeners
from dynamod.message.errors import UserError
from dynamod.observe.logstore import LogStore
from dynamod.runtime.owned import check_socket, open_own, own_folder
from dynamod.runtime.paths import RunFolder, lock_path

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")


def test_a_folder_of_ours_is_private(tmp_path: Path) -> None:
    own_folder(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    own_folder(tmp_path / "new")
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        own_folder(tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(PermissionError, match="no folder"):
        own_folder(tmp_path / "link")


@as_root
def test_a_run_folder_that_another_user_has_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamod.runtime.paths._LONGEST", 1000)  # else a long tmp_path gives a folder elsewhere
    folder = tmp_path / "d.sock.d"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(PermissionError, match=f"belongs to user {OTHER}"):
        RunFolder(tmp_path / "d.sock")


def test_a_lock_that_is_a_link_is_refused_and_its_target_is_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    lock_path(tmp_path / "d.sock").symlink_to(target)
    with pytest.raises(UserError, match="cannot be opened"):
        NodeLock(tmp_path / "d.sock").take()
    assert target.read_text() == "precious"
    lock_path(tmp_path / "e.sock").hardlink_to(target)
    with pytest.raises(UserError, match="alone"):
        NodeLock(tmp_path / "e.sock").take()
    assert target.read_text() == "precious"


@as_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.chown(tmp_path / "f", OTHER, OTHER)
    with pytest.raises(PermissionError):
        open_own(tmp_path / "f", os.O_RDWR, 0o600)


def test_a_log_file_that_is_a_link_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, logs = tmp_path / "target", tmp_path / "logs"
    target.write_text("precious")
    logs.mkdir()
    (logs / "dynamod.log").symlink_to(target)
    store = LogStore(logs)
    store.write("dynamod", "a line")
    store.write("dynamod", "another")
    store.close()
    assert target.read_text() == "precious"
    assert caplog.text.count("cannot be written") == 1


@pytest.fixture
def listening() -> Iterator[list[tuple[socket.socket, Path]]]:
    made: list[tuple[socket.socket, Path]] = []
    yield made
    for sock, folder in made:
        sock.close()
        shutil.rmtree(folder)


@as_root
@pytest.mark.parametrize(("where", "refused"), [(None, True), ("/run", False)])
def test_a_socket_of_another_user(
    listening: list[tuple[socket.socket, Path]], where: str | None, refused: bool
) -> None:
    """In a folder where anybody may make sockets it is refused; a service's in a folder that root has made is not."""
    folder = Path(tempfile.mkdtemp(dir=where))
    sock = socket.socket(socket.AF_UNIX)
    listening.append((sock, folder))
    sock.bind(str(folder / "d.sock"))
    check_socket(folder / "d.sock")
    os.chown(folder, OTHER, OTHER)
    os.chown(folder / "d.sock", OTHER, OTHER)
    if refused:
        with pytest.raises(UserError, match=f"belongs to user {OTHER}"):
            check_socket(folder / "d.sock")
    else:
        check_socket(folder / "d.sock")


def test_no_socket_is_nobodys(tmp_path: Path) -> None:
    check_socket(tmp_path / "nothing")


LISTEN = """
import os, socket, sys
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("owner", [os.getuid(), pytest.param(OTHER, marks=as_root)])
def test_brokers_of_another_user_are_not_joined(owner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", LISTEN, *([str(owner)] if owner != os.getuid() else [])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert {one.user for one in listeners(port)} == {owner}
        for name in ("NATS_PORT", "ETCD_PORT"):
            monkeypatch.setattr(cluster, name, port)
        for name in ("nats_answers", "etcd_answers"):
            monkeypatch.setattr(cluster, name, lambda *_: True)
        assert (cluster.servers_here() is not None) == (owner == os.getuid())
        process.communicate("")
