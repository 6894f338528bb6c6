"""Keys with limits: their file, its changes, and what clients see of them."""

import asyncio
import contextlib
import json
import logging
import os
import re
from collections import Counter
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dynamod.http import keys as module
from dynamod.http.answer import json_response
from dynamod.http.context import Caller, RequestContext
from dynamod.http.cors import origin_headers
from dynamod.http.key_file import KeyFile
from dynamod.http.keys import Digests, Keys, Unauthorized
from dynamod.http.routes import Route
from dynamod.http.server import Server
from dynamod.http.settings import FrontendSettings
from dynamod.message.errors import UserError
from tests.ports import listener

TEXT = f"""
- name: team-a
  key: secret-a
  rpm: 3
  tpm: 1000
  models: [org/model]
- name: team-b
  sha256: {sha256(b"secret-b").hexdigest()}
  inflight: 1
  priority: 5
"""


def write(file: Path, text: str) -> None:
    """As editors and mounted volumes do: the new file takes the place of the old one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(TEXT)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_who_it_is(file: Path) -> None:
    keys = Keys(FrontendSettings(client_keys_file=str(file), api_keys="plain"))
    found = keys.check(bearer("secret-a"))[1]
    assert found is not None
    assert (found.key.name, found.may_ask("org/model"), found.may_ask("other")) == ("team-a", True, False)
    other = keys.check({"x-api-key": "secret-b"})[1]
    assert other is not None
    assert (other.key.priority, other.may_ask("any")) == (5, True)
    assert keys.check(bearer("plain"))[1] is None, "without limits"
    for headers in (bearer("secret-c"), bearer(""), {}, {"x-api-key": "secret-"}):
        with pytest.raises(Unauthorized):
            keys.check(headers)


def test_names_of_keys_are_their_own_and_tell_no_secret(file: Path) -> None:
    keys = Keys(FrontendSettings(client_keys_file=str(file), api_keys="plain,other"))
    names = {key: keys.check(bearer(key))[0] for key in ("secret-a", "secret-b", "plain", "other")}
    assert len(set(names.values())) == 4
    for key, name in names.items():
        assert key not in name
        assert sha256(key.encode()).hexdigest()[:32] not in name
        assert keys.client(name) is keys.check(bearer(key))[1]
    later = Keys(FrontendSettings(api_keys="other"))
    assert later.client(names["other"]) is None
    for name in (names["plain"], names["secret-a"], "", "client:", "key:"):
        with pytest.raises(Unauthorized, match="no more"):
            later.client(name)
    free = Keys(FrontendSettings())
    assert free.check(bearer("plain")) == ("", None)
    assert free.client("") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no list of keys"),
        ("{}", "holds no list of keys"),
        ("- name: [secret", "is no YAML or JSON in line 1"),
        ("- {name: a}", r"\[0\] \(a\) needs key or sha256"),
        ("- {name: a, key: x, sha256: '" + "0" * 64 + "'}", "needs key or sha256"),
        ("- {name: a, key: x, rpm: 0}", r"\[0\]\.rpm"),
        ("- {name: a, key: x, rps: 3}", "rps.*known: .*rpm"),
        ("- {name: a, key: ' secret'}", r"\[0\]\.key.*white space"),
        ("- {name: a, key: 'secret\\n'}".replace("'", '"'), r"\[0\]\.key.*white space"),
        ('- {name: a, key: "secret\\uD800"}', r"\[0\]\.key"),
        ("- {name: a, sha256: secret}", r"\[0\]\.sha256"),
        ("- {name: a, key: x}\n- {name: b, key: y,\n rpm: 3, rpm: 1000}", r"line 2: the member 'rpm' is written twice"),
        ('[\n\t{"name": "a", "key": "x", "key": "y"}]', "the member 'key' is written twice"),
        ("- {name: a, key: x}\n- {name: a, key: y}", r"\[1\]\.name is there already"),
        ("- {name: a, key: x}\n- {name: b, key: x}", r"\[1\]\.key is there already"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        KeyFile(str(file)).read()
    line = raised.value.line()
    assert re.search(says, line), line
    assert "secret" not in line, "a log must not show keys"
    with pytest.raises(UserError, match="cannot read"):
        KeyFile(str(tmp_path / "missing")).read()


def test_json_does_too(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": "a", "key": "x", "rpm": 5}]))
    [key] = KeyFile(str(file)).read()
    assert (key.name, key.rpm, key.tpm) == ("a", 5, None)


def known(keys: Keys, *asked: str) -> list[str]:
    """Those keys that are taken."""
    found = []
    for key in asked or ("secret-a", "secret-z"):
        with contextlib.suppress(Unauthorized):
            keys.check(bearer(key))
            found.append(key)
    return found


def test_digests_with_the_same_start() -> None:
    one, two, other = b"12345678a", b"12345678b", b"12345678c"
    found = Digests([(one, 1), (two, 2)])
    assert [found.find(digest) for digest in (one, two, other, b"")] == [1, 2, None, None]


def test_keys_by_digest_file_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.key").write_text("secret-file\n")
    (tmp_path / "two.key").write_text(f"sha256:{sha256(b'secret-digest').hexdigest().upper()}\n")
    monkeypatch.setenv("TEAM_KEY", "secret-variable")
    file = tmp_path / "keys.yaml"
    digest = sha256(b"secret-list").hexdigest()
    file.write_text(
        f"- {{name: a, key: '${{file:one.key}}', admin: true}}\n"
        f"- {{name: b, key: ['${{env:TEAM_KEY}}', 'sha256:{digest}', '${{file:{tmp_path}/two.key}}']}}\n"
    )
    keys = Keys(FrontendSettings(client_keys_file=str(file)))
    names = {key: keys.check(bearer(f"secret-{key}"))[0] for key in ("file", "variable", "list", "digest")}
    assert names == {"file": "client:a", "variable": "client:b", "list": "client:b", "digest": "client:b"}
    assert known(keys, digest, f"sha256:{digest}", "${env:TEAM_KEY}", "${file:one.key}") == []
    assert "secret" not in repr([client.key for client in keys.clients.values()]), "no key is kept"
    assert [Caller(f"client:{name}", client).sees for name, client in keys.clients.items()] == [None, "client:b"]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("'${file:missing}'", r"\[0\]\.key \(a\): the file .*missing: \[Errno 2\]"),
        ("'${file:empty}'", r"\[0\]\.key \(a\): the file .*empty is empty"),
        ("'${file:open}'", "every user may write the key file"),
        ("'${file:two}'", "characters that cannot be sent"),
        ("'${env:NOT_THERE}'", r"\[0\]\.key \(a\): the environment variable NOT_THERE is not set"),
        ("'${vault:x}'", r"unknown reference; write the key, sha256:HEX, \$\{file:PATH\} or"),
        ("'${env:HOME'", "unknown reference"),
        ("'sha256:abc'", r"no digest of 64 hex digits after sha256:; printf"),
        ("[]", "needs key or sha256"),
        ("[x, '']", "needs key or sha256"),
        ("[secret, secret]", r"\[0\]\.key is there already"),
        ("x, admin: true, models: [m]", "an admin sees all models; leave models out"),
        ("x, admin: perhaps", r"\[0\]\.admin"),
    ],
)
def test_references_that_are_wrong(tmp_path: Path, key: str, says: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "open").write_text("secret")
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "two").write_text("secret\nsecret\n")
    file = tmp_path / "keys.yaml"
    file.write_text(f"- {{name: a, key: {key}}}")
    with pytest.raises(UserError) as raised:
        KeyFile(str(file)).read()
    line = raised.value.line()
    assert re.search(says, line), line
    assert "secret" not in line


async def test_a_file_that_the_file_of_keys_names_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.02)
    file, key = tmp_path / "keys.yaml", tmp_path / "a.key"
    file.write_text("- {name: a, key: '${file:a.key}'}")
    file.chmod(0o600)
    key.write_text("secret-a\n")
    keys = Keys(FrontendSettings(client_keys_file=str(file)))
    keys.watch()
    try:
        assert f"every user may read the key file {key}" in caplog.text
        assert str(file) not in caplog.text
        write(key, "")
        async with asyncio.timeout(10):
            while "the keys stay as they were" not in caplog.text:  # noqa: ASYNC110 - a file is read in a thread
                await asyncio.sleep(0.01)
        assert known(keys) == ["secret-a"]
        write(key, "secret-z\n")
        async with asyncio.timeout(10):
            while known(keys) != ["secret-z"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        keys.close()


async def test_a_change_that_keeps_size_and_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cp -p` and `rsync` do over a file that is there."""
    monkeypatch.setattr(module, "LOOK", 0.02)
    keys, before = Keys(FrontendSettings(client_keys_file=str(file))), file.stat()
    keys.watch()
    try:
        file.write_text(TEXT.replace("secret-a", "secret-z"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        for _ in range(500):
            if "secret-z" in known(keys):
                break
            await asyncio.sleep(0.01)
        assert known(keys) == ["secret-z"]
    finally:
        keys.close()


async def things(context: RequestContext) -> web.Response:
    await asyncio.sleep(1.0 if context.request.query_string else 0)
    return json_response({"priority": context.caller.priority})


@pytest.fixture
async def server(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "LOOK", 0.02)
    routes = [Route("POST", "/v1/things", things, guarded=True), Route("GET", "/v1/things", things, guarded=True)]
    routes += [Route(method, "/v1/files", things, guarded=True, counted=True) for method in ("GET", "DELETE")]
    made = Server(FrontendSettings(host="127.0.0.1", port=0, client_keys_file=str(file)), routes, dict)
    await made.start(listener(), spawn=asyncio.create_task)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{made.port}") as session:

        async def ask(key: str, method: str = "POST", path: str = "/v1/things") -> tuple[int, Any, Any]:
            async with session.request(method, path, headers=bearer(key)) as answer:
                return answer.status, await answer.json(), answer.headers

        async def metrics() -> str:
            async with session.get("/metrics") as answer:
                return await answer.text()

        ask.metrics = metrics  # type: ignore[attr-defined]
        yield ask
    await made.stop(0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - a file is read in a thread
            await asyncio.sleep(0.02)


async def test_all_requests_about_files_count(server: Any) -> None:
    for method in ("GET", "DELETE", "GET"):
        assert (await server("secret-a", method, "/v1/files"))[0] == 200
    for method in ("GET", "DELETE", "POST"):
        assert (await server("secret-a", method, "/v1/files"))[0] == 429
    assert (await server("secret-a", "GET"))[0] == 200


async def test_requests_per_minute(server: Any) -> None:
    left = []
    for _ in range(3):
        status, _, headers = await server("secret-a")
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "3"
        left.append(headers["x-ratelimit-remaining-requests"])
    assert left == ["2", "1", "0"]
    status, body, headers = await server("secret-a")
    assert (status, body["error"]["code"], body["error"]["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert "'team-a' allows 3 requests per minute" in body["error"]["message"]
    assert 1 <= int(headers["Retry-After"]) <= 20
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"][:-1].replace(".", "").replace("m", "").isdigit()
    assert headers["x-ratelimit-remaining-tokens"] == headers["x-ratelimit-limit-tokens"] == "1000"
    assert (await server("secret-a", "GET"))[0] == 200, "only what is posted counts"
    status, body, headers = await server("secret-b")
    assert (status, body, "x-ratelimit-limit-requests" in headers) == (200, {"priority": 5}, False)
    text = await server.metrics()
    assert 'dynamo_frontend_key_requests_total{key="team-a",status="200"} 3.0' in text
    assert 'dynamo_frontend_key_requests_total{key="team-a",status="429"} 1.0' in text
    assert 'dynamo_frontend_key_refused_total{key="team-a",limit="requests"} 1.0' in text
    assert "secret" not in text


async def test_requests_at_a_time(server: Any) -> None:
    first = asyncio.create_task(server("secret-b", path="/v1/things?slow"))

    async def begun() -> bool:
        return 'key_inflight_requests{key="team-b"} 1.0' in await server.metrics()

    await until(begun)
    status, body, headers = await server("secret-b")
    assert (status, headers["Retry-After"]) == (429, "1")
    assert "1 requests at a time" in body["error"]["message"]
    assert (await first)[0] == 200
    assert (await server("secret-b"))[0] == 200


async def test_a_changed_file_counts_and_a_wrong_one_does_not(
    server: Any, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await server("secret-a"))[0] == 200
    write(file, "- {name: team-a, key: new-a, rpm: 6}")

    async def known() -> bool:
        return bool((await server("new-a", "GET"))[0] == 200)

    await until(known)
    assert (await server("secret-a"))[0] == 401
    _, _, headers = await server("new-a")
    assert headers["x-ratelimit-limit-requests"] == "6"
    assert headers["x-ratelimit-remaining-requests"] == "3", "a third was used, and one more"
    with caplog.at_level(logging.ERROR):
        write(file, "- {name: team-a")
        await asyncio.sleep(0.2)
        write(file, "- {name: team-a ")
        await asyncio.sleep(0.2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "once"
    assert "the keys stay as they were" in said[0]
    assert (await server("new-a"))[0] == 200
    file.unlink()
    await asyncio.sleep(0.1)
    assert (await server("new-a"))[0] == 200


async def test_a_rotation_under_load_refuses_no_request(server: Any, file: Path) -> None:
    """First the new key beside the old one, then clients change over, then the old one goes."""
    counts, key, stop = Counter[int](), ["old"], asyncio.Event()
    write(file, "- {name: a, key: old}")

    async def taken(one: str) -> bool:
        return bool((await server(one, "GET"))[0] == 200)

    async def client() -> None:
        while not stop.is_set():
            counts[(await server(key[0]))[0]] += 1

    await until(partial(taken, "old"))
    clients = [asyncio.create_task(client()) for _ in range(8)]
    for number in range(4):
        old, key_ = key[0], f"new-{number}"
        write(file, f"- {{name: a, key: [{old}, {key_}]}}")
        await until(partial(taken, key_))
        key[0] = key_
        await asyncio.sleep(0.1)  # requests with the old key are through
        write(file, f"- {{name: a, key: {key_}}}")

        async def gone(old: str = old) -> bool:
            return not await taken(old)

        await until(gone)
    stop.set()
    await asyncio.gather(*clients)
    assert counts.keys() == {200}
    assert counts[200] > 50


def test_pages_in_browsers_may_read_what_is_left(file: Path) -> None:
    _, client = Keys(FrontendSettings(client_keys_file=str(file))).check(bearer("secret-a"))
    assert client is not None
    exposed = origin_headers(["http://localhost"], "http://localhost")["Access-Control-Expose-Headers"]
    assert {*client.headers(0.0)} <= {*exposed.split(", ")}
