"""Where the other nodes are: from the environment, or found at the usual ports."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dynamod.daemon.cluster import cluster_of, etcd_answers, nats_answers
from dynamod.message.errors import UserError

NATS, ETCD = "nats://other:4222", "http://other:2379"


def nobody() -> None:
    return None


def test_a_node_is_alone_unless_told_or_found() -> None:
    assert cluster_of({}, nobody).etcd is None
    found = cluster_of({}, lambda: (NATS, ETCD))
    assert found.found
    assert found.etcd is not None
    assert str(found.etcd.endpoints[0]) == ETCD
    assert found.nats == {"NATS_SERVER": NATS}
    assert cluster_of({"DYNAMOD_CLUSTER": "off", "ETCD_ENDPOINTS": ETCD}, lambda: (NATS, ETCD)).etcd is None


def test_what_is_told_is_not_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> None:
        raise AssertionError("nobody asked")

    told = cluster_of({"ETCD_ENDPOINTS": ETCD, "NATS_SERVER": NATS, "NATS_AUTH_TOKEN": "t", "HOME": "/"}, look)
    assert told.nats == {"NATS_SERVER": NATS, "NATS_AUTH_TOKEN": "t"}
    assert not told.found
    assert not caplog.records
    alone = cluster_of({"NATS_SERVER": NATS}, look)
    assert (alone.etcd, dict(alone.nats)) == (None, {"NATS_SERVER": NATS}), "static workers need no etcd"
    (warning,) = caplog.messages
    assert "ETCD_ENDPOINTS is not: only static workers of other nodes are reached" in warning


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"DYNAMOD_CLUSTER": "on"}, "DYNAMOD_CLUSTER is 'on'"),
        ({"ETCD_ENDPOINTS": "ftp://other"}, "ETCD_ENDPOINTS names 'ftp://other'"),
        ({"NATS_SERVER": "http://other"}, "NATS_SERVER"),
    ],
)
def test_mistakes_name_the_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cluster_of(environ, nobody)


@contextmanager
def server(greeting: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def serve() -> None:
            try:
                connection, _ = sock.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.sendall(greeting)
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield sock.getsockname()[1]
        sock.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_strangers_are_not_taken_for_servers() -> None:
    with server(b"SSH-2.0-x\r\n") as port:
        assert not nats_answers(f"nats://127.0.0.1:{port}", 0.3)
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]") as port:
        assert not etcd_answers(f"http://127.0.0.1:{port}", 0.3)
    with server(b'INFO {"server_id":"x"}\r\n') as port:
        assert nats_answers(f"nats://127.0.0.1:{port}", 0.3)
    assert not nats_answers("nats://127.0.0.1:1", 0.3)
    assert not etcd_answers("http://127.0.0.1:1", 0.3)
