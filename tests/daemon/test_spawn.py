"""Component processes as the daemon starts them: what is left open when one has ended."""

import asyncio
import subprocess
import sys

import pytest
import uvloop

from dynamod.daemon.spawn import Child, Origin


def test_the_pipes_of_a_process_that_has_ended_are_closed() -> None:
    """Left to the garbage collector, their descriptors would be closed when others have those numbers already."""

    async def main() -> list[bool]:
        child = Child.start(Origin().environment(), "", Origin())
        out, err = await child.outputs()
        child.sock.close()  # its lifeline: it ends before it gets a plan
        assert [await out.read(), await err.read(), await child.wait()] == [b"", b"", 0]
        await asyncio.sleep(0)
        return [pipe.closed for pipe in (child.program.stdout, child.program.stderr) if pipe is not None]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [True, True]


FORKING = """
import os, sys
from functools import partial
from dynamod.daemon.forked import Forked
import dynamod.runtime.host

def be():
    {body}

child = Forked(be, {{"A": "1"}}, keep=2)
out, err = child.stdout.read(), child.stderr.read()
print([child.wait(), child.poll(), out.decode(), err.decode().splitlines()[-1:]])
print("parent", "A" in os.environ)
"""


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("print(os.environ['A'], len(os.environ), flush=True); sys.exit(0)", [0, 0, "1 1\n", []]),
        ("sys.exit(3)", [3, 3, "", []]),
        ("sys.exit()", [0, 0, "", []]),
        ("raise ValueError('x')", [1, 1, "", ["ValueError: x"]]),
        ("os.kill(os.getpid(), 9)", [-9, -9, "", []]),
        ("import weakref; be.kept = set(); weakref.finalize(be.kept, print, 'end'); sys.exit(0)", None),
        ("import threading; threading.Timer(0.2, print, ['late']).start(); sys.exit(0)", [0, 0, "late\n", []]),
        ("print(os.getsid(0) == os.getpid(), sys.stdin.read() == '')", [0, 0, "True True\n", []]),
        ("print(sys.modules['__main__'].__spec__.name)", [0, 0, "dynamod.runtime.host\n", []]),
        ("print(sorted(os.listdir('/proc/self/fd'))[:-1])", [0, 0, "['0', '1', '2']\n", []]),
    ],
)
def test_a_forked_process_is_as_a_new_one(body: str, result: list[object] | None) -> None:
    """It begins without what is the parent's own, and its end is seen as that of any process."""
    program = FORKING.format(body=body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str(result or [0, 0, "end\n", []]), "parent False"], done.stderr


def test_a_forked_process_that_cannot_begin_says_why() -> None:
    program = FORKING.format(body="pass").replace('"A": "1"', '"A": 1')
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[1, 1, '', ['TypeError: str expected, not int']]", "parent False"], done.stderr


def test_a_forked_process_whose_end_the_system_forgets() -> None:
    """A parent that ignores SIGCHLD gets no exit codes: it sees the end, and no error."""
    program = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)" + FORKING.format(body="sys.exit(3)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == "[0, 0, '', []]", done.stderr


SPARES = """
import sys
from functools import partial
from dynamod.daemon.spawn import Origin, prewarm, take_spare
from dynamod.runtime import host

def receive_plan(sock):
    print(sorted({"aiohttp", "dynamod.worker.worker"} & set(sys.modules)), flush=True)
    sys.exit(len(sock.recv(1)))

host.receive_plan = receive_plan
kinds, origin = ("ingress", "worker"), Origin()
host.warm_up("worker")
prewarm(kinds, origin, partial(host.live, forked=True))
for kind in kinds:
    child = take_spare(kind, origin, origin.environment())
    child.send_plan(b"", ())
    print(kind, child.program.stdout.read().decode().strip(), child.program.wait())
print("aiohttp" in sys.modules)
"""


def test_spares_import_what_they_need_while_the_daemon_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", SPARES], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "ingress ['aiohttp', 'dynamod.worker.worker'] 1",
        "worker ['dynamod.worker.worker'] 1",
        "False",
    ], done.stderr


def test_a_daemon_takes_a_graph_without_the_http_library() -> None:
    """The library takes 0.1 s and 10 MB. The control socket imports it for its first client."""
    code = "import sys, dynamod.cli.boot, dynamod.features.audit.daemon, dynamod.features.audit.lines\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('aiohttp' in sys.modules)"], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
