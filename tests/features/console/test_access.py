"""The rights of a client of the console, as a function."""

from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.features.console.access import HEADER, access, check_admin, check_change
from dynamod.http.context import Caller
from dynamod.http.errors import Forbidden


def client(name: str, *, admin: bool) -> Any:
    return SimpleNamespace(key=SimpleNamespace(name=name, admin=admin))


def look(
    host: str = "localhost:8000", remote: str | None = "127.0.0.1", *, console_admin: bool = False, **more: str
) -> Any:
    headers = {"Host": host, **{name.replace("_", "-"): value for name, value in more.items()}}
    return access(headers, remote, Caller(), keys=False, console_admin=console_admin)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST.:8000"])
def test_without_keys_a_local_name_is_answered(host: str) -> None:
    assert look(host).admin is False
    assert look(host, "::1").owner is None
    assert look(host, "::ffff:127.0.0.1", console_admin=True).admin is True


@pytest.mark.parametrize(
    ("host", "remote"),
    [
        ("example.org:8000", "127.0.0.1"),  # a name that was rebound to this machine
        ("localhost.example.org", "127.0.0.1"),
        ("127.0.0.1.example.org:8000", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("localhost:8000", "10.0.0.1"),
        ("localhost:8000", "::2"),
        ("localhost:8000", ""),
        ("localhost:8000", None),
    ],
)
def test_without_keys_others_are_refused(host: str, remote: str | None) -> None:
    with pytest.raises(Forbidden, match="this machine"):
        look(host, remote, console_admin=True)


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host"])
def test_a_proxy_is_another_machine(header: str) -> None:
    with pytest.raises(Forbidden):
        access({"Host": "localhost", header: "10.0.0.1"}, "127.0.0.1", Caller(), keys=False, console_admin=True)


@pytest.mark.parametrize(
    "more",
    [
        {"Origin": "http://example.org"},
        {"Origin": "http://localhost:9000"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(more: dict[str, str]) -> None:
    with pytest.raises(Forbidden, match="origin"):
        look(**more)


def test_the_own_page_is_answered() -> None:
    assert look(Origin="http://localhost:8000", Sec_Fetch_Site="same-origin").admin is False
    assert look(Sec_Fetch_Site="none").admin is False


def test_a_key_sees_its_own_requests_and_an_admin_all() -> None:
    headers, given = {"Host": "example.org"}, {"keys": True, "console_admin": True}
    plain = access(headers, "10.0.0.1", Caller("key:1"), **given)
    assert (plain.admin, plain.owner) == (False, "key:1")
    named = access(headers, "10.0.0.1", Caller("client:a", client("a", admin=False)), **given)
    assert (named.admin, named.owner) == (False, "a")
    admin = access(headers, "10.0.0.1", Caller("client:b", client("b", admin=True)), **given)
    assert (admin.admin, admin.owner) == (True, None)


def test_a_change_needs_rights_and_the_header() -> None:
    allowed = look(console_admin=True)
    check_change({HEADER: "1"}, allowed, keys=False)
    for headers in ({}, {HEADER: ""}, {HEADER: "0"}):
        with pytest.raises(Forbidden, match=HEADER):
            check_change(headers, allowed, keys=False)
    with pytest.raises(Forbidden, match="console_admin"):
        check_change({HEADER: "1"}, look(), keys=False)
    with pytest.raises(Forbidden, match="admin: true"):
        check_admin(look(), keys=True)
