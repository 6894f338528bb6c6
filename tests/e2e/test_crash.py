"""What happens when a component process dies: it comes back, and who waits for it gets an honest answer."""

import json
import os
import shutil
import signal
import socket
import time
from typing import Any

import pytest

from .together import together

WORDS = " ".join(f"word{n}" for n in range(150))


def kill(machine: Any, component: str) -> int:
    pid: int = machine.row(component)["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_worker_comes_back(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="1")
    url = command.ready()
    before = machine.chat(url, "hello")

    pid = kill(machine, "Worker")
    gone = machine.until(lambda: machine.answers(url, "/health") == 503, 1.0, "the frontend drops the instance")
    assert gone
    assert machine.ask(url, "/v1/models")[1] == '{"object":"list","data":[]}'
    status, text = machine.ask(url, "/v1/chat/completions", {"model": "sample", "messages": [{"role": "user"}]})
    assert status in (400, 404, 503), text
    assert '"error"' in text

    machine.until(lambda: machine.serves(url))
    machine.until(lambda: machine.row("Worker")["state"] == "Ready")
    row = machine.row("Worker")
    assert row["pid"] not in (pid, 0)
    assert (row["restarts"], row["last_error"]) == (1, "killed by SIGKILL")
    assert machine.row("Frontend")["restarts"] == 0
    assert machine.chat(url, "hello") == before
    command.tree()

    # the frontend dies: the port stays open, and it serves again
    kill(machine, "Frontend")
    machine.until(lambda: machine.row("Frontend")["restarts"] == 1)
    assert machine.chat(url, "hello") == before, "a connection waits in the backlog until the door is open again"
    machine.until(lambda: machine.row("Frontend")["state"] == "Ready")
    assert machine.row("Processor")["last_error"] == "killed by SIGKILL"
    assert machine.free(url) is False
    shown = machine.run("dynamo", "ps")
    assert "killed by SIGKILL" in shown.out


@together
def test_a_cleaner_of_temporary_files_changes_nothing_for_requests(machine: Any) -> None:
    """All sockets, the lock and the run folder are removed while it serves."""
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="5")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    ours = [path for path in machine.folder.iterdir() if path.name.startswith("d.sock")]
    assert len(ours) == 4, ours
    for path in ours:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert WORDS in stream.read().text
    machine.until(lambda: machine.raw_status() and all(path.exists() for path in ours))
    assert machine.chat(url, "hello")
    for component in ("Worker", "Frontend"):
        pid = kill(machine, component)
        machine.until(lambda c=component, p=pid: machine.ps(c) and machine.row(c)["pid"] not in (0, p))
        machine.until(lambda c=component: machine.row(c)["state"] == "Ready")
        machine.until(lambda: machine.serves(url))
        assert machine.chat(url, "hello")
    assert "is held by process" in machine.run("dynamod").err
    assert "INFO" in machine.run("dynamo", "logs").out
    assert command.err.count("it is there again") >= 3
    command.end()
    assert not [path for path in ours if path.exists() and path.name != "d.sock.lock"]


@together
def test_no_connection_is_refused_while_the_front_door_is_down(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="5")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    kill(machine, "Frontend")
    stream.read()
    assert (stream.finish, stream.done) == (None, False), "it is cut off, and can be seen to be"
    waiting = []
    while (machine.row("Frontend")["restarts"], machine.row("Frontend")["state"]) != (1, "Ready"):
        waiting.append(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1))
        time.sleep(0.02)
    assert waiting
    for sock in waiting:  # they waited in the backlog, and are answered now
        sock.settimeout(10)
        sock.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        sock.close()
    command.tree()
    machine.until(lambda: machine.answers(url, "/health") == 200)
    assert WORDS in machine.chat(url, WORDS)
    (row,) = [row for row in machine.ps() if row["component"] == "Worker"]
    assert row["restarts"] == 0


def test_health_says_what_chat_would(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="1")
    url = command.ready()
    for count in range(1, 4):
        kill(machine, "Worker")
        machine.until(lambda: machine.answers(url, "/health") == 503, 2.0)
        machine.until(lambda: machine.answers(url, "/health") == 200)
        assert "hello" in machine.chat(url, "hello"), f"healthy after restart {count}, so it must answer"
        machine.until(lambda: machine.row("Worker")["state"] == "Ready")
        command.tree()
    (instance,) = json.loads(machine.ask(url, "/health")[1])["instances"]
    assert (instance["component"], instance["process"]) == ("Worker", "agg/Worker.0")
    assert "sock" not in json.dumps(instance), "where its socket lies is nobody's business"


