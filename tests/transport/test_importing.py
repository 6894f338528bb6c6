"""nats-py is imported while it cannot see the HTTP library: a thread that needs this library waits."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.control import socket
from dynamod.transport.nats import client


def test_a_thread_that_imports_the_http_library_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, over, seen = threading.Event(), threading.Event(), list[Any]()

    def slowly(_name: str) -> None:
        hidden.set()
        over.wait(10)

    def at_once(_name: str) -> None:
        seen.append(sys.modules.get("aiohttp", "can be found"))

    monkeypatch.delitem(sys.modules, "aiohttp", raising=False)
    monkeypatch.delitem(sys.modules, "nats.aio.client", raising=False)
    monkeypatch.setattr(client, "importlib", SimpleNamespace(import_module=slowly))
    monkeypatch.setattr(socket, "importlib", SimpleNamespace(import_module=at_once))
    threads = [threading.Thread(target=client.library), threading.Thread(target=socket._server)]
    threads[0].start()
    assert hidden.wait(10)
    assert sys.modules["aiohttp"] is None
    threads[1].start()
    threads[1].join(0.1)
    assert seen == []
    over.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["can be found"]
