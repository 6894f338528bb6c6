"""Where the control socket goes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.message.errors import UserError
from dynamod.runtime import paths
from dynamod.runtime.paths import (
    RunFolder,
    choose_socket,
    link_path,
    lock_path,
    logs_folder,
    private_socket,
    socket_candidates,
)


def test_the_order_of_places() -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/one:/run/two", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert socket_candidates(None, environ) == [
        Path("/run/one/dynamod.sock"),
        Path("/run/user/7/dynamod.sock"),
        Path("/run/dynamod/dynamod.sock"),
        private_socket(),
    ]
    assert socket_candidates(None, {**environ, "DYNAMOD_SOCKET": "/x/y"}) == [Path("/x/y")]
    assert socket_candidates("/a/b", {"DYNAMOD_SOCKET": "/x/y"}) == [Path("/a/b")]


def test_what_lies_beside_it() -> None:
    assert link_path(Path("/x/d.sock")) == Path("/x/d.sock.link")
    assert lock_path(Path("/x/d.sock")) == Path("/x/d.sock.lock")


def test_choosing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "d.sock"
    if len(os.fsencode(path)) > 100:
        pytest.skip("the temporary folder's path is too long for a socket")
    assert choose_socket(str(path), {}) == path
    assert path.parent.is_dir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert choose_socket(str(path), {}) == path, "a socket in the way is a dead daemon's"
    path.unlink()
    path.write_text("mine")
    with pytest.raises(UserError, match=r"d\.sock: .*no socket"):
        choose_socket(str(path), {})
    with pytest.raises(UserError, match="too long"):
        choose_socket("/" + "x" * 101, {})
    with pytest.raises(UserError, match=r"d\.sock/e: "):
        choose_socket(str(path / "e"), {})


def test_a_socket_that_its_daemon_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, look = tmp_path / "d.sock", Path.stat
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = look(self, follow_symlinks=follow_symlinks)
        if self == path:
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", stat)
    assert choose_socket(str(path)) == path
    assert not path.exists()


def test_the_run_folder_sweeps_those_of_the_dead(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    parent = tmp_path / "d.sock.d"
    for name in (str(dead.pid), str(os.getppid()), "other"):
        (parent / name).mkdir(parents=True)
    folder = RunFolder(tmp_path / "d.sock")
    if folder.path.parent == parent:  # else the path was too long for sockets
        assert {path.name for path in parent.iterdir()} == {str(os.getppid()), "other", str(os.getpid())}
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "logs").mkdir()
    folder.remove()
    assert not folder.path.exists()


def test_a_long_socket_path_has_its_run_folder_elsewhere(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ("x" * 90))
    try:
        assert len(os.fsencode(folder.path)) < 70
    finally:
        folder.remove()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, "/run/d/1/logs"),
        ({"LOGS_DIRECTORY": ""}, "/run/d/1/logs"),
        ({"LOGS_DIRECTORY": "/var/log/dynamod"}, "/var/log/dynamod"),
        ({"LOGS_DIRECTORY": "/var/log/a:/var/log/b"}, "/var/log/a"),
    ],
)
def test_where_log_files_go(environ: dict[str, str], folder: str) -> None:
    assert logs_folder(Path("/run/d/1"), environ) == Path(folder)


def test_a_run_folder_whose_parent_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_LONGEST", 1000)  # else a long tmp_path gives a folder that others use too
    other = RunFolder(tmp_path / "d.sock")
    swept = 0

    def sweep(parent: Path) -> None:
        nonlocal swept
        swept += 1
        if swept < 3:
            other.remove()  # the process that held it ends just now

    monkeypatch.setattr(paths, "_sweep", sweep)
    folder = RunFolder(tmp_path / "d.sock")
    assert (folder.path.is_dir(), swept) == (True, 3)
