"""llama.cpp's own tokenizer and end tokens beside ours, on vocabularies that are made on the spot."""

import json
import logging
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers, trainers

from dynamod.engine.llamacpp.library import library
from dynamod.engine.llamacpp.vocabulary import Vocabulary
from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import read_metadata
from dynamod.preprocess.gguf_tokenizer import build_tokenizer
from dynamod.preprocess.pretokenize import PRE_TOKENIZERS
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import probe_text
from tests.preprocess.conftest import SPECIAL, TEXTS, bytes_gguf, pieces_gguf, train_pieces, write_gguf
from tests.preprocess.test_gguf_models import gemma

from .exchange import Engines

pytestmark = pytest.mark.engine

OURS = {"default", "gpt2"}
"""llama.cpp cuts text otherwise where no name is given, and does not know gpt2."""
THREES = {"afmoe", "cohere2moe", "tiny_aya"}
"""llama.cpp does not cut between a digit and what stands before it, as the patterns of these models do."""
CASELESS = {"kimi-k2", "youtu"}
"""llama.cpp's patterns of these do not cut between lower and upper case, as the models' own do."""
PIECES = {"sarvam-moe", "granite-embed-multi-311m"}
"""Of another kind of vocabulary."""
GPT4O = {"gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie", "cohere2moe", "tiny_aya", "granite-embed-multi-97m"}
ASCII = {"deepseek-coder", "deepseek-llm", "tekken", *GPT4O, *CASELESS}
"""llama.cpp's patterns of these do without Unicode's categories or its white space."""


@contextmanager
def loaded(path: Path) -> Iterator[Vocabulary]:
    api = library()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    try:
        yield Vocabulary(api, model)
    finally:
        api.llama_model_free(model)


@pytest.fixture(scope="module")
def crossing() -> Reference:
    """A vocabulary whose merges join words, so that every cut of a pre-tokenizer shows in the ids."""
    made = Reference(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    text = probe_text(made)
    made.train_from_iterator([*text.splitlines(keepends=True) * 3, *[text] * 3, *TEXTS], trainer)
    return made


def lines(text: str) -> list[str]:
    return unicodedata.normalize("NFC", text).splitlines(keepends=True)


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS.keys() - OURS - PIECES))
def test_ids_of_every_pre_tokenizer(tmp_path: Path, crossing: Reference, name: str) -> None:
    path = bytes_gguf(tmp_path / "x.gguf", crossing, name)
    ours = build_tokenizer(read_metadata(path))
    with loaded(path) as vocabulary:
        for line in [*lines(probe_text(crossing)), *lines("".join(TEXTS))]:
            line = line.lower() if name in CASELESS else line
            if (name not in ASCII or line.isascii()) and (name not in THREES or re.search(r"\d|[½²]", line) is None):
                assert ours.encode(line, add_special_tokens=False).ids == vocabulary.ids(line), line


def test_ids_of_gemma4_and_phi3(tmp_path: Path) -> None:
    description = json.loads(train_pieces().to_str())
    gemma4 = gemma(Reference.from_str(json.dumps(description)), tmp_path / "gemma.gguf")[1]
    others = [
        gemma(Reference.from_str(json.dumps(description)), tmp_path / f"{name}.gguf", "gpt2", name)[1]
        for name in PIECES
    ]
    vocabulary = description["model"]["vocab"]
    vocabulary["<|endoftext|>"] = len(vocabulary)  # llama.cpp wants it in a Phi-3
    phi3 = pieces_gguf(tmp_path / "phi.gguf", Reference.from_str(json.dumps(description)), name="Phi-3")
    for path in (gemma4, *others, phi3):
        ours = build_tokenizer(read_metadata(path))
        with loaded(path) as loaded_one:
            for line in [*lines(probe_text(ours)), *TEXTS, "a</s> \n b</s>", "<unk> x<s> y", "a\n\n\nb"]:
                assert ours.encode(line, add_special_tokens=False).ids == loaded_one.ids(line), line


@pytest.mark.parametrize(
    "tokens",
    [
        ["<|endoftext|>", "<|return|>", "<|call|>", "<|end|>"],
        ["<|flush|>", "<|end|>", "<|calls|>"],
        ["<|end|>", "<|return|>", "</s>"],
        ["<eos>", "<turn|>", "<|tool_response>"],
        ["[EOS]", "[EOT]", "<|im_end|>", "[e~["],
        ["<EOT>", "<|eom_id|>", "<end_of_utterance>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>"],
        ["_<EOT>", "<｜end▁of▁sentence｜>"],
    ],
)
def test_end_tokens(tmp_path: Path, tokens: list[str]) -> None:
    texts = [*"abcdefghijklmnopqrstuvwxyz", *tokens, "<|other|>"]
    types = [1 if len(text) == 1 else 3 for text in texts]
    path = write_gguf(tmp_path / "x.gguf", "gpt2", texts, types, merges=["a b"], pre="gpt-2", eos_token_id=26)
    with loaded(path) as vocabulary:
        assert vocabulary.size == len(texts)
        assert set(vocabulary.ends) == set(open_source(path).eos_ids)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, crossing: Reference) -> None:
    other = bytes_gguf(tmp_path / "other.gguf", crossing)
    with loaded(pieces_gguf(tmp_path / "x.gguf", train_pieces())) as vocabulary, pytest.raises(UserError) as error:
        vocabulary.compare(open_source(other).build())
    assert "the tokenizer is not that of the model" in error.value.line()
    with (
        loaded(write_gguf(tmp_path / "y.gguf", "gpt2", ["a", "b"], [1, 1], merges=["a b"], pre="gpt-2")) as small,
        pytest.raises(UserError, match="not that of the model"),
    ):
        small.compare(open_source(other).build())


async def test_the_card_has_the_end_tokens_of_llamacpp(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own and those of the file, so that an ingress stops where llama.cpp would."""

    class More(Vocabulary):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.ends = (*self.ends, 77)

    engines = Engines(words)
    try:
        plain = (await engines.start()).card().eos_token_ids
        monkeypatch.setattr("dynamod.engine.llamacpp.model.Vocabulary", More)
        assert (await engines.start()).card().eos_token_ids == (*plain, 77)
    finally:
        await engines.close()


@pytest.mark.parametrize(
    ("pre", "level"), [("llama-bpe", None), ("qwen2", None), (None, "WARNING"), ("gpt-4o", "INFO")]
)
def test_other_cuts_are_logged(
    tmp_path: Path, crossing: Reference, caplog: pytest.LogCaptureFixture, pre: Any, level: str | None
) -> None:
    caplog.set_level(logging.INFO, "dynamod.engine")
    path = bytes_gguf(tmp_path / "x.gguf", crossing, pre)
    with loaded(path) as vocabulary:
        vocabulary.compare(open_source(path).build())
    found = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "dynamod.engine"]
    assert [name for name, _ in found] == ([level] if level else [])
    assert all("llama.cpp would cut" in text for _, text in found)
