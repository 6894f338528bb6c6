"""Keys with limits in front of the real stack: tokens, models, priorities."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

KEYS = [
    {"name": "small", "key": "s", "tpm": 60},
    {"name": "narrow", "key": "n", "models": ["sample"], "priority": 7},
    {"name": "free", "key": "f"},
    {"name": "none", "key": "x", "models": ["gone"]},
]
USER = [{"role": "user", "content": "one two three"}]


@pytest.fixture
async def url(house, serve, words, tmp_path: Path) -> str:
    await house.start()
    await house.worker(words.EchoCore, "sample")
    await house.worker(words.EchoFull, "text")
    async with asyncio.timeout(20):
        while len(house.processor.cards) < 2:  # noqa: ASYNC110 - loaded in a thread
            await asyncio.sleep(0.01)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KEYS))
    made: str = await serve(client_keys_file=str(file))
    return made


def client(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def test_tokens_of_prompts_and_answers_count(url: str) -> None:
    async with client(url, "s") as asking:
        raw = await asking.chat.completions.with_raw_response.create(model="sample", messages=USER)
        assert raw.headers["x-ratelimit-limit-tokens"] == "60"
        assert raw.headers["x-ratelimit-remaining-tokens"] == "60", "what it uses is known at its end"
        usage = raw.parse().usage
        assert usage is not None
        raw = await asking.chat.completions.with_raw_response.create(
            model="sample", messages=USER, stream=True, max_tokens=100
        )
        left = int(raw.headers["x-ratelimit-remaining-tokens"])
        assert 60 - usage.total_tokens <= left < 60, "a second fills in one of them again"
        async for _ in raw.parse():
            pass

        async def until_refused() -> None:
            for _ in range(5):
                await asking.chat.completions.create(model="sample", messages=USER)

        with pytest.raises(openai.RateLimitError) as refused:
            await until_refused()
        assert "allows 60 tokens per minute" in str(refused.value)
        assert refused.value.code == "rate_limit_exceeded"
        headers = refused.value.response.headers
        assert headers["x-ratelimit-remaining-tokens"] == "0"
        assert int(headers["Retry-After"]) >= 1
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    [prompt] = [line for line in text.splitlines() if 'key_tokens_total{key="small",type="prompt"}' in line]
    assert float(prompt.split()[-1]) >= 2 * usage.prompt_tokens
    async with aiohttp.ClientSession() as session:
        body = {"model": "sample", "messages": USER, "max_tokens": 1}
        async with session.post(f"{url}/v1/messages", json=body, headers={"x-api-key": "s"}) as answer:
            value = await answer.json()
    assert (answer.status, value["error"]["type"]) == (429, "rate_limit_error"), "in Anthropic's form there"


async def test_models_of_a_key(url: str) -> None:
    async with client(url, "n") as asking:
        assert [model.id for model in (await asking.models.list()).data] == ["sample"]
        assert (await asking.models.retrieve("sample")).id == "sample"
        with pytest.raises(openai.NotFoundError):
            await asking.models.retrieve("text")
        answer = await asking.chat.completions.create(model="", messages=USER, max_tokens=1)
        assert answer.model == "sample", "it is the only one for this key"
        with pytest.raises(openai.NotFoundError, match="`text` does not exist; served: sample"):
            await asking.chat.completions.create(model="text", messages=USER)
    async with client(url, "f") as asking:
        assert len((await asking.models.list()).data) == 2
        assert (await asking.chat.completions.create(model="text", messages=USER)).model == "text"
    async with client(url, "x") as asking:
        assert (await asking.models.list()).data == []
        with pytest.raises(openai.NotFoundError, match="allows no model"):
            await asking.chat.completions.create(model="sample", messages=USER)


async def test_the_priority_of_a_key_is_that_of_its_requests(url: str, house, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    kind = type(house.processor.requests._dispatcher)
    acquire = kind.acquire

    def watched(*arguments: Any, **fields: Any) -> Any:
        seen.append(fields["priority"])
        return acquire(*arguments, **fields)

    monkeypatch.setattr(kind, "acquire", watched)
    hint = {"nvext": {"agent_hints": {"priority": 99}}}
    for key in ("n", "f"):
        async with client(url, key) as asking:
            await asking.chat.completions.create(model="sample", messages=USER, max_tokens=1, extra_body=hint)
    assert seen == [7, 99]
