"""Files that expire, by OpenAI's SDK, on the real stack."""

import time
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from dynamod.features.batches import runner
from dynamod.features.batches.records import FileObject, file_id
from dynamod.features.batches.store import Store

from .test_batches import CHAT, client_of, ended, line, written


async def test_files_say_when_they_expire(house: Any, serve: Any, words: Any, until: Any, tmp_path: Path) -> None:
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    url = await serve(batches_dir=str(tmp_path / "batches"))
    hour: Any = {"anchor": "created_at", "seconds": 3600}
    async with client_of(url) as client:
        rows = ("in.jsonl", written([line("a")]))
        file = await client.files.create(file=rows, purpose="batch", expires_after=hour)
        assert file.expires_at == file.created_at + 3600
        assert (await client.files.retrieve(file.id)).expires_at == file.expires_at
        assert [one.expires_at async for one in client.files.list()] == [file.expires_at]
        asked: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        batch = await ended(client, (await client.batches.create(output_expires_after=hour, **asked)).id)
        output = await client.files.retrieve(batch.output_file_id)
        assert output.expires_at == output.created_at + 3600
        plain = await ended(client, (await client.batches.create(**asked)).id)
        assert (await client.files.retrieve(plain.output_file_id)).expires_at is None
        for wrong, said in (
            ({"anchor": "created_at", "seconds": 3599}, r"`expires_after\[seconds\]` is '3599'; .* 3600 to 2592000"),
            ({"anchor": "created_at", "seconds": 2592001}, "from 3600 to 2592000"),
            ({"anchor": "created_at", "seconds": "soon"}, "'soon'"),
            ({"anchor": "ended_at", "seconds": 3600}, r"`expires_after\[anchor\]` is 'ended_at'"),
            ({"anchor": "created_at"}, "None"),
            ({"seconds": 3600}, "None"),
            ({"anchor": "x" * 600, "seconds": 3600}, "must be created_at"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                await client.files.create(file=rows, purpose="batch", expires_after=cast("Any", wrong))
        assert len([one async for one in client.files.list()]) == 3, "nothing of these was kept"


async def test_what_has_expired_is_gone(
    house: Any, serve: Any, words: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "batches"
    monkeypatch.setattr(runner, "EXPIRE", 0.1)
    await house.start()
    await house.worker(words.Manual)
    await until(lambda: house.processor.cards)
    url = await serve(batches_dir=str(folder))
    other, soon = Store(str(folder), 10_000), int(time.time()) + 2

    def kept() -> str:
        """The id of a file of another frontend that shares the folder."""
        data = written([line("a")])
        part = other.upload(file_id())
        part.write_bytes(data)
        made = FileObject(file_id(), len(data), soon - 3600, "in.jsonl", "batch", expires_at=soon)
        other.show(part, "", made)
        return made.id

    lost, read = kept(), kept()
    async with client_of(url) as client:
        batch = await client.batches.create(input_file_id=read, endpoint=CHAT, completion_window="1h")
        assert {one.id async for one in client.files.list()} == {lost, read}
        await until(lambda: not other.data(lost).exists())
        assert not (folder / f"files/{lost}.json").exists()
        assert [one.id async for one in client.files.list()] == []
        for name in (lost, read):
            with pytest.raises(openai.NotFoundError):
                await client.files.content(name)
        await ended(client, batch.id, lambda one: one.status == "in_progress")
        assert other.data(read).exists(), "the batch reads the file"
        await client.batches.cancel(batch.id)
        await ended(client, batch.id)
        await until(lambda: not other.data(read).exists())
        assert not list((folder / "files").glob(f"{read}*"))
