"""A `tokenizers.Tokenizer` rebuilt from GGUF metadata.

`tokenizer.ggml.model` decides: "gpt2" is byte-level BPE with merges, "llama" is SentencePiece BPE whose merges follow
from the scores, "gemma4" is SentencePiece BPE with merges, "bert" is WordPiece. Others (t5, rwkv, ...) are of models
that no engine here serves, and refused.
"""

from collections.abc import Callable
from typing import Any

from dynamod.message.errors import UserError

from .gguf_file import Metadata
from .pretokenize import PRE_TOKENIZERS, pre_tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_SPACE = "▁"
_HINT = "give the original model folder with --model-config"


def check_kind(metadata: Metadata) -> None:
    """Raises UserError for a kind of tokenizer, or a pre-tokenizer, that is not known: another one gives other ids."""
    kind, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind not in _KINDS:
        raise UserError(f"the GGUF file's tokenizer is of kind {kind!r}, known are {', '.join(_KINDS)}", _HINT)
    if kind == "gpt2" and name not in PRE_TOKENIZERS:
        raise UserError(f"the GGUF file's pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known", _HINT)


def strips_right(metadata: Metadata) -> bool:
    """Whether special tokens take the white space after them: GGUF does not say it, so it goes by the model's name."""
    name = str(metadata.get("general.name", "")).lower()
    return "phi-3" in name or "phi3" in name


