"""What a person and a client find at the address of the server, and what a page of a foreign origin is told."""

import http.client
import json
from typing import Any

import pytest

BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


def ask(threaded: Any, method: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_a_page_says_what_this_is(threaded: Any) -> None:
    answer, body = ask(threaded, "GET", "/", Host="example.org:81", Accept=BROWSER)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert b"http://example.org:81/v1" in body
    assert b"href=docs" in body
    answer, body = ask(threaded, "GET", "/", Host='<script>"', Accept=BROWSER)
    assert b"<script>" not in body


def test_others_get_links(threaded: Any) -> None:
    answer, body = ask(threaded, "GET", "/", Accept="*/*")
    assert answer.headers["Content-Type"].startswith("application/json")
    for link in json.loads(body)["links"].values():
        answer, _ = ask(threaded, "GET", link)
        assert answer.status in (200, 503), link


def test_browsers_find_an_icon(threaded: Any) -> None:
    answer, body = ask(threaded, "GET", "/favicon.ico")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/svg+xml")
    assert body.startswith(b"<svg ")
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'"


@pytest.mark.parametrize("path", ["/", "/version", "/ping", "/favicon.ico"])
def test_head_is_answered(threaded: Any, path: str) -> None:
    answer, body = ask(threaded, "HEAD", path)
    assert (answer.status, body) == (200, b"")


def test_the_version(threaded: Any) -> None:
    _, body = ask(threaded, "GET", "/version")
    assert json.loads(body)["version"]


def test_a_page_of_a_foreign_origin_is_told_the_setting(threaded: Any) -> None:
    asked = {"Origin": "https://example.org", "Access_Control_Request_Method": "POST"}
    answer, body = ask(threaded, "OPTIONS", "/v1/chat/completions", **asked)
    assert answer.status == 405
    message = json.loads(body)["error"]["message"]
    assert "allowed_origins" in message
    assert "https://example.org" in message
    _, body = ask(threaded, "OPTIONS", "/v1/chat/completions")
    assert b"allowed_origins" not in body


def test_a_key_of_logit_bias_that_is_no_token_id_is_named(threaded: Any) -> None:
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    body = {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": 1, "foo": 0}}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    error = json.loads(connection.getresponse().read())["error"]
    connection.close()
    assert error["param"] == "logit_bias"
    assert "'foo'" in error["message"]
