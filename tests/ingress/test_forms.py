"""What requests look like besides their JSON: kinds and encodings of bodies, sizes of headers, pages of browsers."""

import gzip
import json

import pytest

PATH = "/v1/chat/completions"
CHAT = b'{"messages":[{"role":"user","content":"hi"}]}'


async def refused(client, status: int, code: str) -> tuple[str, dict[str, str]]:
    got, headers = await client.head()
    error = json.loads(await client.body(headers))["error"]
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert headers["server"] == "dynamod"
    assert len(headers["x-request-id"]) == 36
    return error["message"], headers


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
async def test_a_body_that_is_not_said_to_be_json(server, connect, kind) -> None:
    client = await connect(server)
    client.post(PATH, CHAT, content_type=kind)
    message, _ = await refused(client, 415, "unsupported_media_type")
    assert "Content-Type: application/json" in message
    assert kind in message


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;x"])
async def test_json_in_all_its_spellings(server, connect, kind) -> None:
    client = await connect(server)
    client.post(PATH, CHAT, content_type=kind)
    assert (await client.head())[0] == 200


@pytest.mark.parametrize("encoding", ["br", "zstd", "rot13", "gzip, gzip"])
async def test_an_encoding_that_nobody_reads(server, connect, encoding) -> None:
    client = await connect(server)
    client.post(PATH, CHAT, content_encoding=encoding)
    _, headers = await refused(client, 415, "unsupported_media_type")
    assert headers["accept-encoding"] == "gzip, deflate, identity"


async def test_a_compressed_body_that_is_cut_short(server, connect) -> None:
    client = await connect(server)
    client.post(PATH, gzip.compress(CHAT)[:-12], content_encoding="gzip")
    message, _ = await refused(client, 400, "invalid_json")
    assert message == "the body is not valid JSON: it ends too early"


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "url_too_long"),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 431, "header_too_large"),
        (b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"A: a\r\n" * 5000 + b"\r\n", 431, "header_too_large"),
        (b"GET /live HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400, "bad_http"),
    ],
)
async def test_heads_that_cannot_be_read(server, connect, head, status, code) -> None:
    client = await connect(server)
    client.writer.write(head)
    await refused(client, status, code)


async def test_a_large_token_in_a_header_is_read(serve, connect) -> None:
    client = await connect(await serve(api_keys="k" * 20_000))
    client.post(PATH, CHAT, authorization="Bearer " + "k" * 20_000)
    assert (await client.head())[0] == 200


def asks(client, origin: str = "https://example.org") -> None:
    lines = [f"OPTIONS {PATH} HTTP/1.1", "Host: x", f"Origin: {origin}", "Access-Control-Request-Method: POST"]
    client.writer.write("\r\n".join([*lines, "Access-Control-Request-Headers: authorization", "", ""]).encode())


async def test_pages_of_browsers_may_not_ask_by_default(server, connect) -> None:
    client = await connect(server)
    asks(client)
    _, headers = await refused(client, 405, "method_not_allowed")
    assert not any(name.startswith("access-control") for name in headers)
    client.post(PATH, CHAT, origin="https://example.org")
    assert "access-control-allow-origin" not in (await client.head())[1]


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        ("https://example.org, http://localhost:3000", "https://example.org", "https://example.org"),
        ('["https://example.org"]', "https://example.org", "https://example.org"),
        (["https://example.org"], "https://example.org", "https://example.org"),
        (["*"], "null", "*"),
        ("*", "https://example.org", "*"),
        ("https://example.org", "https://other", None),
        ("https://example.org", "https://example.org:8443", None),
    ],
)
async def test_pages_of_allowed_origins_may_ask(serve, connect, allowed, origin, answer) -> None:
    server = await serve(allowed_origins=allowed, api_keys="k")
    client = await connect(server)
    asks(client, origin)
    status, headers = await client.head()
    assert (status, headers.get("access-control-allow-origin")) == (204 if answer else 401, answer)
    if answer:
        assert headers["access-control-allow-methods"] == "GET, POST, HEAD, DELETE"
        assert headers["access-control-allow-headers"] == "authorization"
    for body, key in ((CHAT, "k"), (CHAT[:-1] + b',"stream":true}', "k"), (CHAT, "wrong")):
        client = await connect(server)
        client.post(PATH, body, origin=origin, authorization=f"Bearer {key}")
        status, headers = await client.head()
        assert status == (200 if key == "k" else 401)
        assert headers.get("access-control-allow-origin") == answer
        assert headers.get("vary") == ("Origin" if answer not in (None, "*") else None)
        assert headers["server"] == "dynamod"


async def test_what_shows_the_state_may_ask_for_a_key_too(serve, connect) -> None:
    for guard, status in ((False, 200), (True, 401)):
        server = await serve(api_keys="k", guard_status=guard)
        for path in ("/health", "/metrics", "/openapi.json", "/docs", "/health/"):
            client = await connect(server)
            client.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await client.head())[0] == status
            client = await connect(server)
            client.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n".encode())
            assert (await client.head())[0] == 200
        client = await connect(server)
        client.writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.head())[0] == 200