def build_tokenizer(metadata: Metadata) -> Any:
    """Return the tokenizer that the file describes. Raises UserError for what is not known or incomplete."""
    check_kind(metadata)
    try:
        tokenizer = _KINDS[metadata["tokenizer.ggml.model"]](metadata)
    except (KeyError, IndexError) as error:
        raise UserError(f"the GGUF file's tokenizer is incomplete: {error} is missing") from None
    _add_tokens(tokenizer, metadata)
    return tokenizer


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    """Token to id; of equal texts the first keeps it."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))


def _byte_level(metadata: Metadata) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers

    vocabulary, split = _vocabulary(metadata), PRE_TOKENIZERS[metadata.get("tokenizer.ggml.pre", "default")]
    if split.spaces:
        return _pieces(metadata, bos=split.bos)
    tokenizer = Tokenizer(_merging(metadata, vocabulary, ignore_merges=split.whole))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    _begin_and_end(tokenizer, metadata, bos=split.bos)
    return tokenizer


def _merging(metadata: Metadata, vocabulary: dict[str, int], **options: Any) -> Any:
    """A BPE model with the merges of the file. A merge of tokens that the vocabulary lacks is left out.

    A half may begin with a space, so merges are cut at the first space after that.
    """
    from tokenizers import models

    lines: list[str] = metadata["tokenizer.ggml.merges"]
    cuts = [(left, right) for left, _, right in [line.partition(" ") for line in lines]]
    for place in [place for place, (left, _right) in enumerate(cuts) if not left]:
        left, _, right = lines[place][1:].partition(" ")
        cuts[place] = (lines[place][:1] + left, right)
    try:
        return models.BPE(vocabulary, cuts, **options)
    except Exception:  # the library has no class of its own for a token that is not in the vocabulary
        known = [(a, b) for a, b in cuts if a in vocabulary and b in vocabulary and a + b in vocabulary]
        return models.BPE(vocabulary, known, **options)


def merges_by_score(vocabulary: dict[str, int], scores: list[float], mergeable: list[bool]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece BPE: each cut of a token into two tokens, best scored token first.

    SentencePiece joins the pair whose union scores highest; ranks of merges mean the same. Cuts of one token are
    ordered by the ids of their halves, so that the result does not depend on the dictionary's order.
    """
    found: list[tuple[float, int, int, int, str, str]] = []
    for token, index in vocabulary.items():
        if not mergeable[index]:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            first, second = vocabulary.get(left), vocabulary.get(right)
            if first is not None and second is not None and mergeable[first] and mergeable[second]:
                found.append((-scores[index], index, first, second, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _sentencepiece_bpe(metadata: Metadata) -> Any:
    from tokenizers import Tokenizer, models

    vocabulary = _vocabulary(metadata)
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(metadata["tokenizer.ggml.tokens"])
    mergeable = [kind not in (_UNKNOWN, _CONTROL, _UNUSED, _BYTE) for kind in types]
    merges = merges_by_score(vocabulary, metadata["tokenizer.ggml.scores"], mergeable)
    bytes_known = "<0x00>" in vocabulary
    model = models.BPE(vocabulary, merges, unk_token=_unknown(metadata), fuse_unk=True, byte_fallback=bytes_known)
    tokenizer = Tokenizer(model)
    _spaces(tokenizer, prefix=metadata.get("tokenizer.ggml.add_space_prefix", True))
    _begin_and_end(tokenizer, metadata, bos=True)
    return tokenizer


def _gemma4(metadata: Metadata) -> Any:
    return _pieces(metadata, bos=True)


def _pieces(metadata: Metadata, *, bos: bool) -> Any:
    """SentencePiece's spaces and bytes, with merges."""
    from tokenizers import Tokenizer

    vocabulary, unknown = _vocabulary(metadata), _unknown(metadata)
    tokenizer = Tokenizer(_merging(metadata, vocabulary, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    _spaces(tokenizer, prefix=False)
    _begin_and_end(tokenizer, metadata, bos=bos)
    return tokenizer


def _wordpiece(metadata: Metadata) -> Any:
    """What begins a word has ▁ before it in the file, and what continues has nothing; here that is nothing, and ##.

    As llama.cpp has it, all is in lower case and without accents.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    def piece(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token  # [CLS] and its kin
        return token[1:] if token.startswith(_SPACE) else f"##{token}"

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    vocabulary = {piece(token): index for index, token in reversed(list(enumerate(tokens)))}
    unknown = _unknown(metadata) or "[UNK]"
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = (("bos", "cls"), ("seperator", "eos"))  # codespell:ignore seperator
    first, last = (_first_of(metadata, keys) for keys in ends)
    around = [(tokens[index], index) for index in (first, last) if index is not None]
    if len(around) == 2:
        single = [around[0][0], "$A", around[1][0]]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
    return tokenizer


def _first_of(metadata: Metadata, keys: tuple[str, ...]) -> int | None:
    ids = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
    return next((index for index in ids if index is not None), None)


_KINDS: dict[str, Callable[[Metadata], Any]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece_bpe,
    "gemma4": _gemma4,
    "bert": _wordpiece,
}


def _unknown(metadata: Metadata) -> str | None:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type") or []
    index = metadata.get("tokenizer.ggml.unknown_token_id")
    if index is None and _UNKNOWN in types:
        index = types.index(_UNKNOWN)
    return None if index is None else tokens[index]


def _spaces(tokenizer: Any, *, prefix: bool) -> None:
    """SentencePiece's spaces: written as ▁, with one put before the text if `prefix`."""
    from tokenizers import decoders, normalizers

    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefix else replace
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)


def _begin_and_end(tokenizer: Any, metadata: Metadata, *, bos: bool) -> None:
    """What `add_special` adds around a text: BOS and EOS as the file wants them."""
    from tokenizers import processors

    tokens, ids = metadata["tokenizer.ggml.tokens"], dict[str, int]()
    around: dict[str, list[str]] = {"bos": [], "eos": []}
    for key, default in (("bos", bos), ("eos", False)):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and index < len(tokens) and metadata.get(f"tokenizer.ggml.add_{key}_token", default):
            around[key].append(tokens[index])
            ids[tokens[index]] = index
    if ids:
        single = [*around["bos"], "$A", *around["eos"]]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=list(ids.items()))


def _add_tokens(tokenizer: Any, metadata: Metadata) -> None:
    """Tokens that are found in text as they stand: control tokens (hidden in answers) and user-defined ones."""
    from tokenizers import AddedToken

    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type") or []
    kinds = {_CONTROL, _UNKNOWN, _USER_DEFINED}
    texts = [pair for pair in zip(tokens, types, strict=False) if pair[1] in kinds and pair[0]]
    strips = strips_right(metadata)

    def added(text: str, special: bool) -> Any:
        rstrip = strips and text not in ("<unk>", "<s>", "<|endoftext|>")
        return AddedToken(text, special=special, normalized=False, rstrip=rstrip)

    tokenizer.add_special_tokens([added(text, True) for text, kind in texts if kind != _USER_DEFINED])
    tokenizer.add_tokens([added(text, False) for text, kind in texts if kind == _USER_DEFINED])
