import json
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Reference

from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import is_gguf, read_metadata, to_bytes
from dynamod.preprocess.gguf_tokenizer import build_tokenizer, merges_by_score
from dynamod.preprocess.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer, probe_text

from .conftest import TEXTS, bytes_gguf, pieces_gguf, train_bytes, write_gguf


def same_ids(built: Any, reference: Reference, texts: list[str]) -> None:
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert built.encode(text, add_special_tokens=False).ids == expected, text


def test_metadata_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int16("i16", -5)
    writer.add_uint64("u64", 2**40)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "grüße 😀")
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [1.5, -2.5])
    writer.add_array("bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert read_metadata(tmp_path / "x.gguf") == expected
    assert expected["strings"] == ["a", "", "ü"]


def test_readers_share_what_is_held_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for length in (10, 20):
        path.write_bytes(to_bytes({"general.architecture": "llama", "llama.context_length": length}))
        held = read_metadata(path)
        assert held["llama.context_length"] == length
        assert read_metadata(tmp_path / "." / "a.gguf") is held
    alive = weakref.ref(held)
    del held
    assert alive() is None


def test_the_other_byte_order_is_read(tmp_path: Path) -> None:
    big = gguf.GGUFEndian.BIG
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=big)  # codespell:ignore endianess
    writer.add_array("ints", [1, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_metadata(tmp_path / "big.gguf") == {"general.architecture": "llama", "ints": [1, 2]}


def test_large_vocabularies_are_read_quickly(tmp_path: Path) -> None:
    tokens = [f"token{index}" for index in range(100_000)]
    path = write_gguf(tmp_path / "x.gguf", "gpt2", tokens, [1] * len(tokens), merges=["a b"] * 100_000)
    start = time.process_time()
    metadata = read_metadata(path)
    assert time.process_time() - start < 2  # GGUFReader: more than 5 s
    assert metadata["tokenizer.ggml.tokens"] == tokens


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"GGML" + bytes(40), "does not start"),
        (b"GGUF" + struct.pack("<I", 99) + bytes(40), "version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "not a readable GGUF"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "after the end of the file"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60), "longer than the file"),
        (b"", "not a readable GGUF"),
    ],
)
def test_broken_files_are_user_errors(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_metadata(tmp_path / "x.gguf")


def test_gguf_is_known_by_suffix_or_content(tmp_path: Path) -> None:
    (tmp_path / "a.GGUF").write_bytes(b"")
    (tmp_path / "blob").write_bytes(b"GGUF1234")
    (tmp_path / "other").write_bytes(b"PK12")
    assert [is_gguf(tmp_path / name) for name in ("a.GGUF", "blob", "other", "none", ".")] == [True, True, *[False] * 3]


def test_byte_level_ids_equal_the_original(tmp_path: Path, bytes_reference: Reference) -> None:
    built = build_tokenizer(read_metadata(bytes_gguf(tmp_path / "x.gguf", bytes_reference)))
    same_ids(built, bytes_reference, [*TEXTS, probe_text(bytes_reference)])
    ids = bytes_reference.encode(TEXTS[4]).ids
    assert built.decode(ids) == bytes_reference.decode(ids) == TEXTS[4]


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre", "pattern", "nfc"),
    [("llama-bpe", LLAMA3, False), ("qwen2", LLAMA3.replace("{1,3}", ""), True)],
)
def test_pre_tokenizers_of_known_models(tmp_path: Path, pre: str, pattern: str, nfc: bool) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    reference = train_bytes(pre_tokenizers.Sequence([split, byte_level]))
    if nfc:
        reference.normalizer = normalizers.NFC()
    built = build_tokenizer(read_metadata(bytes_gguf(tmp_path / "x.gguf", reference, pre)))
    same_ids(built, reference, [*TEXTS, probe_text(reference)])