def test_a_stream_without_another_worker_ends_with_an_error_event(machine: Any) -> None:
    url = machine.agg("--Processor.queue_timeout=1", DYN_TOKEN_ECHO_DELAY_MS="20").ready()
    stream = machine.stream(url, WORDS)
    kill(machine, "Worker")
    started = time.monotonic()
    stream.read()
    assert time.monotonic() - started < 10
    if stream.error is None:  # the worker was back before the queue clock passed: then nothing may be lost
        assert stream.finish == "stop"
        assert WORDS in stream.text
    else:
        assert stream.error["event"] == "error"
        assert stream.error["error"]["message"]
        assert stream.error["error"]["code"]
        assert not stream.done


def test_a_stream_goes_on_at_another_worker_with_the_same_text(machine: Any) -> None:
    command = machine.agg("--Worker.ServiceArgs.workers=2", DYN_TOKEN_ECHO_DELAY_MS="2")
    url = command.ready()
    machine.until(lambda: len(machine.ps("Worker")) == 2)
    streams = [machine.stream(url, WORDS) for _ in range(4)]
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert stream.error is None
        assert (stream.finish, stream.done) == ("stop", True)
    assert len({stream.text for stream in streams}) == 1
    assert WORDS in streams[0].text
    machine.until(lambda: all(row["state"] == "Ready" for row in machine.ps()))
    assert [row["restarts"] for row in machine.ps("Worker")] == [1, 0]


@together
def test_a_stopped_worker_is_left_alone_until_it_is_heard_again(machine: Any) -> None:
    command = machine.agg("--Worker.ServiceArgs.workers=2", DYN_TOKEN_ECHO_DELAY_MS="3", DYNAMOD_HEARTBEAT_TIMEOUT="1")
    url = command.ready()
    streams = [machine.stream(url, WORDS) for _ in range(4)]
    stopped = machine.ps("Worker")[1]
    os.kill(stopped["pid"], signal.SIGSTOP)
    for stream in streams:
        stream.read()
        assert stream.error is None
        assert (stream.finish, stream.done) == ("stop", True)
    assert len({stream.text for stream in streams}) == 1, "two of them moved, and nobody can tell"
    assert WORDS in streams[0].text

    assert machine.ps("Worker")[1]["state"] == "Silent"
    answers = [machine.chat(url, "hello") for _ in range(3)]
    assert len(set(answers)) == 1, "nothing new goes there"
    os.kill(stopped["pid"], signal.SIGCONT)
    machine.until(lambda: machine.ps("Worker")[1]["state"] == "Ready")
    assert [row["restarts"] for row in machine.ps("Worker")] == [0, 0]
    assert [machine.chat(url, "hello") for _ in range(4)] == answers[:1] * 4


@together
def test_without_another_worker_a_stopped_one_is_waited_for_until_it_is_killed(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="20", DYNAMOD_KILL_TIMEOUT="4")
    url = command.ready()
    stream = machine.stream(url, WORDS)
    pid = machine.row("Worker")["pid"]
    os.kill(pid, signal.SIGSTOP)
    machine.until(lambda: machine.row("Worker")["state"] == "Silent")
    body = {"model": "sample", "messages": [{"role": "user", "content": "hello"}]}
    status, text = machine.ask(url, "/v1/chat/completions", body)
    assert (status, "error" in text) == (503, True)
    os.kill(pid, signal.SIGCONT)
    stream.read()
    assert (stream.error, stream.finish, stream.done) == (None, "stop", True)
    assert WORDS in stream.text
    machine.until(lambda: machine.serves(url))

    stream = machine.stream(url, WORDS)
    os.kill(pid, signal.SIGSTOP)
    stream.read()
    assert not stream.done
    assert stream.error["error"]["code"]
    # the stream ends with the connection, a moment before the daemon takes the worker's keys away
    machine.until(lambda: machine.row("Worker")["restarts"])
    machine.until(lambda: machine.serves(url))
    row = machine.row("Worker")
    assert (row["restarts"], row["pid"] != pid) == (1, True)


def test_what_cannot_work_is_given_up_at_once(machine: Any) -> None:
    started = time.monotonic()
    result = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="soon").wait(20)
    assert time.monotonic() - started < 10
    assert result.code not in (0, 3)
    lines = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, result.err
    assert "DYN_TOKEN_ECHO_DELAY_MS=soon" in lines[0]
    assert "Traceback" not in result.err


