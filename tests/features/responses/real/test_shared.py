"""Responses in a folder: several frontends have them, and those that start later."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import openai
import pytest

from dynamod.features.responses.messages import InputItem
from dynamod.features.responses.store import BEHIND, FILE, ResponseStore, StoredResponse
from dynamod.message.bounded import Bounded
from dynamod.message.errors import UserError
from dynamod.message.openai import Message
from dynamod.observe.bounded import holdings

RAW = {"nvext": {"use_raw_prompt": True}}


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def stored(size: int, item: str = "") -> StoredResponse:
    answer = (InputItem(id=item, role="assistant", content="x"),) if item else ()
    return StoredResponse(b"x" * size, (Message("user", "y"),), (), answer)


async def test_frontends_go_on_from_each_other(house: Any, serve: Any, words: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    folder = tmp_path / "kept"
    one, two = [client_of(await serve(responses_dir=str(folder))) for _ in range(2)]
    alone = client_of(await serve())
    async with one, two, alone:
        first = await one.responses.create(model="sample", input="What is it?")
        second = await two.responses.create(model="sample", input="And now?", previous_response_id=first.id)
        assert (await one.responses.retrieve(second.id)).output_text == second.output_text
        listed = [item.type async for item in two.responses.input_items.list(second.id, order="asc")]
        assert listed == ["message", "message", "message"]
        reference: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "x"}]
        assert (await two.responses.create(model="sample", input=reference)).status == "completed"
        async with client_of(await serve(responses_dir=str(folder))) as later:
            assert (await later.responses.retrieve(first.id)).id == first.id
            third = await later.responses.create(model="sample", input="So?", previous_response_id=second.id)
        streamed = await two.responses.create(model="sample", input="x", previous_response_id=third.id, stream=True)
        (name,) = [event.response.id async for event in streamed if event.type == "response.completed"]
        assert (await two.responses.retrieve(name)).id == name, "at once"
        with pytest.raises(openai.NotFoundError):
            await alone.responses.retrieve(first.id)
        await one.responses.delete(first.id)
        for client in (one, two):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(first.id)
            with pytest.raises(openai.NotFoundError) as missing:
                await client.responses.create(model="sample", input=reference)
            assert missing.value.param == "input[0].id"
        unkept = await one.responses.create(model="sample", input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            await two.responses.retrieve(unkept.id)
        (folder / FILE).write_bytes(b"no database" * 1000)
        for broken in folder.glob(f"{FILE}-*"):
            broken.unlink()
        with pytest.raises(openai.APIStatusError) as unread:
            await one.responses.retrieve(second.id)
        assert (unread.value.status_code, unread.value.code) == (503, "responses_unavailable")
        assert (await one.responses.create(model="sample", input="x")).status == "completed"


@pytest.mark.parametrize("shared", [True, False], ids=["file", "memory"])
async def test_the_least_used_leave_first(tmp_path: Path, shared: bool) -> None:
    few = ResponseStore(str(tmp_path) if shared else "", 10_000, most=3)
    for name in "abc":
        few.put(name, stored(10, f"item-{name}"))
    assert await few.get("a") is not None
    few.put("d", stored(10))
    assert [name for name in "abcd" if await few.get(name) is not None] == ["a", "c", "d"]
    assert [await few.item(f"item-{name}") is not None for name in "abc"] == [True, False, True]
    where = "file" if shared else "memory"
    assert Bounded("kept responses", where, 3, 3, "responses") in holdings()
    few.put("large", stored(9_700))
    assert [name for name in ("a", "c", "d", "large") if await few.get(name) is not None] == ["large"]
    few.put("larger", stored(11_000))
    assert await few.get("larger") is None
    assert await few.get("large") == stored(9_700), "what cannot be kept makes no room"
    assert await few.remove("large")
    assert not await few.remove("large")
    assert Bounded("kept responses", where, 0, 10_000, "bytes") in holdings()


async def test_what_another_release_has_written_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ResponseStore(str(tmp_path), 10_000)
    for name in "ab":
        kept.put(name, stored(10, f"item-{name}"))
    assert await kept.get("a") is not None
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("UPDATE responses SET value = x'c1' WHERE id = 'a'")
        other.execute("UPDATE items SET value = x'c1' WHERE id = 'item-b'")
    assert (await kept.get("a"), await kept.item("item-a"), await kept.item("item-b")) == (None, None, None)
    assert caplog.text.count("cannot be read and is not kept any more") == 2
    assert not await kept.remove("b"), "a response goes with its items"


async def test_another_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    kept = ResponseStore(str(tmp_path), 10_000)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        kept.put("a", stored(10))
        reading = asyncio.ensure_future(kept.get("a"))
        await asyncio.sleep(0.05)
        assert not reading.done()
        other.execute("COMMIT")
        assert await reading == stored(10)
    finally:
        other.close()


async def test_a_slow_disk_does_not_fill_the_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = ResponseStore(str(tmp_path), 1_000_000)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        for number in range(BEHIND + 5):
            kept.put(f"r{number}", stored(10))
        other.execute("COMMIT")
    finally:
        other.close()
    assert await kept.get(f"r{BEHIND - 1}") is not None
    assert await kept.get(f"r{BEHIND}") is None
    assert len([one for one in caplog.messages if "not written yet" in one]) == 5
    kept.put("later", stored(10))
    assert await kept.get("later") is not None


def test_the_folder_is_ours_alone(tmp_path: Path) -> None:
    ResponseStore(str(tmp_path / "new"), 1)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()} == {0o600}
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UserError, match="responses_dir: others may use"):
        ResponseStore(str(tmp_path / "open"), 1)
    (tmp_path / "full").mkdir(mode=0o700)
    (tmp_path / "full" / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"responses_dir: .* not a database"):
        ResponseStore(str(tmp_path / "full"), 1)
