"""How a component process gets its plan, and the end of one whose daemon is gone."""

import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.runtime import plan
from dynamod.runtime.lifeline import ORPHAN_GRACE, receive_plan
from dynamod.transport.framing import pack


@given(st.lists(st.integers(1, 40), max_size=5))
def test_a_plan_arrives_in_pieces(cuts: list[int]) -> None:
    services = (plan.ServicePlan("Worker", {"config": {"a": 1}}, "m:Actor", {"http": 0}),)
    sent = plan.HostPlan("agg", "agg/Worker.0", 0, services, "/server", env={"A": "b"})
    above, below = socket.socketpair()
    with above, below, socket.socket() as listener:
        data = pack(plan.encode(sent))
        first, data = data[:1], data[1:]
        socket.send_fds(above, [first], [listener.fileno()])
        for cut in cuts:
            above.sendall(data[:cut])
            data = data[cut:]
        above.sendall(data + b"what follows")
        payload, fds = receive_plan(below)
        assert plan.decode(payload) == sent
        assert below.recv(100) == b"what follows"
        assert len(fds) == 1
        with socket.socket(fileno=fds[0]) as same:
            assert same.family == listener.family


def test_without_a_daemon_there_is_nothing_to_do() -> None:
    above, below = socket.socketpair()
    above.close()
    with below, pytest.raises(SystemExit) as end:
        receive_plan(below)
    assert end.value.code == 0


ORPHAN = """
import os, socket, subprocess, sys, time
from dynamod.runtime.lifeline import die_with_parent
sock = socket.socket(fileno=int(sys.argv[1]))
die_with_parent(sock, lambda: print("asked to stop", flush=True))
if sys.argv[2] == "child":
    subprocess.Popen(["sleep", "600"])
print("up", flush=True)
time.sleep(600)
"""


def test_an_orphan_that_does_not_end_is_killed_with_all_it_started() -> None:
    above, below = socket.socketpair()
    words = [sys.executable, "-c", ORPHAN, str(below.fileno()), "child"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[below.fileno()], start_new_session=True) as orphan:
        below.close()
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == b"up\n"
        started = time.monotonic()
        above.close()
        assert orphan.stdout.readline() == b"asked to stop\n"
        assert time.monotonic() - started < 1
        assert orphan.stdout.read() == b"", "the pipe closes when the last of the group is gone"
        assert orphan.wait(1) == -signal.SIGKILL
        assert ORPHAN_GRACE - 0.5 < time.monotonic() - started < 5.0
