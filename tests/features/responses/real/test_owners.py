"""A response is there for the key that made it: in every method, in every way to refer to it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from dynamod.features.responses.messages import InputItem
from dynamod.features.responses.settings import Quota
from dynamod.features.responses.store import FILE, ResponseStore, StoredResponse
from dynamod.message.openai import Message

STORED = StoredResponse(b"{}", (Message("user", "y"),), (), (InputItem(id="item", role="assistant", content="x"),))
OLDER = """
CREATE TABLE responses (id TEXT PRIMARY KEY, used INTEGER, size INTEGER, value BLOB);
CREATE INDEX oldest ON responses (used, size);
CREATE TABLE items (id TEXT PRIMARY KEY, response TEXT, value BLOB);
CREATE INDEX of_response ON items (response);
PRAGMA user_version = 1;
"""


def client_of(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("shared", [True, False], ids=["file", "memory"])
async def test_keys_see_what_is_theirs(
    house: Any, serve: Any, words: Any, until: Any, tmp_path: Path, shared: bool
) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: named, key: three}\n- {name: operator, key: four, admin: true}\n")
    folder = str(tmp_path / "kept") if shared else ""
    url = await serve(responses_dir=folder, api_keys="one,two", client_keys_file=str(keys))
    one, two, named, admin = (client_of(url, key) for key in ("one", "two", "three", "four"))
    body: Any = {"model": "sample"}
    async with one, two, named, admin:
        for mine, others in ((one, (two, named)), (named, (one, two))):
            made = await mine.responses.create(**body, input="Hi")
            reference: Any = [{"type": "item_reference", "id": made.output[0].id}, {"role": "user", "content": "x"}]
            for other in others:
                for ask in (
                    other.responses.retrieve(made.id),
                    other.responses.input_items.list(made.id),
                    other.responses.cancel(made.id),
                    other.responses.delete(made.id),
                    other.responses.create(**body, input="x", previous_response_id=made.id),
                    other.responses.create(**body, input=reference),
                    other.responses.input_tokens.count(**body, input=reference),
                ):
                    with pytest.raises(openai.NotFoundError):
                        await ask
            for seeing in (mine, admin):
                assert (await seeing.responses.retrieve(made.id)).id == made.id
                assert (await seeing.responses.create(**body, input=reference)).status == "completed"
            await (mine if mine is one else admin).responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await mine.responses.retrieve(made.id)


async def test_the_least_used_of_an_owner_leave_above_its_quota(tmp_path: Path) -> None:
    """Other owners keep all their responses, even less used ones."""
    for quota in (Quota(responses=2), Quota(bytes=2 * len(msgspec.msgpack.encode(STORED)))):
        kept = ResponseStore("", 100_000, quota=quota)
        for owner, name in (("b", "b1"), ("a", "a1"), ("a", "a2"), ("", "none")):
            kept.put(name, STORED, owner)
        assert await kept.get("a1", "a") is not None, "it is used"
        kept.put("a3", STORED, "a")
        assert [name for name in ("a1", "a2", "a3", "b1", "none") if await kept.get(name) is None] == ["a2"]
        assert {owner: count for owner, (count, _) in (await kept.use()).items()} == {"a": 2, "b": 1, "": 1}


async def test_metrics_of_what_each_key_keeps(house: Any, serve: Any, words: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: team-a, key: three}\n- {name: team-b, key: four}\n")
    url = await serve(client_keys_file=str(keys), owner_responses=1)
    async with client_of(url, "three") as client:
        for text in ("x", "y"):
            last = await client.responses.create(model="sample", input=text)
            await client.responses.retrieve(last.id)
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        lines = [
            line for line in (await answer.text()).splitlines() if line.startswith("dynamo_frontend_key_responses")
        ]
    assert [line.rpartition(" ")[0] for line in lines] == [
        'dynamo_frontend_key_responses{key="team-a"}',
        'dynamo_frontend_key_responses_bytes{key="team-a"}',
    ]
    assert lines[0].endswith(" 1.0")


async def test_responses_of_a_release_without_owners(tmp_path: Path) -> None:
    """Both releases use the file at the same time; all see what the older one has written."""
    tmp_path.chmod(0o700)
    with closing(sqlite3.connect(tmp_path / FILE)) as older:
        older.executescript(OLDER)
        first = ResponseStore(str(tmp_path), 10_000)
        kept = first.put("new", STORED, "a")
        assert kept is not None
        kept.result()
        (value,) = older.execute("SELECT value FROM responses WHERE id = 'new'").fetchone()
        older.execute("INSERT INTO responses VALUES (?, ?, ?, ?)", ("old", 1, len(value), value))
        older.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", ("its", "old", value))
        older.commit()
        for owner in ("a", "b", "", None):
            assert await first.get("old", owner) == STORED
        assert [await first.get("new", owner) for owner in ("a", None, "b", "")] == [STORED, STORED, None, None]
        assert [await first.item("item", owner) is not None for owner in ("a", None, "b")] == [True, True, False]
        assert not await first.remove("new", "b")
        assert await first.remove("old", "b")
        older.execute("DELETE FROM responses WHERE id = 'new'")
        older.commit()
        assert older.execute("SELECT count(*) FROM owners").fetchone() == (0,)
