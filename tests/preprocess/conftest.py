"""Small models made on the spot: two families of tokenizers, each as a folder and as a vocabulary-only GGUF file."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CHATML = """\
{% for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' -}}
{% endif %}
"""

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all.",
    "def add(left: int, right: int) -> int:\n    return left + right  # a comment\n\n\nprint(add(1, 22))",
    "It's said they'd've gone; we'll see what I'm told. 123 4567 89,000 and 3.14159.",
    "Straße, naïve, café, ÉCOLE; Ελληνικά, русский язык, עברית, العربية, हिन्दी",
    "東京は日本の首都です。中文字符也在這裡。한국어도 있습니다.",
    "emoji 😀👍🏽 and flags 🇩🇪, spaces   in    runs\tand\ttabs",
] * 4
TEXTS = [
    *CORPUS[:6],
    "",
    " ",
    "  two leading",
    "trailing  ",
    "a",
    "été",
    "e\u0301 combining",
    "👩‍👩‍👧‍👦 family",
    "\n\n\n x \r\n y",
    "don't DON'T we'LL",
    "1234567890",
    "unseen Ж字 ☃ ꙮ 𐍈",
    "<|im_start|>user\nhi<|im_end|>",
    "a<|im_end|><|im_end|> b",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_bytes(pre: Any = None) -> Reference:
    """A byte-level BPE of about 500 tokens."""
    reference = Reference(models.BPE())
    reference.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    reference.train_from_iterator(CORPUS, trainer)
    return reference


def train_pieces() -> Reference:
    """A SentencePiece-style BPE of about 500 tokens with byte fallback; CJK and emoji are left to the bytes."""
    trained = Reference(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Cut before each ▁, as SentencePiece does: a piece never spans two words.
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=520, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *BYTES])
    trained.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    reference = Reference(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    reference.normalizer = trained.normalizer
    reference.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reference.add_special_tokens(["<unk>", "<s>", "</s>"])
    reference.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", reference.token_to_id("<s>"))]
    )
    return reference


def write_folder(folder: Path, reference: Reference, **files: Any) -> Path:
    """A model folder without weights; keyword names are file names without .json, values replace or add."""
    folder.mkdir(parents=True, exist_ok=True)
    reference.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def write_gguf(
    path: Path,
    kind: str,
    tokens: list[str],
    types: list[int],
    *,
    merges: list[str] | None = None,
    scores: list[float] | None = None,
    pre: str | None = None,
    **extra: Any,
) -> Path:
    """A GGUF file with metadata only. `extra`: the writer's `add_*` methods without `add_`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for name, value in extra.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def bytes_gguf(path: Path, reference: Reference, pre: str | None = "gpt-2", **extra: Any) -> Path:
    """A byte-level BPE as GGUF, as llama.cpp's converter writes it."""
    model = json.loads(reference.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    merges = [" ".join(merge) for merge in model["merges"]]
    extra = {"eos_token_id": tokens.index("<|im_end|>"), **extra}
    return write_gguf(path, "gpt2", tokens, types, merges=merges, pre=pre, **extra)


def pieces_gguf(path: Path, reference: Reference, **extra: Any) -> Path:
    """A SentencePiece BPE as GGUF: scores are minus the rank of a token's merge, as SentencePiece writes them."""
    model = json.loads(reference.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [6 if token in BYTES else {"<unk>": 2, "<s>": 3, "</s>": 3}.get(token, 1) for token in tokens]
    rank: dict[str, int] = {}
    for place, (left, right) in enumerate(model["merges"]):
        rank.setdefault(left + right, place)
    alone = [-1e6 if kind == 1 else 0.0 for kind in types]
    scores = [float(-rank[token]) if token in rank else alone[place] for place, token in enumerate(tokens)]
    return write_gguf(path, "llama", tokens, types, scores=scores, bos_token_id=1, eos_token_id=2, **extra)


@pytest.fixture(scope="session")
def bytes_reference() -> Reference:
    return train_bytes()


@pytest.fixture(scope="session")
def pieces_reference() -> Reference:
    return train_pieces()


@pytest.fixture(scope="session")
def bytes_folder(tmp_path_factory: pytest.TempPathFactory, bytes_reference: Reference) -> Path:
    return write_folder(
        tmp_path_factory.mktemp("models") / "bytes",
        bytes_reference,
        config={"max_position_embeddings": 512, "eos_token_id": 0, "bos_token_id": 0},
        generation_config={"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9, "top_k": 20},
        tokenizer_config={
            "chat_template": CHATML,
            "eos_token": "<|im_end|>",
            "bos_token": {"content": "<|endoftext|>"},
        },
    )


@pytest.fixture(scope="session")
def pieces_folder(tmp_path_factory: pytest.TempPathFactory, pieces_reference: Reference) -> Path:
    return write_folder(
        tmp_path_factory.mktemp("models") / "pieces",
        pieces_reference,
        config={"max_position_embeddings": 512, "eos_token_id": 2, "bos_token_id": 1},
        tokenizer_config={"eos_token": "</s>", "bos_token": "<s>"},
    )
