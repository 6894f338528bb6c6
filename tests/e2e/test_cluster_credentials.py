"""Servers that want credentials: nodes with the right ones find each other, the others say what is wrong."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from dynamod.features.infra import brokers as infra

from .nodes import Servers, models, on, worker

RIGHT = {
    "NATS_AUTH_USERNAME": "me",
    "NATS_AUTH_PASSWORD": "hush-nats",
    "ETCD_AUTH_USERNAME": "root",
    "ETCD_AUTH_PASSWORD": "hush-etcd",
}
WRONG = {**RIGHT, "NATS_AUTH_PASSWORD": "guess-nats", "ETCD_AUTH_PASSWORD": "guess-etcd"}


class Guarded(Servers):
    """An etcd with a user, and beside its NATS one that wants a password."""

    nats: "subprocess.Popen[bytes] | None" = None
    port = 0

    def guard(self, machine: Any) -> None:
        etcd = self.servers["etcd"].url
        for words in (["user", "add", "root:hush-etcd"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
            done = subprocess.run([infra._binary("etcdctl"), "--endpoints", etcd, *words], capture_output=True)
            assert done.returncode == 0, done.stderr
        self.port = machine.port()
        words = ["--user", "me", "--pass", "hush-nats", "-a", "127.0.0.1", "-p", str(self.port)]
        self.nats = subprocess.Popen([infra._binary("nats-server"), *words], stderr=subprocess.DEVNULL)
        machine.until(lambda: infra.nats_answers(self.url))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "NATS_SERVER": self.url}


@pytest.fixture
def guarded(machine: Any) -> Iterator[Guarded]:
    servers = Guarded(machine)
    try:
        servers.guard(machine)
        yield servers
        for command in reversed(machine.commands):
            command.end()  # before the servers
    finally:
        if servers.nats is not None:
            servers.nats.terminate()
            servers.nats.wait(5)
        servers.down()


def front(machine: Any, servers: Guarded, node: str, env: dict[str, str]) -> tuple[Any, str]:
    words = ("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    started = machine.start(*words, **on(machine, servers, node, **env))
    return started, started.ready()


WORDS = "etcd at", "NATS at"


def complaints(command: Any) -> list[str]:
    return [line for line in command.err.splitlines() if " ERROR " in line]


def test_wrong_credentials_are_one_clear_line_each_and_right_ones_join(machine: Any, guarded: Guarded) -> None:
    door, url = front(machine, guarded, "one", RIGHT)
    lost, alone = front(machine, guarded, "lost", WRONG)
    # Each is said again every few seconds, so that one may come twice before the other.
    etcd, nats = (
        machine.until(lambda word=word: [one for one in complaints(lost) if word in one])[0] for word in WORDS
    )
    assert f"etcd at {guarded.servers['etcd'].url} refuses this node (authentication failed" in etcd
    assert "check ETCD_AUTH_*" in etcd
    assert f"NATS at {guarded.url} refuses the credentials of NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD" in nats

    worker(machine, guarded, "two", env=RIGHT)
    machine.until(lambda: models(machine, url) == ["sample"])
    assert machine.chat(url, "hello", max_tokens=3)
    assert models(machine, alone) == [], "who is not let in learns nothing"
    here = worker(machine, guarded, "lost", "--model-name", "here", env=WRONG)
    machine.until(lambda: models(machine, alone) == ["here"])
    assert machine.chat(alone, "hello", model="here", max_tokens=3), "its own node serves on"
    assert models(machine, url) == ["sample"]

    said = door.err + lost.err + here.err
    assert "Traceback" not in said
    assert not [word for word in (*RIGHT.values(), *WRONG.values()) if "-" in word and word in said]
    assert complaints(door) == []
