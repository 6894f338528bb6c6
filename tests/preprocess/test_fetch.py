"""Downloads for real, from a server of this machine that speaks the paths of Hugging Face."""

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynamod.message.errors import UserError
from dynamod.preprocess import cache
from dynamod.preprocess.fetch import fetch
from dynamod.preprocess.locate import locate

from ..hub import CHUNK, Hub, oid
from ..ports import free_port

TOY = {
    "config.json": b"{}",
    "tokenizer.json": b'{"x": 1}',
    "model.safetensors": bytes(range(256)) * 4000,
    "pytorch_model.bin": b"p" * 500,
    "onnx/model.onnx": b"o" * 500,
}
GGUF = {"README.md": b"#", "M-Q4_K_M.gguf": b"4" * 900, "M-Q8_0.gguf": b"8" * 1700, "M-f16.gguf": b"f" * 3300}
SPLIT = {f"Q6_K/Big-Q6_K-0000{n}-of-00003.gguf": bytes([n]) * 700 for n in (1, 2, 3)}


@pytest.fixture
def storage() -> bool:
    return False


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, storage: bool) -> Iterator[Hub]:
    with Hub({"org/toy": TOY, "org/M-GGUF": GGUF, "org/Big-GGUF": SPLIT}, storage=storage).running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(cache, "root", lambda: tmp_path / "hf/hub")  # the library has read its own variables
        yield hub


def unfinished(folder: Path) -> list[Path]:
    return [file for kind in ("part", "incomplete") for file in folder.rglob(f"*.{kind}")]


