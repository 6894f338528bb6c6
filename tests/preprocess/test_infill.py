"""Prompts by which a model fills in between two texts: `suffix` of completions."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from dynamod.ingress.api.completions import Completions
from dynamod.message.errors import BadRequest
from dynamod.message.tokens import unpack
from dynamod.message.worker import Generate
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model

from .conftest import bytes_gguf, train_bytes, train_pieces, write_folder

FORMS = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
]
ENDS = ["<|fim_pad|>", "<|repo_name|>"]


def encode(model: Model, **fields: object) -> Generate:
    request, _ = Completions().read(
        json.dumps({"model": "m", "prompt": "def f(", "suffix": "): pass", **fields}).encode()
    )
    (prepared,) = Completions().prompts(model, request)
    return model.encode(prepared, "i")


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_whose_vocabulary_has_the_markers(tmp_path: Path, form: tuple[str, str, str]) -> None:
    reference = train_bytes()
    reference.add_special_tokens([*form, *ENDS])
    model = Model.load(read_card(write_folder(tmp_path / "m", reference, config={}), name="m"))
    before, between, last = map(reference.token_to_id, form)

    def ids(text: str) -> list[int]:
        return list(reference.encode(text, add_special_tokens=False).ids)

    generate = encode(model)
    assert [*unpack(generate.token_ids)] == [before, *ids("def f("), between, *ids("): pass"), last]
    ends = {reference.token_to_id(token) for token in ("<|endoftext|>", *ENDS)}
    assert ends <= {*generate.stops.stop_token_ids_hidden}
    assert not {*ENDS} & {*encode(model, ignore_eos=True).stops.stop_token_ids_hidden}
    assert [*unpack(encode(model, suffix="").token_ids)] == ids("def f("), "an empty suffix is none"
    assert not {reference.token_to_id(ENDS[0])} & {*encode(model, suffix="").stops.stop_token_ids_hidden}


def test_a_bos_comes_first_and_once(tmp_path: Path) -> None:
    reference = train_pieces()
    reference.add_special_tokens([*FORMS[0]])
    folder = write_folder(tmp_path / "m", reference, config={"bos_token_id": 1, "eos_token_id": 2})
    found = [*unpack(encode(Model.load(read_card(folder, name="m"))).token_ids)]
    assert found[:2] == [1, reference.token_to_id(FORMS[0][0])]
    assert found.count(1) == 1


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_a_gguf_file_that_names_them(
    tmp_path: Path, bytes_reference: Reference, names: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguf

    def add_infill(self: gguf.GGUFWriter, ids: list[int]) -> None:
        for name, index in zip(names, ids, strict=True):
            self.add_uint32(f"tokenizer.ggml.{name}_token_id", index)

    monkeypatch.setattr(gguf.GGUFWriter, "add_infill", add_infill, raising=False)
    path = bytes_gguf(tmp_path / "m.gguf", bytes_reference, infill=[7, 8, 9])
    found = [*unpack(encode(Model.load(read_card(path, name="m"))).token_ids)]
    assert (found[0], found[-1], found.count(8)) == (7, 9, 1)


def test_what_is_refused(tmp_path: Path, bytes_reference: Reference) -> None:
    without = Model.load(read_card(write_folder(tmp_path / "a", bytes_reference, config={}), name="m"))
    with pytest.raises(BadRequest, match="no tokens to fill in text") as caught:
        encode(without)
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")
    reference = train_bytes()
    reference.add_special_tokens([*FORMS[0]])
    having = Model.load(read_card(write_folder(tmp_path / "b", reference, config={}), name="m"))
    for ids in ({"prompt": [5, 6]}, {"nvext": {"token_data": [5]}}):
        with pytest.raises(BadRequest, match="prompts that are texts") as caught:
            encode(having, **ids)
        assert caught.value.param == "suffix"
    assert having.tokenizer.infill is not None
    long = Model.load(
        read_card(write_folder(tmp_path / "c", reference, config={"max_position_embeddings": 9}), name="m")
    )
    with pytest.raises(BadRequest) as caught:
        encode(long, suffix="x" * 10_000)
    assert caught.value.code == "context_length_exceeded"
