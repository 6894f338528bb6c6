"""Quotas of each key, by OpenAI's SDK, on the real stack."""

from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from .test_batches import begun, client_of, folder, line

__all__ = ["folder"]


async def test_quotas_of_each_key(house: Any, serve: Any, words: Any, until: Any, folder: Path) -> None:
    await house.start()
    quotas = {"owner_files": 2, "owner_files_mb": 0.01, "owner_batches": 1}
    url = await serve(batches_dir=str(folder), api_keys="one,two", **quotas)
    async with client_of(url, "one") as client, client_of(url, "two") as other:

        async def refused(asked: Any, quota: str) -> None:
            with pytest.raises(openai.RateLimitError, match=f"`{quota}`") as raised:
                await asked
            assert (raised.value.code, raised.value.type) == ("insufficient_quota", "insufficient_quota")

        batch = await begun(client, [line("a")])  # without a worker the batch waits
        await refused(client.files.create(file=("x", b"x" * 10_400), purpose="batch"), "owner_files_mb")
        await refused(client.files.create(file=("x", b"x" * 20_000), purpose="batch"), "owner_files_mb")
        await refused(begun(client, [line("b")]), "owner_batches")
        await refused(client.files.create(file=("x", b"x"), purpose="batch"), "owner_files")
        assert len([one async for one in client.files.list()]) == 2
        assert len(list((folder / "files").glob("*.data"))) == 2, "what was refused is not kept"
        assert (await begun(other, [line("c")])).status == "validating"
        async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
            text = await answer.text()
        found = [
            (line.split("{")[0].removeprefix("dynamo_frontend_key_"), float(line.split()[1]))
            for line in text.splitlines()
            if line.startswith("dynamo_frontend_key_")
        ]
        counts = [("batches_open", 1), ("batches_open", 1), ("files", 1), ("files", 2)]
        assert sorted(found)[:4] == counts, "of both keys"
        assert sum(value for name, value in found if name == "files_bytes") > 3 * len(line("a"))
        await client.batches.cancel(batch.id)