async def test_a_folder_with_progress(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub.speed = 1e6
    lines: list[str] = []
    with caplog.at_level(logging.INFO, logger="dynamod.models"):
        path = await fetch("org/toy", lines.append)
    assert {file.name for file in path.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (path / "model.safetensors").read_bytes() == TOY["model.safetensors"]
    assert lines[0].startswith("downloading org/toy: ")
    assert all(" of 1.0 MB, " in line for line in lines)
    assert len({line for line in lines if " 0 B of" not in line}) > 1, "it moves"
    assert "downloaded org/toy: 1.0 MB" in caplog.text
    assert locate("org/toy") == path

    begun = list(hub.begun)
    assert await fetch("hf://org/toy", lines.append) == path
    assert hub.begun == begun, "nothing is loaded twice"


async def test_a_tokenizer_without_the_weights(hub: Hub) -> None:
    path = await fetch("org/toy", weights=False)
    assert {file.name for file in path.iterdir()} == {"config.json", "tokenizer.json"}
    assert locate("org/toy", weights=False) == path
    with pytest.raises(UserError, match="not in the local cache"):
        locate("org/toy")


@pytest.mark.parametrize("ranges", [True, False])
async def test_who_is_cancelled_leaves_at_once_and_goes_on_later(hub: Hub, tmp_path: Path, ranges: bool) -> None:
    hub.speed, hub.ranges = 200_000, ranges
    moved = asyncio.Event()
    task = asyncio.create_task(fetch("org/toy", lambda text: moved.set() if "kB of" in text else None))
    await asyncio.wait_for(moved.wait(), 30)
    assert unfinished(tmp_path)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1.0
    [part] = unfinished(tmp_path)
    here, whole = part.stat().st_size, len(TOY["model.safetensors"])
    assert 0 < here <= hub.sent["model.safetensors"] < whole
    hub.speed, hub.sent["model.safetensors"] = 1e9, 0
    path = await fetch("org/toy")
    assert (path / "model.safetensors").read_bytes() == TOY["model.safetensors"]
    assert (hub.sent["model.safetensors"] <= whole - here + 2 * CHUNK) == ranges  # some was still on its way
    assert not unfinished(tmp_path)


@pytest.mark.parametrize("storage", [True])
async def test_large_files_of_another_host(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no token. A download from it goes on; what was here and is not the file's beginning is not taken."""
    pytest.importorskip("hf_xet")
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.gated, hub.token, hub.speed = True, "secret", 200_000
    moved = asyncio.Event()
    task = asyncio.create_task(fetch("org/toy", lambda text: moved.set() if "kB of" in text else None))
    await asyncio.wait_for(moved.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [part] = unfinished(tmp_path)
    here, whole = part.stat().st_size, len(TOY["model.safetensors"])
    assert part.stem == oid(TOY["model.safetensors"], large=True)
    part.write_bytes(bytes(here))
    hub.speed = 1e9
    with pytest.raises(UserError, match=r"^file model\.safetensors of org/toy came damaged"):
        await fetch("org/toy")
    assert not unfinished(tmp_path)
    part.write_bytes(TOY["model.safetensors"][:here])
    hub.sent["model.safetensors"] = 0
    path = await fetch("org/toy")
    assert (path / "model.safetensors").read_bytes() == TOY["model.safetensors"]
    assert hub.sent["model.safetensors"] <= whole - here + 2 * CHUNK
    assert {*hub.credentials} == {None}


async def test_parts_that_belong_to_nothing_are_removed(hub: Hub, tmp_path: Path) -> None:
    blobs = tmp_path / "hf/hub/models--org--toy/blobs"
    blobs.mkdir(parents=True)
    (blobs / "0123.part").write_bytes(b"of an older commit")
    data = TOY["model.safetensors"]
    (blobs / f"{oid(data)}.part").write_bytes(data + b"longer than the file")
    path = await fetch("org/toy")
    assert (path / "model.safetensors").read_bytes() == data
    assert not unfinished(tmp_path)


def test_a_download_ends_with_who_asked_for_it(hub: Hub, tmp_path: Path) -> None:
    hub.speed = 200_000
    argv = [sys.executable, "-m", "dynamod.preprocess.download", "org/toy"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while b'"done":0,' in process.stdout.readline():
        pass
    assert unfinished(tmp_path)
    process.stdout.close()
    assert process.wait(10) == 1
    assert [file.suffix for file in unfinished(tmp_path)] == [".part"]


async def test_two_at_the_same_time_load_once(hub: Hub) -> None:
    hub.speed = 1e6
    first, second = await asyncio.gather(fetch("org/toy"), fetch("org/toy"))
    assert first == second
    assert hub.sent["model.safetensors"] == len(TOY["model.safetensors"])


async def test_one_quantization_is_loaded(hub: Hub) -> None:
    path = await fetch("org/M-GGUF")
    assert path.name == "M-Q4_K_M.gguf"
    assert hub.begun == ["M-Q4_K_M.gguf"]
    assert (await fetch("org/M-GGUF:q8_0")).name == "M-Q8_0.gguf"
    assert hub.begun == ["M-Q4_K_M.gguf", "M-Q8_0.gguf"]
    assert (await fetch("org/M-GGUF/M-f16.gguf")).read_bytes() == GGUF["M-f16.gguf"]
    assert locate("org/M-GGUF:F16").name == "M-f16.gguf"


async def test_nothing_is_loaded_when_the_choice_is_not_clear(hub: Hub) -> None:
    del hub.repositories["org/M-GGUF"]["M-Q4_K_M.gguf"]
    with pytest.raises(UserError, match=r"has several quantizations: Q8_0 \(1.7 kB\), f16 \(3.3 kB\)") as caught:
        await fetch("org/M-GGUF")
    assert caught.value.hint == "choose one, for example org/M-GGUF:Q8_0"
    with pytest.raises(UserError, match="has no quantization 'Q8_1'") as caught:
        await fetch("org/M-GGUF:Q8_1")
    assert caught.value.hint.startswith("did you mean 'Q8_0'? it has: Q8_0 (1.7 kB), ")
    with pytest.raises(UserError, match="has no GGUF files"):
        await fetch("org/toy:Q4_K_M")
    with pytest.raises(UserError, match=r"has no file 'M-f17.gguf'.*"):
        await fetch("org/M-GGUF/M-f17.gguf")
    assert hub.begun == []


async def test_all_parts_of_a_split_file(hub: Hub) -> None:
    path = await fetch("org/Big-GGUF")
    assert path.name == "Big-Q6_K-00001-of-00003.gguf"
    assert sorted(file.name for file in path.parent.iterdir()) == [Path(name).name for name in SPLIT]
    assert await fetch("org/Big-GGUF/Q6_K/Big-Q6_K-00001-of-00003.gguf") == path
    del hub.repositories["org/Big-GGUF"]["Q6_K/Big-Q6_K-00002-of-00003.gguf"]
    with pytest.raises(UserError, match="has no file 'Q6_K/Big-Q6_K-00002-of-00003"):
        await fetch("org/Big-GGUF:Q6_K")


async def test_offline_is_one_error_or_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await fetch("org/toy")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert await fetch("org/toy") == path
    began = time.monotonic()
    with pytest.raises(UserError, match=r"model 'org/M-GGUF:Q8_0' is not in the local cache, and .* cannot be reached"):
        await fetch("org/M-GGUF:Q8_0")
    assert time.monotonic() - began < 10
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await fetch("org/toy") == path
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        await fetch("org/M-GGUF")


async def test_refusals_say_what_to_do(hub: Hub) -> None:
    with pytest.raises(UserError, match="'org/none' was not found on Hugging Face") as caught:
        await fetch("org/none")
    assert "set HF_TOKEN" in caught.value.hint
    hub.gated = True
    with pytest.raises(UserError, match="is gated"):
        await fetch("org/toy")


async def test_a_cache_that_lacks_a_part_is_not_taken(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    hub.repositories["org/toy"] = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": b"1",
        "model-2.safetensors": b"2",
    }
    path = await fetch("org/toy")
    assert locate("org/toy") == path
    os.unlink(path / "model-2.safetensors")
    with pytest.raises(UserError, match="not in the local cache") as caught:
        locate("org/toy")
    assert caught.value.hint == "dynamo pull org/toy, or give a local path"
    assert await fetch("org/toy") == path
    assert (path / "model-2.safetensors").read_bytes() == b"2"


ANSWERS = """
import sys, time
from pathlib import Path

print('{"type": "failed", "error": "there is no such model"}', flush=True)
time.sleep(0.2)
Path(__file__).with_name("ended").touch()
"""


async def test_who_has_answered_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to a process that ends by itself may take its exit code from asyncio, which says so to the user."""
    (tmp_path / "answers.py").write_text(ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("dynamod.preprocess.fetch.download", SimpleNamespace(__name__="answers"))
    with pytest.raises(UserError, match="there is no such model"):
        await fetch("org/toy")
    assert (tmp_path / "ended").exists()


HAS_A_CHILD = """
import subprocess, sys

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.6)"])
print('{"type": "progress", "done": 0, "total": 1, "speed": 0}', flush=True)
"""


def test_nothing_of_a_download_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is known before the end of what the process has written: here another process has the pipe, too."""
    (tmp_path / "has_a_child.py").write_text(HAS_A_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("dynamod.preprocess.fetch.download", SimpleNamespace(__name__="has_a_child"))
    monkeypatch.setattr("dynamod.preprocess.fetch.END", 30.0)  # the other process may begin late
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: left.append(str(what.exc_value)))

    async def cancelled() -> None:
        begun = asyncio.Event()
        download = asyncio.create_task(fetch("org/toy", lambda _: begun.set()))
        await begun.wait()
        await asyncio.sleep(0.3)  # until the exit code is known
        download.cancel()
        with pytest.raises(asyncio.CancelledError):
            await download

    asyncio.run(cancelled())
    gc.collect()
    assert left == []
