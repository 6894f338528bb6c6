"""The model that is shipped: both of its forms must say the same."""

import unicodedata

import pytest
from tokenizers import Tokenizer as Reference

from dynamod.message.openai import ChatRequest, Message
from dynamod.message.tokens import unpack
from dynamod.preprocess.card import read_card
from dynamod.preprocess.locate import locate
from dynamod.preprocess.model import Model
from dynamod.preprocess.reference import model_name
from dynamod.preprocess.source import open_card
from dynamod.preprocess.tokenizer import Tokenizer, probe_text

from .conftest import TEXTS


@pytest.fixture(scope="module", params=["sample", "sample.gguf"])
def model(request: pytest.FixtureRequest) -> Model:
    path = locate(request.param)
    return Model.load(read_card(path, name=model_name(request.param, path)))


def test_encodes_as_its_tokenizer_file(model: Model) -> None:
    reference = Reference.from_file(str(locate("sample") / "tokenizer.json"))
    assert model.tokenizer.backend == "fastokens"
    for given in [*TEXTS, probe_text(reference)]:
        # The GGUF file names qwen2's pre-tokenizer, to which normalising to NFC belongs; the folder has no normaliser.
        text = unicodedata.normalize("NFC", given)
        assert model.tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids
        assert model.tokenizer.decode(model.tokenizer.encode(text), skip_special=False) == text


def test_a_conversation_reaches_the_model(model: Model) -> None:
    request = ChatRequest(messages=[Message("user", "Say a word."), Message("assistant", "No."), Message("user", "é")])
    generate = model.encode(model.prepare_chat(request), "i")
    prompt = model.tokenizer.decode(unpack(generate.token_ids), skip_special=False)
    assert prompt == model.render(request)
    assert [prompt.index(text) for text in ("Say a word.", "No.", "é")] == sorted(
        prompt.index(text) for text in ("Say a word.", "No.", "é")
    )
    assert generate.stops.stop_token_ids_hidden == generate.eos_token_ids != ()


def test_both_forms_agree() -> None:
    folder, file = (read_card(locate(name), name="s") for name in ("sample", "sample.gguf"))
    assert folder.context_length == file.context_length > 0
    assert set(folder.eos_token_ids) == set(file.eos_token_ids)
    assert folder.sampling_defaults == file.sampling_defaults == {"temperature": 0.0}, "a toy with one right answer"
    assert Tokenizer.from_source(open_card(folder)).vocab_size == Tokenizer.from_source(open_card(file)).vocab_size
