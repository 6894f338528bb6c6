"""Models that clients download and delete, where the operator allows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from huggingface_hub import constants

from dynamod import sample
from dynamod.features.ollama import manage
from dynamod.message.errors import UserError
from dynamod.preprocess.download import Progress

Ask = Any


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: Any) -> Path:
    """A cache of Hugging Face."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(hub: Path, repository: str, *names: str) -> Path:
    """Files of a repository, as links into its blobs; the folder of the repository."""
    place = hub / f"models--{repository.replace('/', '--')}"
    snapshot = place / "snapshots" / "abc"
    for folder in (snapshot, place / "refs", place / "blobs"):
        folder.mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    for name in names:
        (place / "blobs" / f"blob-{name}").write_bytes(b"x" * 10)
        (snapshot / name).symlink_to(f"../../blobs/blob-{name}")
    return place


@pytest.fixture
async def ask(house: Any, serve: Any, words: Any, until: Any) -> AsyncIterator[Ask]:
    """`ask(method, path, body)`: status and text."""
    await house.start()
    await house.worker(words.Seen)
    await until(lambda: house.processor.cards)
    async with aiohttp.ClientSession(await serve(ollama_manage_models=True)) as session:

        async def ask(method: str, path: str, body: Any) -> tuple[int, str]:
            async with session.request(method, path, json=body) as answer:
                return answer.status, await answer.text()

        yield ask


async def test_one_quantization_is_deleted_and_then_the_rest(ask: Ask, hub: Path) -> None:
    place = put(hub, "org/m-GGUF", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md")
    status, text = await ask("DELETE", "/api/delete", {"model": "hf.co/org/m-GGUF:Q4_K_M"})
    assert (status, json.loads(text)) == (200, {})
    assert sorted(one.name for one in (place / "blobs").iterdir()) == ["blob-README.md", "blob-m-Q8_0.gguf"]
    assert (await ask("DELETE", "/api/delete", {"model": "org/m-GGUF:Q4_K_M"}))[0] == 404
    assert (await ask("DELETE", "/api/delete", {"name": "org/m-GGUF:latest"}))[0] == 200
    assert not place.exists()
    status, text = await ask("DELETE", "/api/delete", {"model": "org/m-GGUF"})
    assert status == 404
    assert "not found" in json.loads(text)["error"]


async def test_what_is_served_is_not_deleted(ask: Ask, hub: Path, house: Any, words: Any, until: Any) -> None:
    place = put(hub, "org/m-GGUF", "m-Q4_K_M.gguf")
    (place / "blobs/blob-m-Q4_K_M.gguf").write_bytes(Path(sample.path("sample.gguf")).read_bytes())
    await house.worker(words.Seen, "used", model="sample.gguf", path=str(place / "snapshots/abc/m-Q4_K_M.gguf"))
    await until(lambda: "used" in house.processor.cards)
    status, text = await ask("DELETE", "/api/delete", {"model": "org/m-GGUF"})
    assert status == 409, text
    assert place.exists()


@pytest.mark.parametrize("name", ["", "sample", "llama3.2:latest", "/etc/passwd", "../x/y"])
async def test_names_are_those_of_the_hub(ask: Ask, name: str) -> None:
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        status, text = await ask(method, path, {"model": name})
        assert status == 400
        assert "org/name" in json.loads(text)["error"]


async def test_a_download_says_how_far_it_is(ask: Ask, monkeypatch: Any) -> None:
    asked = []

    async def fetch(name: str, progress: Any = None) -> Path:
        asked.append(name)
        for done in (0, 50, 100):
            if progress is not None:
                await progress(Progress(done, 100, 1.0))
            await asyncio.sleep(0)
        return Path("/x")

    monkeypatch.setattr(manage, "fetch", fetch)
    status, text = await ask("POST", "/api/pull", {"model": "hf.co/org/m:Q8_0"})
    lines = [json.loads(line) for line in text.splitlines()]
    assert status == 200
    assert (lines[0], lines[-1]) == ({"status": "pulling manifest"}, {"status": "success"})
    assert [line.get("completed") for line in lines[1:-1]] == [None, 50, 100]
    assert lines[2]["total"] == 100
    status, text = await ask("POST", "/api/pull", {"model": "org/m:Q8_0", "stream": False})
    assert (status, json.loads(text)) == (200, {"status": "success"})
    assert asked == ["org/m:Q8_0"] * 2


async def test_a_download_that_fails_says_why(ask: Ask, monkeypatch: Any) -> None:
    async def fetch(name: str, progress: Any = None) -> Path:
        raise UserError(f"model '{name}' is not on Hugging Face", "check its name")

    monkeypatch.setattr(manage, "fetch", fetch)
    _, text = await ask("POST", "/api/pull", {"model": "org/m"})
    assert "not on Hugging Face" in json.loads(text.splitlines()[-1])["error"]
    assert (await ask("POST", "/api/pull", {"model": "org/m", "stream": False}))[0] == 404
