import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers

from dynamod.preprocess.decoder import Decoder, LeadDecoder, StreamDecoder, TableDecoder, make_decoder
from dynamod.preprocess.table import build_table

from .conftest import train_bytes, train_pieces

TEXT = st.text(
    st.one_of(
        st.sampled_from("abc the dog  \n\t▁Ġ<>0xA"),
        st.sampled_from("éß字東😀👍🏽‍👩e\u0301한"),
        st.characters(codec="utf-8"),
    ),
    max_size=60,
)


def metaspace(scheme: str) -> Reference:
    """Like T5: pieces with ▁, decoded by Metaspace."""
    alphabet = {letter: place for place, letter in enumerate("▁abcdefghi jklmnopqrstuvwxyz<>0xA")}
    reference = Reference(models.BPE({"<unk>": 40, "▁a": 41, **alphabet}, [("▁", "a")], unk_token="<unk>"))
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    reference.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return reference


def gemma() -> Reference:
    """Like Gemma: no space is put before a text, none is taken away."""
    reference = train_pieces()
    reference.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return reference


def added() -> Reference:
    """Byte-level, with added tokens that are hidden, shown, and outside the byte alphabet."""
    reference = train_bytes()
    reference.add_tokens(["two words", "é", "字字", "soft\xadhyphen", "\xa0"])
    reference.add_special_tokens(["<|hidden|>"])
    return reference


