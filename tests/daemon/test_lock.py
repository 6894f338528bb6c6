"""One holder per node, however it ends."""

import subprocess
import sys
from pathlib import Path

from dynamod.daemon.lock import NodeLock

HOLD = """
import sys
from pathlib import Path
from dynamod.daemon.lock import NodeLock
seat = NodeLock(Path(sys.argv[1]))
print(seat.take(), flush=True)
sys.stdin.readline()
seat.leave()
print(seat.take(), flush=True)
sys.stdin.readline()
"""


def test_two_processes(tmp_path: Path) -> None:
    socket = tmp_path / "d.sock"
    mine = NodeLock(socket)
    assert mine.holder() == 0
    words = [sys.executable, "-c", HOLD, str(socket)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert mine.take() is False
        assert mine.holder() == other.pid
        other.stdin.write("leave and take again\n")
        other.stdin.flush()
        assert other.stdout.readline() == "True\n"
        assert mine.take() is False
        other.kill()  # no farewell: the kernel opens the lock
        other.wait(5)
    assert mine.take() is True
    assert mine.take() is True, "taking again is no matter"
    assert NodeLock(socket).take() is False, "nor can this process take it twice"
    mine.leave()
    mine.leave()
    assert mine.holder() == 0
    assert (tmp_path / "d.sock.lock").exists()
    assert NodeLock(socket).holder() == 0


def test_an_unreadable_lock_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "d.sock.lock").write_text("what?")
    assert NodeLock(tmp_path / "d.sock").holder() == 0


def test_a_lock_file_that_was_removed(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path / "d.sock"), NodeLock(tmp_path / "d.sock")
    file = tmp_path / "d.sock.lock"
    assert not first.held
    assert first.take()
    file.unlink()
    assert not first.held
    first.restore()
    assert first.held
    assert second.take() is False
    file.unlink()
    assert second.take(), "it was quicker than we"
    first.restore()
    assert (first.held, second.held) == (False, True)
    first.leave()
    second.leave()
