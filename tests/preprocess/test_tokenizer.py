import builtins
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastokens
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.tokens import unpack
from dynamod.preprocess.source import open_card, open_source
from dynamod.preprocess.tokenizer import Tokenizer

from .conftest import TEXTS, bytes_gguf, write_folder


@pytest.fixture(scope="module", params=["fastokens", "tokenizers"])
def tokenizer(request: pytest.FixtureRequest, bytes_folder: Path) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tokenizers":
            patch.setattr("dynamod.preprocess.tokenizer._fastokens", lambda reference, source: None)
        found = Tokenizer.from_source(open_source(bytes_folder))
    assert found.backend == request.param
    return found


def test_encodes_and_decodes_as_the_reference(tokenizer: Tokenizer, bytes_reference: Reference) -> None:
    for text in TEXTS:
        expected = bytes_reference.encode(text, add_special_tokens=False).ids
        assert list(tokenizer.encode(text)) == expected
        assert list(unpack(tokenizer.encode_packed(text))) == expected
        for skip in (True, False):
            assert tokenizer.decode(expected, skip) == bytes_reference.decode(expected, skip_special_tokens=skip)


def test_facts(tokenizer: Tokenizer, bytes_reference: Reference) -> None:
    assert tokenizer.vocab_size == bytes_reference.get_vocab_size()
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.bos_id == 0
    assert tokenizer.token_bytes(tokenizer.encode(" the")[0]) == b" the"
    assert b"".join(tokenizer.token_bytes(index) or b"" for index in tokenizer.encode("字")) == "字".encode()
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) is None
    assert tokenizer.token_bytes(-1) is None


def test_lone_surrogates_are_the_clients_mistake(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequest, match="surrogates"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(BadRequest, match="surrogates"):
        tokenizer.encode_packed("a\ud800b")


@pytest.mark.parametrize("fast", [True, False])
def test_bos_is_added_once(pieces_folder: Path, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    if not fast:
        monkeypatch.setattr("dynamod.preprocess.tokenizer._fastokens", lambda reference, source: None)
    tokenizer = Tokenizer.from_source(open_source(pieces_folder))
    assert tokenizer.backend == ("fastokens" if fast else "tokenizers")
    assert tokenizer.backend_for("hi") == tokenizer.backend
    assert tokenizer.backend_for("a <0x41>") == "tokenizers"
    plain = tokenizer.encode("hi")
    assert tokenizer.encode("hi", add_special=True) == [1, *plain]
    assert tokenizer.encode("<s>hi", add_special=True) == tokenizer.encode("<s>hi") == [1, *plain]
    assert list(unpack(tokenizer.encode_packed("hi", add_special=True))) == [1, *plain]
    assert list(unpack(tokenizer.encode_packed("<s>hi", add_special=True))) == [1, *plain]
    assert tokenizer.encode("<s><s>hi") == [1, 1, *plain]  # two written are two meant


def test_card_chooses_config_path_over_path(bytes_folder: Path, tmp_path: Path, bytes_reference: Reference) -> None:
    file = bytes_gguf(tmp_path / "x.gguf", bytes_reference)
    cards = ModelCard("m", path=str(file)), ModelCard("m", path="/nowhere", config_path=str(bytes_folder))
    from_file, from_folder = (Tokenizer.from_source(open_card(card)).encode("the dog") for card in cards)
    assert from_file == from_folder


def test_a_card_without_files_is_a_user_error() -> None:
    with pytest.raises(UserError, match="'m' has no files"):
        Tokenizer.from_source(open_card(ModelCard("m")))


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path, bytes_reference: Reference) -> None:
    reference = Reference.from_str(bytes_reference.to_str())
    reference.enable_truncation(4)
    reference.enable_padding(length=16)
    folder = write_folder(tmp_path, reference, config={})
    text = "a long enough text to see that nothing is cut"
    assert Tokenizer.from_source(open_source(folder)).encode(text) == bytes_reference.encode(text).ids
    assert Tokenizer.from_source(open_source(folder)).backend == "fastokens"


def test_disagreement_falls_back(
    bytes_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        def no_truncation(self) -> None: ...
        def no_padding(self) -> None: ...
        def encode_batch_flat(self, inputs: list[str], special: bool) -> tuple[bytes, bytes]:
            return bytes(4 * len(inputs[0])), b""

    monkeypatch.setattr(fastokens, "Tokenizer", SimpleNamespace(from_file=lambda path: Wrong()))
    with caplog.at_level(logging.DEBUG):
        tokenizer = Tokenizer.from_source(open_source(bytes_folder))
    assert tokenizer.backend == "tokenizers"
    assert "differ" in caplog.text
    assert tokenizer.decode(tokenizer.encode("the dog")) == "the dog"


def test_a_model_fastokens_refuses_falls_back(
    bytes_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str) -> Any:
        raise ValueError("unsupported model")

    monkeypatch.setattr(fastokens, "Tokenizer", SimpleNamespace(from_file=refuse))
    with caplog.at_level(logging.DEBUG):
        assert Tokenizer.from_source(open_source(bytes_folder)).backend == "tokenizers"
    assert "unsupported model" in caplog.text


def test_without_fastokens(bytes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fail(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "fastokens":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail)
    assert Tokenizer.from_source(open_source(bytes_folder)).backend == "tokenizers"


def test_a_broken_tokenizer_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UserError, match=r"tokenizer.json cannot be loaded"):
        Tokenizer.from_source(open_source(tmp_path))


@given(text=st.text(max_size=80) | st.text(st.sampled_from(" <0x41>ab▁</s>"), max_size=30))
@example(text="the <0x41>")
def test_fastokens_agrees_beyond_the_probe(text: str, both: tuple[list[Tokenizer], list[Reference]]) -> None:
    for tokenizer, reference in zip(*both, strict=True):
        assert tokenizer.backend == "fastokens"
        try:
            expected = reference.encode(text, add_special_tokens=False).ids
        except TypeError:
            with pytest.raises(BadRequest):
                tokenizer.encode(text)
            continue
        assert tokenizer.encode(text) == expected
        assert list(unpack(tokenizer.encode_packed(text))) == expected


@pytest.fixture(scope="module")
def both(
    bytes_folder: Path, pieces_folder: Path, bytes_reference: Reference, pieces_reference: Reference
) -> tuple[list[Tokenizer], list[Reference]]:
    folders = [Tokenizer.from_source(open_source(folder)) for folder in (bytes_folder, pieces_folder)]
    return folders, [bytes_reference, pieces_reference]


def test_a_tokenizer_may_be_hastened_while_others_encode(bytes_folder: Path) -> None:
    tokenizer = Tokenizer.from_source(open_source(bytes_folder), use_fast_backend=False)
    assert tokenizer.backend == "tokenizers"
    texts = [text for text in TEXTS if text]
    expected = [tokenizer.encode(text) for text in texts]
    stop = threading.Event()

    def encode() -> int:
        rounds = 0
        while not stop.is_set():
            assert [tokenizer.encode(text) for text in texts] == expected
            assert [list(unpack(tokenizer.encode_packed(text))) for text in texts] == expected
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(encode) for _ in range(2)]
        tokenizer.use_fast_backend()
        stop.set()
        assert all(one.result() for one in busy)
    assert tokenizer.backend == "fastokens"
    assert [tokenizer.encode(text) for text in texts] == expected
    tokenizer.use_fast_backend()  # again does nothing
