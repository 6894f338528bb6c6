import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fastokens
import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models

from dynamod.message.errors import BadRequest, UserError
from dynamod.preprocess import tokenizer_process
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer
from dynamod.preprocess.tokenizer_process import ProcessReference

from .conftest import TEXTS, write_folder
from .large_models import write_model

LITERAL = "the <0x41> of it"


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_process, "LARGE", 0)


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "large", 60_000)


@pytest.fixture(params=["bytes_folder", "pieces_folder", "large_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def load(folder: Path, *, apart: bool = True) -> Tokenizer:
    return Tokenizer.from_source(open_source(folder), use_fast_backend=False, apart=apart)


def alike(one: Tokenizer, other: Tokenizer) -> None:
    for name in ("vocab_size", "infill", "special", "eos_ids", "bos_id"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.pieces(b"!") == other.pieces(b"!")
    for text in (*TEXTS, LITERAL, "Some words that are long: " * 200):
        for special in (False, True):
            ids = one.encode(text, special)
            assert ids == other.encode(text, special), text
            assert one.decoder().push(ids) == other.decoder().push(ids)
            assert one.decode(ids) == other.decode(ids)
        assert [one.token(index) for index in ids] == [other.token(index) for index in ids]
    assert one.token(10**6) == other.token(10**6) == ""


def test_ids_and_texts_are_those_of_a_tokenizer_that_was_loaded_here(folder: Path) -> None:
    apart, here = load(folder), load(folder, apart=False)
    assert (apart.backend, here.backend) == ("process", "tokenizers")
    alike(apart, here)
    apart.use_fast_backend()
    here.use_fast_backend()
    assert apart.backend == here.backend == "fastokens"
    assert apart.backend_for(LITERAL) == here.backend_for(LITERAL)
    alike(apart, here)


def test_nothing_large_is_loaded_under_the_lock_of_this_process(
    large_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, from_file = list[str](), fastokens.Tokenizer.from_file
    source = open_source(large_folder)
    monkeypatch.setattr(Reference, "from_file", None)
    sizes = list[int]()

    class Recorded:
        @staticmethod
        def from_file(path: str) -> fastokens.Tokenizer:
            read.append(path)
            sizes.append(os.stat(path).st_size)
            return from_file(path)

    monkeypatch.setattr(fastokens, "Tokenizer", Recorded)
    tokenizer = Tokenizer.from_source(source, use_fast_backend=False, apart=True)
    tokenizer.use_fast_backend()
    assert tokenizer.backend == "fastokens"
    assert "/fd/" in read[0]
    assert sizes[0] < (large_folder / "tokenizer.json").stat().st_size / 2


def test_a_small_file_is_loaded_here(bytes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_process, "LARGE", (bytes_folder / "tokenizer.json").stat().st_size + 1)
    assert load(bytes_folder).backend == "tokenizers"


def test_the_process_ends_when_nothing_needs_it(bytes_folder: Path) -> None:
    tokenizer = load(bytes_folder)
    process = tokenizer._reference._process
    assert process.poll() is None
    tokenizer.use_fast_backend()
    gc.collect()
    assert process.returncode is not None
    dropped = load(bytes_folder)
    process = dropped._reference._process
    del dropped
    gc.collect()
    assert process.returncode is not None


def test_where_texts_need_the_reference_for_good_it_is_loaded_here(pieces_folder: Path) -> None:
    tokenizer = load(pieces_folder)
    tokenizer.use_fast_backend()
    assert tokenizer.backend_for(LITERAL) == "tokenizers"
    assert isinstance(tokenizer._reference, Reference)


def test_without_fastokens_the_reference_is_loaded_here(bytes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamod.preprocess.tokenizer._fastokens", lambda reference, source: None)
    tokenizer = load(bytes_folder)
    tokenizer.use_fast_backend()
    assert tokenizer.backend == "tokenizers"
    alike(tokenizer, load(bytes_folder, apart=False))


def test_a_process_that_dies_is_not_noticed(bytes_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, here = load(bytes_folder), load(bytes_folder, apart=False)
    tokenizer._reference._process.kill()
    with caplog.at_level(logging.WARNING):
        alike(tokenizer, here)
    assert caplog.text.count("the process of a tokenizer has failed") == 1
    tokenizer.use_fast_backend()
    assert tokenizer.backend == "fastokens"
    alike(tokenizer, here)


def test_a_process_that_hangs_is_killed(bytes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(bytes_folder)
    monkeypatch.setattr(tokenizer_process, "WAIT", 0.05)
    os.kill(tokenizer._reference._process.pid, signal.SIGSTOP)
    assert tokenizer.encode("the dog") == load(bytes_folder, apart=False).encode("the dog")


def test_a_file_that_no_process_loads_is_loaded_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UserError, match=r"tokenizer.json cannot be loaded"):
        load(tmp_path)
    words = Reference(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    assert load(write_folder(tmp_path / "words", words, config={})).backend == "tokenizers"


def test_a_tokenizer_without_a_table_is_loaded_here(tmp_path: Path, bytes_reference: Reference) -> None:
    reference = Reference.from_str(bytes_reference.to_str())
    reference.decoder = decoders.BPEDecoder()
    tokenizer = load(write_folder(tmp_path, reference, config={}))
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.decode(tokenizer.encode("the")) == reference.decode(reference.encode("the").ids)


def test_lone_surrogates_are_the_clients_mistake(bytes_folder: Path) -> None:
    with pytest.raises(BadRequest, match="surrogates"):
        load(bytes_folder).encode("a\ud800b")


def test_merges_whose_halves_have_spaces(tmp_path: Path) -> None:
    vocabulary = {token: index for index, token in enumerate(["a", " ", "b", "a ", "a b"])}
    reference = Reference(models.BPE(vocabulary, [("a", " "), ("a ", "b")]))
    reference.decoder = decoders.ByteLevel()
    folder = write_folder(tmp_path, reference, config={})
    tokenizer, here = load(folder), load(folder, apart=False)
    tokenizer.use_fast_backend()
    for text in ("a b", "a  b", "ab a b"):
        assert tokenizer.encode(text) == here.encode(text)


@pytest.fixture
def busy(large_folder: Path) -> Iterator[tuple[Tokenizer, ThreadPoolExecutor, threading.Event]]:
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        yield load(large_folder), pool, stop
        stop.set()


def test_the_fast_backend_comes_while_others_encode(
    busy: tuple[Tokenizer, ThreadPoolExecutor, threading.Event], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, pool, stop = busy
    assert isinstance(tokenizer._reference, ProcessReference)
    texts = [text for text in TEXTS if text]
    expected = [tokenizer.encode(text) for text in texts]

    def encode() -> None:
        while not stop.is_set():
            assert [tokenizer.encode(text) for text in texts] == expected

    running = [pool.submit(encode) for _ in range(2)]
    tokenizer.use_fast_backend()
    stop.set()
    for one in running:
        one.result()
    assert tokenizer.backend == "fastokens"
    assert "has failed" not in caplog.text
