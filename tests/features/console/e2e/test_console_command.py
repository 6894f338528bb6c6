"""The console without a browser: the real routes of a fleet, questions that are followed, and `dynamo console`."""

import contextlib
import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT

FLEET = ("-f", "configs/agg_router.yaml", "--Worker.engine=echo_core", "--Frontend.port=0")


@pytest.fixture
def url(machine: Any) -> str:
    return str(machine.start("dynamo", "serve", *FLEET, cwd=ROOT).ready())


def events(response: http.client.HTTPResponse, count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    name = ""
    while len(found) < count:
        line = response.readline()
        assert line, found
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            found.append((name, json.loads(line[6:])))
    return found


def get(url: str, path: str, **headers: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return connection, connection.getresponse()


def test_a_browser_gets_the_console_and_others_links(machine: Any, url: str) -> None:
    for accept, kind in (("text/html,*/*", "text/html"), ("*/*", "application/json")):
        connection, response = get(url, "/", Accept=accept)
        body = response.read()
        assert response.headers["Content-Type"].startswith(kind)
        assert (b"/console/app.js" in body) == (kind == "text/html")
        connection.close()
    connection, response = get(url, "/", Accept="text/html", X_Forwarded_For="10.0.0.1")
    assert b"/console/app.js" not in response.read()  # the short page: the client is another machine
    connection.close()
    connection, response = get(url, "/v1/console/events")
    names = [name for name, _ in events(response, 6)]
    assert names[0] == "hello"
    assert {"top", "status"} <= {*names}
    connection.close()


def test_there_is_an_icon(machine: Any, url: str) -> None:
    address = machine.start("dynamo", "console", "--no-browser").prints(r"console: (http://\S+)/#token=\S+")[1]
    for where in (url, address):
        connection, response = get(where, "/favicon.ico")
        assert (response.status, response.headers["Content-Type"]) == (200, "image/svg+xml")
        assert response.read().startswith(b"<svg ")
        connection.close()


def test_the_console_is_off_by_a_setting(machine: Any) -> None:
    url = machine.start("dynamo", "serve", *FLEET, "--Frontend.console=false", cwd=ROOT).ready()
    connection, response = get(url, "/", Accept="text/html")
    assert b"/console/app.js" not in response.read()
    connection.close()
    connection, response = get(url, "/v1/console")
    assert response.status == 404
    connection.close()


def test_a_question_is_followed(machine: Any, url: str) -> None:
    connection = machine.unix()
    connection.request("GET", "/v1/top?follow=0.2")
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    begun = time.monotonic()
    looks = [data for _, data in events(response, 4)]
    assert 0.5 < time.monotonic() - begun < 10
    assert sorted({look["at"] for look in looks}) == [look["at"] for look in looks]
    connection.close()
    for wrong in ("soon", "0", "-1", "nan", "inf", "1e9"):
        status, error = machine.raw("GET", f"/v1/top?follow={wrong}")
        assert status == 400, wrong
        assert "seconds from 0.1 to 3600" in error["error"]["hint"]


def test_without_an_open_console_the_frontend_rests(machine: Any, url: str) -> None:
    """The connection over which it follows the daemon ends; tests/features/console/test_routes.py counts questions."""
    pid = next(row["pid"] for row in machine.ps() if "ingress" in row["process"])
    before = _sockets(pid)
    connection, response = get(url, "/v1/console/events")
    events(response, 6)
    opened = _sockets(pid) - before
    assert len(opened) >= 2, "the browser's and the daemon's"
    connection.close()
    machine.until(lambda: not (_sockets(pid) & opened))
    connection, response = get(url, "/v1/console/events")
    assert "top" in {name for name, _ in events(response, 6)}
    connection.close()


def _sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(file.readlink()))
    return {name for name in found if name.startswith("socket:")}


def test_the_command_needs_its_token_and_ends(machine: Any, url: str) -> None:
    command = machine.start("dynamo", "console", "--no-browser")
    address = command.prints(r"console: (http://\S+)/#token=(\S+)")
    where, token = address[1], address[2]
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {token}"}, 200),
        ({"Authorization": f"Bearer {token}", "Origin": "http://example.org"}, 403),
    ):
        connection, response = get(where, "/v1/console", **headers)
        assert response.status == status, headers
        body = json.loads(response.read())
        connection.close()
        if status == 200:
            assert (body["admin"], body["serves_models"]) == (True, False)
    connection, response = get(where, "/v1/console/events", Authorization=f"Bearer {token}")
    assert "top" in {name for name, _ in events(response, 6)}
    assert command.end().code == 0
    connection.close()


def test_the_command_without_a_daemon_and_a_taken_port(machine: Any) -> None:
    result = machine.run("dynamo", "console", "--no-browser")
    assert result.code == 3
    assert "no daemon is running" in result.err


def test_a_taken_port_is_named(machine: Any, url: str) -> None:
    port = url.rpartition(":")[2]
    result = machine.run("dynamo", "console", "--no-browser", "--port", port)
    assert result.code != 0
    assert f"--port {port}" in result.err