def fallback() -> Reference:
    """Byte tokens under Metaspace: the reference turns a run of bytes that goes wrong into U+FFFD as a whole."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {piece: 256 + place for place, piece in enumerate(["▁a", "b", "▁the"])}
    reference = Reference(models.BPE(vocabulary, [], byte_fallback=True))
    reference.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return reference


KINDS = {
    "bytes": train_bytes(),
    "added": added(),
    "pieces": train_pieces(),
    "gemma": gemma(),
    "metaspace": metaspace("always"),
    "metaspace never": metaspace("never"),
}


def fresh(reference: Reference, *, skip: bool = True, continuing: bool = False) -> Decoder:
    return make_decoder(TABLES[id(reference)], reference, skip_special=skip, continuing=continuing)


TABLES = {
    id(reference): build_table(reference, reference.get_vocab(with_added_tokens=True)) for reference in KINDS.values()
}


def decode(decoder: Decoder, ids: list[int], cuts: list[int]) -> str:
    places = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return "".join(decoder.push(ids[left:right]) for left, right in pairwise(places)) + decoder.flush()


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT, cuts=st.lists(st.integers(0, 300), max_size=12), skip=st.booleans())
def test_pieces_make_the_whole(kind: str, text: str, cuts: list[int], skip: bool) -> None:
    reference = KINDS[kind]
    ids = reference.encode(text).ids
    assert decode(fresh(reference, skip=skip), ids, cuts) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["bytes", "added"])
@given(data=st.data(), cuts=st.lists(st.integers(0, 60), max_size=8), skip=st.booleans())
def test_any_ids_decode_as_the_reference(kind: str, data: st.DataObject, cuts: list[int], skip: bool) -> None:
    reference = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, reference.get_vocab_size() + 5), max_size=30))
    assert decode(fresh(reference, skip=skip), ids, cuts) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["pieces", "gemma", "metaspace", "metaspace never"])
@given(data=st.data(), cuts=st.lists(st.integers(0, 60), max_size=8), skip=st.booleans())
def test_any_pieces_that_are_text_decode_as_the_reference(
    kind: str, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    reference = KINDS[kind]
    vocabulary = {index: token for token, index in reference.get_vocab().items()}
    whole = [index for index, token in vocabulary.items() if not token.startswith("<0x") or token < "<0x80>"]
    ids = data.draw(st.lists(st.sampled_from([*sorted(whole), 10**6]), max_size=30))
    assert decode(fresh(reference, skip=skip), ids, cuts) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_character_appears_when_it_is_complete(kind: str) -> None:
    reference = KINDS[kind]
    ids = reference.encode("x😀y", add_special_tokens=False).ids
    decoder = fresh(reference)
    shown = [decoder.push([index]) for index in ids]
    assert [text for text in shown if text] == ["x", "😀", "y"]
    assert decoder.flush() == ""


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_an_unfinished_character_is_replaced_only_at_the_end(kind: str) -> None:
    reference = KINDS[kind]
    ids = reference.encode("x😀", add_special_tokens=False).ids[:-1]
    decoder = fresh(reference)
    assert decoder.push(ids) == "x"
    assert decoder.flush() == reference.decode(ids)[1:]
    assert decoder.flush() == ""


def test_broken_bytes_before_text_show_one_mark_each_as_the_reference() -> None:
    reference = KINDS["pieces"]
    vocabulary = reference.get_vocab()
    ids = [vocabulary["<0xE6>"], vocabulary["<0x9D>"], vocabulary["▁the"], vocabulary["<0xFF>"]]
    assert decode(fresh(reference), ids, [1, 2]) == reference.decode(ids) == "\ufffd\ufffd the\ufffd"


def test_complete_characters_of_a_broken_run_are_kept() -> None:
    """Better than the reference, which turns the whole run into U+FFFD; documented in decoder.py."""
    reference = KINDS["pieces"]
    vocabulary = reference.get_vocab()
    ids = [vocabulary[f"<0x{byte:02X}>"] for byte in "é".encode() + b"\xff"]
    assert decode(fresh(reference), ids, []) == "é\ufffd"
    assert reference.decode(ids) == "\ufffd" * 3


@pytest.mark.parametrize("kind", ["pieces", "metaspace"])
def test_a_continued_text_keeps_its_space(kind: str) -> None:
    reference = KINDS[kind]
    ids = reference.encode("a b", add_special_tokens=False).ids
    assert decode(fresh(reference), ids, []) == "a b"
    assert decode(fresh(reference, continuing=True), ids, []) == " a b"


def test_kinds_are_chosen_by_the_decoder_section() -> None:
    assert type(fresh(KINDS["bytes"])) is TableDecoder
    assert type(fresh(KINDS["gemma"])) is TableDecoder
    assert type(fresh(KINDS["pieces"])) is LeadDecoder
    assert type(fresh(KINDS["metaspace"])) is LeadDecoder
    assert type(fresh(KINDS["metaspace never"])) is TableDecoder


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.Replace("▁", "_"), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.CTC()]),
    ],
)
def test_other_decoders_stream_through_tokenizers(decoder: Any) -> None:
    reference = train_pieces()
    if decoder is not None:
        reference.decoder = decoder
    elif reference.decoder is not None:
        reference = Reference.from_str(json.dumps({**json.loads(reference.to_str()), "decoder": None}))
    assert build_table(reference, reference.get_vocab(with_added_tokens=True)) is None


def test_stream_decoder_shows_everything() -> None:
    reference = Reference(models.WordLevel({"hello": 0, "wor": 1, "##ld": 2, "[UNK]": 3}, unk_token="[UNK]"))
    reference.decoder = decoders.WordPiece()
    assert build_table(reference, reference.get_vocab(with_added_tokens=True)) is None
    decoder = make_decoder(None, reference, skip_special=True, continuing=False)
    assert isinstance(decoder, StreamDecoder)
    assert decoder.push([0, 1]) + decoder.push([2]) + decoder.flush() == "hello world"


def test_stream_decoder_flushes_an_unfinished_character() -> None:
    reference = KINDS["bytes"]
    decoder = StreamDecoder(reference, skip_special=True)
    ids = reference.encode("x😀").ids
    assert decoder.push(ids[:-1]) == "x"
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


FALLBACK = fallback()


def test_a_stream_that_cannot_go_on_begins_again() -> None:
    decoder = StreamDecoder(FALLBACK, skip_special=True)
    shown = [decoder.token(index) for index in (256, 0x71, 0xC5, 257, 256, 0xC3, 0xA9, 258)]
    assert shown == ["a", "q", "", "\ufffdb", " a", "", "é", " the"]
    assert decoder.flush() == ""


@given(st.lists(st.integers(0, 258), max_size=20))
def test_no_bytes_make_a_stream_fail(ids: list[int]) -> None:
    assert build_table(FALLBACK, FALLBACK.get_vocab()) is None
    decoder = StreamDecoder(FALLBACK, skip_special=True)
    text = decoder.push(ids) + decoder.flush()
    whole = FALLBACK.decode(ids)
    assert text == whole or "\ufffd" in whole