@pytest.mark.slow
@together
def test_an_ingress_that_dies_again_and_again_is_started_for_ever_and_the_port_answers(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="1", fresh=True)  # a start that takes long enough to be seen
    url = command.ready()
    for _ in range(7):
        kill(machine, "Frontend")
        machine.until(lambda: machine.row("Frontend")["state"] in ("Restarting", "Starting"))
        if machine.row("Frontend")["restarts"] >= 5:
            machine.until(
                lambda: machine.answers(url, "/health") == 503, 8.0, "the daemon answers while nobody else does"
            )
            status, text = machine.ask(url, "/v1/chat/completions", {"model": "sample", "messages": []})
            assert (status, json.loads(text)["error"]["code"]) == (503, "no_ingress")
        machine.until(lambda: machine.row("Frontend")["state"] == "Ready", 40.0)
    assert machine.row("Frontend")["restarts"] == 7
    machine.until(lambda: machine.serves(url))
    assert "hello" in machine.chat(url, "hello")
    command.end()


@together
def test_open_answers_finish_when_the_command_is_ended(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="8")
    url = command.ready()
    text = " ".join(f"word{n}" for n in range(40))
    streams = [machine.stream(url, text) for _ in range(8)]
    command.send(signal.SIGTERM)
    for stream in streams:
        stream.read()
        assert (stream.error, stream.finish, stream.done) == (None, "stop", True)
        assert text in stream.text
    command.gone(5)


@together
def test_one_engine_ends_with_the_grace_that_its_command_was_given(machine: Any) -> None:
    words = ("in=http", "out=echo_core", "sample", "--http-port", 0, "--timeout", 30)
    command = machine.start("dynamo-run", *words, DYN_TOKEN_ECHO_DELAY_MS="40")
    text = " ".join(f"word{n}" for n in range(40))
    stream = machine.stream(command.ready(), text)
    began = time.monotonic()
    command.send(signal.SIGTERM)
    stream.read()
    assert (stream.error, stream.finish) == (None, "stop")
    assert text in stream.text
    assert 2.5 < time.monotonic() - began < 30, "longer than the usual 2 s"
    command.gone(5)


@together
def test_stop_gives_open_answers_the_time_that_it_is_told(machine: Any) -> None:
    command = machine.agg(DYN_TOKEN_ECHO_DELAY_MS="40")
    url = command.ready()
    text = " ".join(f"word{n}" for n in range(40))
    stream = machine.stream(url, text)
    began = time.monotonic()
    stopped = machine.run("dynamo", "stop", "agg", "--timeout", "30")
    assert stopped.code == 0, stopped.err
    assert 2.5 < time.monotonic() - began < 30
    stream.read()
    assert (stream.error, stream.finish) == (None, "stop")
    command.gone(5)


@together
def test_a_service_that_ends_gives_open_answers_their_time(machine: Any) -> None:
    machine.env["DYN_TOKEN_ECHO_DELAY_MS"] = "40"
    daemon, port = machine.start("dynamod"), machine.port()
    machine.until(machine.raw_status)
    graph = ("-f", "configs/agg.yaml", "--Worker.engine=echo_core", "--port", port)
    assert machine.run("dynamo", "serve", *graph, "--detach").code == 0
    url = f"http://127.0.0.1:{port}"
    machine.until(lambda: machine.serves(url))
    text = " ".join(f"word{n}" for n in range(40))
    stream, began = machine.stream(url, text), time.monotonic()
    daemon.send(signal.SIGTERM)
    stream.read()
    assert (stream.error, stream.finish) == (None, "stop")
    assert text in stream.text
    assert time.monotonic() - began > 2.5, "longer than a command in a terminal gives"
    assert daemon.wait(10).code == 0


@together
def test_an_open_answer_of_a_frontend_that_ends_moves_to_a_new_worker(machine: Any) -> None:
    """The frontend is told to end, and then its answer needs a connection to a process that starts now."""
    url = machine.agg("--timeout", 60, DYN_TOKEN_ECHO_DELAY_MS="50").ready()
    words = " ".join(f"word{n}" for n in range(200))
    stream = machine.stream(url, words, max_tokens=1500)
    os.kill(machine.row("Frontend")["pid"], signal.SIGTERM)
    pid = machine.row("Worker")["pid"]
    scaled = machine.run("dynamo", "scale", "Worker", "2")
    assert scaled.code == 0, scaled.err
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready", "Ready"])
    assert stream.finish is None, "it is open still"
    os.kill(pid, signal.SIGKILL)
    stream.read()
    assert (stream.error, stream.finish) == (None, "stop")
    assert words in stream.text