def test_ways_cut_digits_as_the_models_do() -> None:
    def cuts(name: str) -> list[str]:
        return [piece for piece, _ in pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str("ab12345 HelloWorld's")]

    assert cuts("gpt-2") == ["ab", "12345", "ĠHelloWorld", "'s"]
    assert cuts("llama-bpe") == ["ab", "123", "45", "ĠHelloWorld", "'s"]
    assert cuts("qwen2") == ["ab", "1", "2", "3", "4", "5", "ĠHelloWorld", "'s"]
    assert cuts("smollm") == ["ab", "1", "2", "3", "4", "5", "ĠHelloWorld", "'s"]
    assert cuts("gpt-4o") == ["ab", "123", "45", "ĠHello", "World's"]
    assert cuts("deepseek-v3") == ["ab", "123", "45", "ĠHelloWorld", "'s"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_way_loses_nothing(name: str) -> None:
    text = "ab 12 字 é!\n  x"
    pieces = [piece for piece, _ in pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str(text)]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert "".join(pieces) == whole[0][0]


def test_sentencepiece_ids_equal_the_original(tmp_path: Path, pieces_reference: Reference) -> None:
    built = build_tokenizer(read_metadata(pieces_gguf(tmp_path / "x.gguf", pieces_reference)))
    same_ids(built, pieces_reference, [*TEXTS, probe_text(pieces_reference), "a</s>b<s> c"])
    assert built.encode("hi").ids == pieces_reference.encode("hi").ids  # with BOS
    for text in TEXTS:
        ids = pieces_reference.encode(text).ids
        assert built.decode(ids) == pieces_reference.decode(ids)


def test_merges_follow_scores_then_ids() -> None:
    vocabulary = {"abc": 5, "a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "<0x41>": 6}
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0, 0.0]
    expected = [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]
    assert merges_by_score(vocabulary, scores, [True] * 6 + [False]) == expected
    assert merges_by_score(vocabulary, scores, [True] * 4 + [False] * 3) == [("a", "b")]


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [2]), ("gpt-2", [0, 1])])
def test_llama3_takes_whole_words_without_merging(tmp_path: Path, pre: str, ids: list[int]) -> None:
    path = write_gguf(tmp_path / "x.gguf", "gpt2", ["a", "b", "ab"], [1, 1, 1], merges=["x y"], pre=pre)
    assert Tokenizer.from_source(open_source(path)).encode("ab") == ids


def test_add_space_prefix_off(tmp_path: Path, pieces_reference: Reference) -> None:
    path = pieces_gguf(tmp_path / "x.gguf", pieces_reference, add_space_prefix=False, add_bos_token=False)
    tokenizer = Tokenizer.from_source(open_source(path))
    plain = Tokenizer.from_source(open_source(pieces_gguf(tmp_path / "y.gguf", pieces_reference)))
    ids = tokenizer.encode(" the dog", add_special=True)
    assert ids == plain.encode("the dog")
    assert tokenizer.decode(ids) == " the dog"
    assert plain.decode(ids) == "the dog"


@given(text=st.text(st.sampled_from("abcdefgt hedoqu ,.1é東"), max_size=60))
def test_merges_from_scores_encode_any_text_alike(text: str, pieces_pair: tuple[Reference, Any]) -> None:
    reference, built = pieces_pair
    same_ids(built, reference, [text])


@pytest.fixture(scope="module")
def pieces_pair(tmp_path_factory: pytest.TempPathFactory, pieces_reference: Reference) -> tuple[Reference, Any]:
    path = pieces_gguf(tmp_path_factory.mktemp("gguf") / "x.gguf", pieces_reference)
    return pieces_reference, build_tokenizer(read_metadata(path))


def test_user_defined_tokens_are_found_and_shown(tmp_path: Path, bytes_reference: Reference) -> None:
    model = json.loads(bytes_reference.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), "<think>"]
    types = [1] * (len(tokens) - 1) + [4]
    merges = [" ".join(merge) for merge in model["merges"]]
    tokenizer = Tokenizer.from_source(
        open_source(write_gguf(tmp_path / "x.gguf", "gpt2", tokens, types, merges=merges))
    )
    assert tokenizer.encode("<think>") == [len(tokens) - 1]
    assert tokenizer.decode([len(tokens) - 1]) == "<think>"


def test_a_tokenizer_without_merges_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="merges"):
        Tokenizer.from_source(open_source(write_gguf(tmp_path / "x.gguf", "gpt2", ["a"], [1])))


def test_words_in_pieces(tmp_path: Path) -> None:
    """As BERT's own tokenizer cuts them: the same words with ## in front of what goes on."""
    special, words, ends = ["[UNK]", "[CLS]", "[SEP]"], ["play", "the", "un", "a", ",", "中"], ["ing", "play", "s", "a"]
    file = [*special, *(f"▁{word}" for word in words), *ends]
    theirs = [*special, *words, *(f"##{end}" for end in ends)]
    path = tmp_path / "bert.gguf"
    kinds = [3] * len(special) + [1] * (len(file) - len(special))
    write_gguf(path, "bert", file, kinds, bos_token_id=1, sep_token_id=2, unk_token_id=0)
    made = build_tokenizer(read_metadata(path))
    plain = Reference(models.WordPiece({token: index for index, token in enumerate(theirs)}, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    for text in ("The plays", "unplaying, PLAY", "á 中a", "xyz", "", "playa s"):
        assert made.encode(text, add_special_tokens=False).ids == plain.encode(text).ids
        assert made.encode(text).ids == [1, *plain.encode(text).ids, 2]
    assert made.decode(made.encode("unplaying the").ids) == "unplaying the"
