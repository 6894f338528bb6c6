"""A `tokenizers.Tokenizer` rebuilt from GGUF metadata.

`tokenizer.ggml.model` decides: "gpt2" is byte-level BPE with merges, "llama" is SentencePiece BPE whose merges follow
from the scores, "t5" is SentencePiece Unigram. Others (bert, rwkv, ...) do not generate text here and are refused.
"""

import logging
from collections.abc import Callable
from typing import Any

from dynamod.message.errors import UserError

from .gguf_file import Metadata
from .pretokenize import PRE_TOKENIZERS, Split, pre_tokenizer

log = logging.getLogger(__name__)

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_SPACE = "▁"


def build_tokenizer(metadata: Metadata) -> Any:
    """Return the tokenizer that the file describes. Raises UserError for a kind that is not known."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        problem = f"the GGUF file's tokenizer is of kind {kind!r}, known are {', '.join(_KINDS)}"
        raise UserError(problem, "give the original model folder with --model-config")
    try:
        tokenizer = _KINDS[kind](metadata)
    except (KeyError, IndexError) as error:
        raise UserError(f"the GGUF file's tokenizer is incomplete: {error} is missing") from None
    _add_tokens(tokenizer, metadata)
    return tokenizer


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    """Token to id; of equal texts the first keeps it."""
    return {token: index for index, token in reversed(list(enumerate(metadata["tokenizer.ggml.tokens"])))}


def _byte_level(metadata: Metadata) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary, name = _vocabulary(metadata), metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        log.warning("GGUF pre-tokenizer %r is not known, using gpt-2: token ids may differ from training", name)
    split = PRE_TOKENIZERS.get(name, Split())
    cuts = (line.partition(" ") for line in metadata["tokenizer.ggml.merges"])
    merges = [(a, b) for a, _, b in cuts if a in vocabulary and b in vocabulary and a + b in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    _begin_and_end(tokenizer, metadata, bos=split.bos)
    return tokenizer


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
    _spaces(tokenizer, metadata)
    _begin_and_end(tokenizer, metadata, bos=True)
    return tokenizer


def _unigram(metadata: Metadata) -> Any:
    from tokenizers import Tokenizer, models

    tokens = metadata["tokenizer.ggml.tokens"]
    pieces = list(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback="<0x00>" in tokens))
    _spaces(tokenizer, metadata)
    _begin_and_end(tokenizer, metadata, bos=False)
    return tokenizer


_KINDS: dict[str, Callable[[Metadata], Any]] = {"gpt2": _byte_level, "llama": _sentencepiece_bpe, "t5": _unigram}


def _unknown(metadata: Metadata) -> str | None:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type") or []
    index = metadata.get("tokenizer.ggml.unknown_token_id")
    if index is None and _UNKNOWN in types:
        index = types.index(_UNKNOWN)
    return None if index is None else tokens[index]


def _spaces(tokenizer: Any, metadata: Metadata) -> None:
    """SentencePiece's spaces: written as ▁, with one put before the text unless `add_space_prefix` is false."""
    from tokenizers import decoders, normalizers

    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
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
    control = [text for text, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _UNKNOWN) and text]
    defined = [text for text, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED and text]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in defined])
