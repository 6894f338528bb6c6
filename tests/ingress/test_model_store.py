"""The cache of fetched files: many writers, damage, and places that cannot be written."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from dynamod import sample
from dynamod.ingress.model_store import ModelCache, default_folder
from dynamod.message.discovery import ModelCard
from dynamod.preprocess import model_files as ship
from dynamod.preprocess.bundle import BundleError
from dynamod.preprocess.card import read_card

CARD = msgspec.structs.replace(read_card(sample.path("sample"), name="m"), path="/elsewhere", config_path="/x")
FILES: Mapping[str, bytes] = ship.collect(read_card(sample.path("sample"), name="m"))

STORE = """
import pathlib, sys, time
from dynamod import sample
from dynamod.ingress.model_store import ModelCache
from dynamod.preprocess import model_files as ship
from dynamod.preprocess.card import read_card
card = read_card(sample.path("sample"), name="m")
files, cache, entry = ship.collect(card), ModelCache(), None
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 0.5
while time.monotonic() < until:
    entry = pathlib.Path(cache.store(files, card).path)
    if len(sys.argv) > 1:
        (entry / "config.json").write_bytes(b"damaged")
print(entry)
"""


def content(card: ModelCard) -> dict[str, bytes]:
    folder = Path(card.path)
    return {place.name: place.read_bytes() for place in folder.iterdir() if place.name != ship.LIST}


def run(environ: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", STORE, *arguments],
        env={**os.environ, "PYTHONPATH": root, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dynamod" / "models"


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_folder() == tmp_path / ".cache" / "dynamod" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_folder() == Path("/x/dynamod/models")


def test_what_is_stored_is_found(models: Path) -> None:
    assert ModelCache().find(CARD) is None
    stored = ModelCache().store(FILES, CARD)
    assert stored == msgspec.structs.replace(CARD, path=str(models / CARD.mdc_sum), config_path="")
    assert content(stored) == FILES
    assert ModelCache().find(CARD) == stored
    assert ModelCache().find(msgspec.structs.replace(CARD, mdc_sum="0" * 64)) is None


def test_wrong_files_are_not_kept(models: Path) -> None:
    with pytest.raises(BundleError, match="not those of the model"):
        ModelCache().store({**FILES, "tokenizer_config.json": b"{}"}, CARD)
    assert list(models.iterdir()) == []
    stored = ModelCache().store(FILES, CARD)
    with pytest.raises(BundleError):
        ModelCache().store({"config.json": b"{}"}, CARD)
    assert content(stored) == FILES


@pytest.mark.parametrize("damage", ["cut", "gone", "more", "list", "link"])
def test_damage_is_mended(models: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    cache = ModelCache()
    entry = Path(cache.store(FILES, CARD).path)
    file = entry / "tokenizer.json"
    match damage:
        case "cut":
            file.write_bytes(file.read_bytes()[:10])
        case "gone":
            file.unlink()
        case "more":
            (entry / "additional_chat_templates").mkdir()
            (entry / "additional_chat_templates" / "tool_use.jinja").write_text("x")
        case "list":
            (entry / ship.LIST).write_bytes(b"")
        case "link":
            file.rename(models / "x")
            file.symlink_to(models / "x")
    assert cache.find(CARD) is None
    assert "are of no use" in caplog.text
    stored = cache.store(FILES, CARD)
    assert {name: (entry / name).read_bytes() for name in FILES} == FILES
    assert not (entry / "additional_chat_templates" / "tool_use.jinja").exists()
    assert cache.find(CARD) == stored
    assert not file.is_symlink()


def test_many_threads(models: Path) -> None:
    found: list[ModelCard] = []
    start = threading.Barrier(8)

    def store() -> None:
        start.wait(10)
        found.append(ModelCache().store(FILES, CARD))

    threads = [threading.Thread(target=store) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [found[0]] * 8
    assert [entry.name for entry in models.iterdir()] == [CARD.mdc_sum]


@pytest.mark.parametrize("arguments", [(), ("damage",)])
def test_many_processes(models: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Also while what is there is damaged again and again: nobody fails, and the last has it right."""
    processes = [run({"XDG_CACHE_HOME": str(tmp_path / "cache")}, *arguments) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, error = process.communicate(timeout=20)
        if not arguments:  # one that damages what another is just checking may make it fail, never hang
            assert error == ""
            assert out.strip() == str(models / CARD.mdc_sum)
    assert content(ModelCache().store(FILES, CARD)) == FILES
    assert [entry.name for entry in models.iterdir()] == [CARD.mdc_sum]


def test_what_died_in_the_making_is_swept(models: Path) -> None:
    for name, age in (("old", 7200), ("new", 5)):
        part = models / f".part-{name}"
        part.mkdir(parents=True)
        (part / "config.json").write_text("{}")
        os.utime(part, (time.time() - age,) * 2)
    ModelCache().store(FILES, CARD)
    assert {entry.name for entry in models.iterdir()} == {CARD.mdc_sum, ".part-new"}


def test_a_place_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    cache = ModelCache()
    assert cache.find(CARD) is None
    stored = cache.store(FILES, CARD)
    assert Path(stored.path).is_relative_to(temporary)
    assert content(stored) == FILES
    assert cache.find(CARD) == stored == cache.store(FILES, CARD)
    assert caplog.text.count("set XDG_CACHE_HOME") == 1
    assert "in the way" not in caplog.text
    del cache
    gc.collect()
    assert list(temporary.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        ModelCache().store(FILES, CARD)


def test_nothing_is_left_at_the_end_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "tmp").mkdir()
    process = run({"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")})
    out, _ = process.communicate("\n", timeout=20)
    assert process.returncode == 0
    assert out.startswith(str(tmp_path / "tmp"))
    assert list((tmp_path / "tmp").iterdir()) == []
