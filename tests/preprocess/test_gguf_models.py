"""What GGUF files of single model families say, or leave out: kinds of tokenizers, white space, the ends of answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Reference

from dynamod.message.errors import UserError
from dynamod.preprocess.card import read_card
from dynamod.preprocess.gguf_file import needed, read_metadata, to_bytes
from dynamod.preprocess.gguf_tokenizer import build_tokenizer
from dynamod.preprocess.pretokenize import PRE_TOKENIZERS, pre_tokenizer
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import probe_text

from .conftest import BYTES, TEXTS, bytes_gguf, pieces_gguf, write_gguf


@pytest.mark.parametrize(
    ("kind", "pre", "says"),
    [
        ("plamo2", None, "of kind 'plamo2', known are gpt2, llama, gemma4, bert; give the original model folder"),
        ("t5", None, "of kind 't5'"),
        ("gpt2", "brand-new", "the GGUF file's pre-tokenizer 'brand-new' (tokenizer.ggml.pre) is not known; give the"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, kind: str, pre: str | None, says: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", kind, ["a"], [1], merges=[""], pre=pre)
    for what in (
        open_source,
        lambda path: read_card(path, name="m"),
        lambda path: build_tokenizer(read_metadata(path)),
    ):
        with pytest.raises(UserError) as error:
            what(path)
        assert says in error.value.line()


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("qwen35", "f(x)\n it's 12", ["f", "(x", ")Ċ", "Ġit", "'s", "Ġ", "1", "2"]),
        ("qwen35", "e\u0301t", ["eÌģt"]),
        ("falcon", "a =\n = 12345", ["a", "Ġ", "=", "ĊĠ", "=", "Ġ", "123", "45"]),
        ("deepseek-llm", "4 ½ months", ["4", "Ġ", "Â½", "Ġmonths"]),
        ("kimi-k2", "x東京y 1234", ["x", "æĿ±äº¬", "y", "Ġ", "123", "4"]),
        ("cohere2moe", "1234567", ["1", "234", "567"]),
        ("ufakzeka", "Ankara'nın", ["Ankara", "'nÄ±n"]),
        ("viking", "ab, 12", ["ab", ",", "Ġ", "1", "2"]),
        ("afmoe", "ab 1234567!\n東京", ["ab", "Ġ", "1", "234", "567", "!Ċ", "æĿ±äº¬"]),
        ("spark2_5", "a, 123!\n\n", ["a", ",", "Ġ", "1", "2", "3", "!", "Ċ", "Ċ"]),
        ("superbpe", "of the 1234567 a", ["ofĠtheĠ", "1", "234", "567", "Ġa"]),
        ("chameleon", "IMGIMGABZ\t12 a.b", ["IMGIMGABZ", "ĉ", "1", "2", "Ġa", ".", "b"]),
    ],
)
def test_newer_models_cut_text_their_own_way(name: str, text: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str(text)] == pieces


def test_glm4_takes_whole_words_without_merging() -> None:
    assert [PRE_TOKENIZERS[name].whole for name in ("glm4", "glm5", "chatglm-bpe", "lfm2")] == [True, True, False, True]


def gemma(reference: Reference, path: Path, kind: str = "gemma4", pre: str | None = None) -> tuple[Reference, Path]:
    """The pieces under Gemma 4's rules, and its kind of file: no space before the text, merges, a space in a merge."""
    model = json.loads(reference.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(merge) for merge in model["merges"] if "\n" not in "".join(merge)]
    for token in ("\n", " ", " \n"):
        vocabulary.setdefault(token, len(vocabulary))
    merges.append((" ", "\n"))
    made = Reference(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    if pre is None:
        made.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [6 if token in BYTES else {"<unk>": 2, "<s>": 3, "</s>": 3}.get(token, 1) for token in tokens]
    words = [" ".join(merge) for merge in merges]
    return made, write_gguf(path, kind, tokens, types, merges=words, pre=pre, bos_token_id=1, eos_token_id=2)


@pytest.mark.parametrize(
    ("kind", "pre"), [("gemma4", None), ("gpt2", "sarvam-moe"), ("gpt2", "granite-embed-multi-311m")]
)
def test_gemma4_and_sarvam(tmp_path: Path, pieces_reference: Reference, kind: str, pre: str | None) -> None:
    reference, path = gemma(pieces_reference, tmp_path / "x.gguf", kind, pre)
    built = build_tokenizer(read_metadata(path))
    for text in (*TEXTS, probe_text(reference), "a\n\n\nb  </s>c"):
        ids = reference.encode(text).ids
        assert built.encode(text).ids == ids
        assert built.decode(ids) == reference.decode(ids)


@pytest.mark.parametrize(("name", "strips"), [("Phi-3.5-mini", True), ("phi3", True), ("Phi 4", False), (None, False)])
def test_special_tokens_of_phi3_take_the_white_space_behind_them(
    tmp_path: Path, pieces_reference: Reference, name: str | None, strips: bool
) -> None:
    extra: dict[str, Any] = {} if name is None else {"name": name}
    path = pieces_gguf(tmp_path / "x.gguf", pieces_reference, **extra)
    original = Reference.from_str(pieces_reference.to_str())
    original.add_special_tokens([AddedToken("</s>", rstrip=strips, special=True, normalized=False)])
    for text in ("a</s> \n b", "<s>  x</s>", "</s>", "<unk> y"):
        assert build_tokenizer(read_metadata(path)).encode(text).ids == original.encode(text).ids, text
    sent = tmp_path / "sent.gguf"  # what an ingress elsewhere gets
    sent.write_bytes(to_bytes(needed(read_metadata(path))))
    assert build_tokenizer(read_metadata(sent)).encode("a</s> b").ids == original.encode("a</s> b").ids
    plain = pieces_gguf(tmp_path / "plain.gguf", pieces_reference)
    assert (read_card(path, name="m").mdc_sum == read_card(plain, name="m").mdc_sum) is not strips


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["<|endoftext|>", "<|return|>", "<|call|>", "<|end|>"], ["<|return|>", "<|call|>", "<|endoftext|>"]),
        (["<|flush|>", "<|end|>", "<|calls|>"], ["<|flush|>", "<|calls|>"]),
        (["<|end|>", "<|return|>"], ["<|end|>", "<|return|>"]),
        (["</s>", "<eos>", "<turn|>", "<|tool_response>"], ["</s>", "<eos>", "<turn|>", "<|tool_response>"]),
        (["[EOS]", "[EOT]", "<|im_end|>"], ["[EOS]", "[EOT]", "<|im_end|>"]),
        (["[e~[", "<EOT>", "<|eom_id|>", "<end_of_utterance>"], ["[e~[", "<EOT>", "<|eom_id|>", "<end_of_utterance>"]),
    ],
)
def test_ends_of_answers_by_their_text(tmp_path: Path, tokens: list[str], ends: list[str]) -> None:
    path = write_gguf(tmp_path / "x.gguf", "gpt2", ["a", *tokens, "<|other|>"], [1, *[3] * len(tokens), 3], merges=[""])
    ids = open_source(path).eos_ids
    assert {["a", *tokens][index] for index in ids} == set(ends)


@pytest.mark.parametrize(("kind", "ids"), [(1, (1,)), (3, (0, 1))])
def test_an_end_of_html_ends_no_answer(tmp_path: Path, kind: int, ids: tuple[int, ...]) -> None:
    path = write_gguf(tmp_path / "x.gguf", "gpt2", ["</s>", "<|im_end|>"], [kind, 1], merges=[""])
    assert tuple(sorted(open_source(path).eos_ids)) == ids


def test_the_end_of_a_base_model_stays(tmp_path: Path, bytes_reference: Reference) -> None:
    path = bytes_gguf(tmp_path / "x.gguf", bytes_reference, eos_token_id=7)
    assert open_source(path).eos_ids == (7, 0, 2)
