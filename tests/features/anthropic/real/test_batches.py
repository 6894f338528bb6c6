"""Anthropic's SDK: batches of messages, on files of the feature `batches`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.later import Later

anthropic = Later("anthropic")


@pytest.fixture
async def client(house: Any, serve: Any, words: Any, until: Any, tmp_path: Path) -> AsyncIterator[Any]:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    url = await serve(batches_dir=str(tmp_path / "batches"))
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
        yield client


def asked(name: str, **params: Any) -> Any:
    body = {"model": "sample", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": name, "params": body | params}


async def ended(client: Any, name: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            found = await client.messages.batches.retrieve(name)
            if found.processing_status == "ended":
                return found
            await asyncio.sleep(0.05)


async def test_a_batch_to_its_results(client: Any) -> None:
    batch = await client.messages.batches.create(requests=[asked("a"), asked("b", model="nope"), asked("c")])
    assert batch.type == "message_batch"
    over = await ended(client, batch.id)
    assert (over.request_counts.succeeded, over.request_counts.errored) == (2, 1)
    assert over.ended_at is not None
    results = {one.custom_id: one.result async for one in await client.messages.batches.results(batch.id)}
    assert results["a"].message.content == results["c"].message.content
    assert results["a"].message.type == "message"
    assert (results["b"].type, results["b"].error.error.type) == ("errored", "not_found_error")
    listed = [one.id async for one in client.messages.batches.list()]
    assert listed == [batch.id]
    with pytest.raises(anthropic.ConflictError):
        await client.messages.batches.cancel(batch.id)


async def test_a_batch_that_has_ended_is_deleted_with_its_answers(client: Any, tmp_path: Path) -> None:
    kept = await client.messages.batches.create(requests=[asked("a")])
    batch = await client.messages.batches.create(requests=[asked("a")])
    await ended(client, kept.id)
    await ended(client, batch.id)
    deleted = await client.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.delete(batch.id)
    assert [one.id async for one in client.messages.batches.list()] == [kept.id]
    assert [one async for one in await client.messages.batches.results(kept.id)]
    files = [*(tmp_path / "batches").rglob("*")]
    assert sum(path.suffix == ".data" for path in files) == 2, "the input and the answers of the batch that stays"
    assert not [path for path in files if batch.id in path.name]


async def test_a_batch_in_work_is_not_deleted(client: Any, house: Any) -> None:
    batch = await client.messages.batches.create(requests=[asked(str(n), max_tokens=2000) for n in range(200)])
    with pytest.raises(anthropic.ConflictError, match="cancel the batch"):
        await client.messages.batches.delete(batch.id)
    await client.messages.batches.cancel(batch.id)
    await ended(client, batch.id)
    await client.messages.batches.delete(batch.id)


async def test_what_is_wrong_is_refused(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        await client.messages.batches.create(requests=[asked("a"), asked("a")])
    with pytest.raises(anthropic.BadRequestError, match="requests"):
        await client.messages.batches.create(requests=[])
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve("batch_nope")


async def test_without_a_folder_there_are_none(house: Any, serve: Any, words: Any, until: Any) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    async with anthropic.AsyncAnthropic(base_url=await serve(), api_key="x", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="batches_dir"):
            await client.messages.batches.create(requests=[asked("a")])
