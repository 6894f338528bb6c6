"""Keys with limits by the real command: a file that changes while clients ask."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def ask(url: str, key: str) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        body = json.dumps({"model": "echo", "prompt": "say it", "max_tokens": 2})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_a_file_of_keys_is_read_again(machine: Any) -> None:
    file = machine.folder / "keys.yaml"
    wrong = machine.run("dynamo-run", "in=http", "out=echo_full", "--http-port", 0, "--client-keys-file", file)
    assert "cannot read the file of keys" in wrong.mistake()
    file.write_text("- {name: a, key: secret-one, rpm: 2}\n")
    words = ("in=http", "out=echo_full", "--model-name", "echo", "--http-port", 0, "--client-keys-file", "keys.yaml")
    command = machine.start("dynamo-run", *words)
    url = command.ready()
    assert ask(url, "other")[0] == 401
    machine.until(lambda: ask(url, "secret-one")[0] == 200)
    machine.until(lambda: ask(url, "secret-one")[0] == 429)
    status, headers = ask(url, "secret-one")
    assert (status, headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == (429, "2", "0")
    assert 1 <= int(headers["retry-after"]) <= 30
    file.write_text("- {name: a, key: secret-two}\n")
    machine.until(lambda: ask(url, "secret-two")[0] == 200, 5)
    assert ask(url, "secret-one")[0] == 401
    assert all(ask(url, "secret-two")[0] == 200 for _ in range(5))
    file.write_text("- {name: a")
    machine.until(lambda: "the keys stay as they were" in command.err, 5)
    assert ask(url, "secret-two")[0] == 200
    _, text = machine.ask(url, "/metrics")
    assert 'dynamo_frontend_key_refused_total{key="a",limit="requests"}' in text
    assert "secret" not in text + command.err
    command.end()
