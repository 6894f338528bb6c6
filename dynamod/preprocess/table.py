"""Token id to bytes, as a list: what makes detokenising cheap.

Two families of tokenizers decode token by token into bytes: byte-level BPE (GPT-2, Llama 3, Qwen, ...) and
SentencePiece style (▁ for a space, <0xAB> for a byte; Llama 2, Mistral, Gemma, T5). The `decoder` section of the
tokenizer says which it is. Anything else has no table and is decoded by `tokenizers` itself.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Lead = Literal["keep", "strip", "remove"]

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_SPACE = "▁"
PER_BYTE = "dynamod.per_byte"


def _per_byte(error: UnicodeError) -> tuple[str, int]:
    """SentencePiece style shows one U+FFFD for each byte that is no text; Python's own handler one for several."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(PER_BYTE, _per_byte)


Pieces = tuple[list[bytes], list[str | None]]
"""By id: the bytes; the text of ids that are whole characters, filled by decoders as ids come."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`convert`: a token as the vocabulary writes it to its bytes. `mark`: how that writes a space.

    `lead`: what happens to spaces at the start of a text: "strip" takes up to `strip` away, "remove" takes every ▁ away
    from the first token. `errors`: how bytes that are no UTF-8 are decoded.
    """

    convert: Callable[[str], bytes]
    lead: Lead = "keep"
    strip: int = 0
    errors: str = PER_BYTE
    mark: str = _SPACE


@dataclass(frozen=True, slots=True)
class Table:
    """`full`: pieces of all ids; `plain`: the same with special tokens empty; ids in gaps are empty in both.

    `spaces`: for the lead "remove", how tokens with real spaces look there.
    """

    full: Pieces
    plain: Pieces
    rule: Rule
    spaces: dict[int, bytes]


def build_table(tokenizer: Any, vocabulary: Mapping[str, int]) -> Table | None:
    """Return the table of a `tokenizers.Tokenizer`, or None when its decoder works on more than single tokens.

    `vocabulary`: all of it, added tokens too; getting it takes a while, so the caller does it once.
    """
    if tokenizer.decoder is None:
        return None
    rule = _rule(json.loads(tokenizer.decoder.__getstate__()))
    if rule is None:
        return None
    full = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        full[index] = rule.convert(token)
    plain = full.copy()
    for index, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and index < len(plain):
            plain[index] = b""
    real = {index: token for token, index in vocabulary.items() if " " in token} if rule.lead == "remove" else {}
    spaces = {index: rule.convert(token.replace(rule.mark, "")) for index, token in real.items()}
    return Table((full, [None] * len(full)), (plain, [None] * len(full)), rule, spaces)


def _rule(decoder: dict[str, Any]) -> Rule | None:
    kind = decoder.get("type")
    steps: list[dict[str, Any]] = decoder.get("decoders", []) if kind == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return Rule(_byte_level, errors="replace")
    if kinds == ["Metaspace"]:
        step = steps[0]
        lead: Lead = "keep" if step.get("prepend_scheme", "always") == "never" else "remove"
        mark = step.get("replacement", _SPACE)
        return Rule(_spaced(mark, byte_fallback=False), lead, mark=mark)
    return _sentencepiece(steps, kinds)


def _sentencepiece(steps: list[dict[str, Any]], kinds: list[Any]) -> Rule | None:
    """Replace and ByteFallback in either order, Fuse, and perhaps Strip at the start of the fused text."""
    strip = 0
    if kinds and kinds[-1] == "Strip":
        last = steps[-1]
        if last.get("content") != " " or last.get("stop") or "Fuse" not in kinds[:-1]:
            return None
        strip, steps, kinds = int(last.get("start", 0)), steps[:-1], kinds[:-1]
    if kinds not in (["Replace", "ByteFallback", "Fuse"], ["ByteFallback", "Replace", "Fuse"], ["Replace", "Fuse"]):
        return None
    replace = steps[kinds.index("Replace")]
    pattern = replace.get("pattern")
    text = cast(dict[str, Any], pattern).get("String") if isinstance(pattern, dict) else None
    if not text or replace.get("content") != " ":
        return None
    convert = _spaced(text, byte_fallback="ByteFallback" in kinds)
    return Rule(convert, "strip" if strip else "keep", strip)


def _spaced(mark: str, *, byte_fallback: bool) -> Callable[[str], bytes]:
    def convert(token: str) -> bytes:
        if byte_fallback and len(token) == 6 and _BYTE.fullmatch(token):
            return bytes((int(token[3:5], 16),))
        return token.replace(mark, " ").encode("utf-8", "replace")

    return convert


# Byte-level BPE's letters are a character set: printable bytes stand for themselves, others from U+0100 up.
_OTHERS = [byte for byte in range(256) if byte not in {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}]
_LETTERS = [chr(0x100 + _OTHERS.index(byte)) if byte in _OTHERS else chr(byte) for byte in range(256)]
_ALPHABET = codecs.charmap_build("".join(_LETTERS))


def _byte_level(token: str) -> bytes:
    """A token with a letter outside the alphabet (an added token with a space, say) is the text it shows."""
    try:
        return codecs.charmap_encode(token, "strict", _ALPHABET)[0]
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")
