"""What a server says of a request's key reaches no client, and prompts and keys go to no other server."""

from typing import Any

import pytest

from dynamod.actor import System
from dynamod.engine.openai import upstream
from tests.engine.openai.test_openai import house, refused_start

KEY = "sk-the-operators-own-key-0123456789"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("THEIR_KEY", KEY)
    return KEY


@pytest.mark.parametrize("place", [0, 60, 285])
@pytest.mark.parametrize("form", ["400", "422", "413", "401", "404", "429", "500", "event", "none", "typed", "html"])
async def test_no_part_of_a_key_is_in_an_error(words: Any, server: Any, key: str, form: str, place: int) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, f"repeats {form} {place}", api_key_env="THEIR_KEY")
        answer = await worker.ask(words.chat("hi")).wait(10)
    said = repr(answer.deltas)
    assert "Failed" in said
    assert key[:6] not in said
    assert key[-6:] not in said
    if not place:
        assert "***" in said


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(words: Any, server: Any, key: str, status: int) -> None:
    async with System() as system:
        worker = await house(words, system, server.url, f"redirects {status}", api_key_env="THEIR_KEY")
        answer = await worker.ask(words.chat("hi")).wait(10)
    said = repr(answer.deltas)
    assert f"answers {status}: it redirects to http://127.0.0.1:1/" in said
    assert "set `url`" in said
    assert key not in said


async def test_a_list_of_models_without_an_end(words: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MODELS_BYTES", 3 << 20)
    server.is_.endless = True
    assert "answers with more than 3 MB" in await refused_start(words, server.url)
