"""Records of requests: what they say of workers, and whose address is the client's."""

import ipaddress
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from dynamod.http.context import Place
from dynamod.http.records import Bodies, Proxies, _migrations, _payload
from dynamod.http.settings import FrontendSettings, from_environment
from dynamod.message.discovery import Instance
from dynamod.message.errors import UserError


def request(remote: str | None, *forwarded: str) -> web.BaseRequest:
    headers = CIMultiDict([("X-Forwarded-For", text) for text in forwarded])
    return cast("web.BaseRequest", SimpleNamespace(remote=remote, headers=headers))


PROXIES = Proxies(FrontendSettings(trusted_proxies=["127.0.0.1", "10.0.0.0/8", "fd00::/8"]).proxies)


@pytest.mark.parametrize(
    ("remote", "forwarded", "client"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9, 198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        ("127.0.0.1", ["203.0.113.9", "198.51.100.7,10.1.2.3"], "198.51.100.7"),
        ("127.0.0.1", ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
        ("::ffff:10.0.0.9", ["198.51.100.7:4711"], "198.51.100.7"),
        ("fd00::1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("127.0.0.1", ["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        (None, ["198.51.100.7"], ""),
    ],
)
def test_the_address_of_a_client(remote: str | None, forwarded: list[str], client: str) -> None:
    assert PROXIES.client(request(remote, *forwarded)) == client
    assert Proxies().client(request(remote, *forwarded)) == (remote or "")


@given(st.text(max_size=60))
def test_no_header_breaks_a_request(text: str) -> None:
    found = PROXIES.client(request("10.0.0.1", text))
    ipaddress.ip_address(found)


def test_a_line_of_a_batch_has_no_client() -> None:
    assert PROXIES.client(cast("web.BaseRequest", SimpleNamespace(headers={}))) == ""


def test_trusted_proxies_are_networks() -> None:
    assert [str(one) for one in FrontendSettings(trusted_proxies="10.0.0.7, ::1").proxies] == ["10.0.0.7/32", "::1/128"]
    assert from_environment({"DYN_HTTP_TRUSTED_PROXIES": "10.0.0.7"})["trusted_proxies"] == "10.0.0.7"
    for wrong in ("proxy.example", "10.0.0.7/8", "10.0.0.0/33"):
        with pytest.raises(UserError, match="trusted_proxies") as raised:
            FrontendSettings(trusted_proxies=wrong)
        assert "10.0.0.0/8" in raised.value.hint


def place(instance: int, choice: int = 0, prefill: bool = False) -> Place:
    return Place(choice, 0.0, Instance("n", "c", "e", instance, {}), prefill)


@pytest.mark.parametrize(
    ("places", "count"),
    [
        ([], 0),
        ([place(1)], 0),
        ([place(9, prefill=True), place(1)], 0),
        ([place(1), place(2), place(2), place(1)], 2),
        ([place(1, 0), place(2, 1), place(3, 0), place(2, 1)], 1),
    ],
)
def test_migrations_are_changes_of_the_worker(places: list[Place], count: int) -> None:
    assert _migrations(places) == count


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (HEAD + b"9\r\ndata: {}\n\r\n4\r\ndata\r\n0\r\n\r\n", b"data: {}\ndata"),
        (HEAD + b"9\r\ndata: {}\n\r\n4\r\nda", b"data: {}\nda"),
        (b"9\r\ndata: {}\n\r\n", b"data: {}\n"),
        (b"data: {}\n\n", b"data: {}\n\n"),
        (HEAD, b""),
    ],
)
def test_the_body_of_a_stream(sent: bytes, body: bytes) -> None:
    assert _payload(sent) == body


def test_bodies_are_bounded() -> None:
    bodies = Bodies(100, b"x" * 101)
    assert (bodies.request, bodies.response) == (None, None)
    for _ in range(100):
        bodies.add(b"data: {}\n\n")
    found = bodies.response
    assert found is not None
    assert 100 <= len(found) <= 110
    bodies.whole(b"y" * 101)
    assert bodies.response is None
    bodies.whole(b"y")
    assert (bodies.response, Bodies(100, b"x").request) == (b"y", b"x")
