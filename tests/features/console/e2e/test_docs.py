"""The forms of /docs in a real browser: requests with and without a body, a stream, an error, texts that stay texts."""

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.conftest import ROOT

ECHO = ("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port=0")


def opened(page: Any, method: str, path: str) -> Any:
    place = page.page.locator(f'.try[data-method="{method}"][data-path="{path}"]')
    place.get_by_text("Try", exact=True).click()
    return place


def test_a_request_is_tried(machine: Any, browse: Callable[..., Any]) -> None:
    url = machine.start(*ECHO, "--api-key=secret-key-0", cwd=ROOT).ready()
    page = browse()
    page.page.goto(f"{url}/docs")
    models = opened(page, "GET", "/v1/models")
    shown = models.get_by_role("status")
    models.get_by_role("button", name="Send").click()
    machine.until(lambda: shown.inner_text().startswith("401"))
    page.page.get_by_label("Key for requests of this page").fill("secret-key-0")
    models.get_by_role("button", name="Send").click()
    machine.until(lambda: shown.inner_text().startswith("200"))
    assert json.loads(shown.inner_text().partition("\n\n")[2])["data"][0]["id"] == "sample"

    chat = opened(page, "POST", "/v1/chat/completions")
    shown, body = chat.get_by_role("status"), chat.get_by_label("body")
    said = "<img src=x onerror=window.hostile=1>"
    asked = json.loads(body.input_value()) | {"messages": [{"role": "user", "content": said}], "max_tokens": 60}
    for stream in (False, True):
        body.fill(json.dumps({**asked, "stream": stream}))
        chat.get_by_role("button", name="Send").click()
        machine.until(lambda: chat.get_by_role("button", name="Send").count() == 1 and "200" in shown.inner_text())
        assert ("data: [DONE]" in shown.inner_text()) == stream
        assert ("<img src=x" in shown.inner_text()) != stream, "in pieces"
    body.fill("{")
    chat.get_by_role("button", name="Send").click()
    machine.until(lambda: shown.inner_text().startswith("400"))

    one = opened(page, "GET", "/v1/models/{id}")
    one.get_by_label("id").fill("sample")
    one.get_by_role("button", name="Send").click()
    machine.until(lambda: one.get_by_role("status").inner_text().startswith("200"))
    assert not page.page.evaluate("window.hostile")
    assert page.find() == []
    page.shoot("docs-light")
    refused = [text for text in page.errors if "401" not in text and "400" not in text]
    assert refused == []
