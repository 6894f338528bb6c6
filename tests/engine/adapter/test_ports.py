"""Ports that an engine will listen at later."""

import socket

import pytest

from dynamod.engine.adapter.ports import ReservedPorts
from dynamod.message.errors import UserError


def test_they_are_ours_and_yet_can_be_listened_at() -> None:
    ports = ReservedPorts("127.0.0.1", 3)
    others = [ReservedPorts("127.0.0.1") for _ in range(20)]
    assert not {other.first for other in others} & set(range(ports.first, ports.first + 3))
    with socket.create_server(("127.0.0.1", ports.first + 2)):  # sets SO_REUSEADDR, as engines do
        pass
    for one in (ports, *others):
        one.close()


def test_an_address_of_another_machine() -> None:
    with pytest.raises(UserError, match=r"no 1 free ports at .*: Cannot assign") as caught:
        ReservedPorts("192.0.2.1")
    assert "transfer_host" in caught.value.hint
