"""Structural tags in tests: what their parts look like, and whether an answer keeps to one, however it is tokenised."""

import json
import random
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Grammar
from dynamod.structured.grammars import Grammars
from dynamod.structured.probe import _vocabulary, problem
from dynamod.structured.source import LIMITS, source

NUMBER: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANY: Any = {"type": "any_text"}
JSON: Any = {"type": "json_schema", "json_schema": NUMBER}
LONGEST = 14
"""Bytes of a token that has several."""
END = 256


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def without(*excludes: str, **more: Any) -> dict[str, Any]:
    return {"type": "any_text", "excludes": [*excludes], **more}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": [*elements]}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": [*elements]}


def several(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, "content": content, **more}


def grammar_of(form: Any, *behind: str) -> Grammar:
    value = form if "structures" in form else {"type": "structural_tag", "format": form}
    return Grammar("structural_tag", json.dumps(value), *behind)


@lru_cache(maxsize=4)  # one form is asked about many texts
def _at_its_beginning(grammar: Grammar) -> LLMatcher:
    assert problem(grammar) == ("", "")
    return LLMatcher(_vocabulary().tokenizer, source(grammar), log_level=0, limits=LIMITS)


def keeps(grammar: Grammar, text: str) -> bool:
    """Whether a text is an answer by the grammar, byte by byte."""
    matcher = _at_its_beginning(grammar).deep_copy()
    whole = list(text.encode())
    fits = matcher.validate_tokens(whole) == len(whole)
    matcher.consume_tokens(whole[: matcher.validate_tokens(whole)])
    return fits and matcher.is_accepting()


def walk(grammar: Grammar, chance: random.Random, length: int) -> tuple[str, bool]:
    """The beginning of an answer, of about so many bytes, and whether it may end there. ASCII where that may come."""
    matcher = LLMatcher(_vocabulary().tokenizer, source(grammar), log_level=0, limits=LIMITS)
    found = bytearray()
    while len(found) < length or found[-1] >= 128:
        mask = matcher.compute_bitmask()
        able = [byte for byte in (*b"<>{}[]ab1 \n/", *range(256)) if mask[byte >> 3] >> (byte & 7) & 1]
        able = [byte for byte in able if byte < 128] or able
        assert able or matcher.is_accepting(), "nothing may come"
        if not able or (matcher.is_accepting() and not chance.randrange(12)):
            break
        found.append(chance.choice(able))
        assert matcher.consume_token(found[-1])
    return found.decode(), matcher.is_accepting()


class _Parts:
    """A tokenizer with a token for each byte, and one for each part of a text."""

    def __init__(self, data: bytes) -> None:
        parts = {data[at : at + size] for at in range(len(data)) for size in range(2, LONGEST + 1)}
        self._pieces = [*[bytes((byte,)) for byte in range(256)], b"</s>"]
        self._pieces += sorted(part for part in parts if len(part) > 1)

    def pieces(self, special: bytes) -> list[bytes]:
        return [*self._pieces]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def keeps_by_tokens(grammar: Grammar, text: str, chance: random.Random, times: int) -> set[bool]:
    """The same token by token, for so many ways to cut the text into tokens.

    A mask has the token that is accepted, and not one that is refused; where one text alone may come it has only the
    token with which the tokenizer would begin that.
    """
    data = text.encode()
    grammars = Grammars(lambda: _Parts(data), [END])
    grammars.matcher(grammar)
    ids = {piece: index for index, piece in enumerate(grammars.vocabulary.pieces)}
    found: set[bool] = set()
    for _ in range(times):
        matcher, at, kept = grammars.matcher(grammar), 0, True
        while at < len(data) and kept:
            size = chance.choice((1, 2, 3, 5, LONGEST))
            index, mask = ids[data[at : at + size]], matcher.mask()
            forced = sum(byte.bit_count() for byte in mask) == 1
            try:
                matcher.accept(index)
            except EngineFailed:
                kept = False
            assert forced or bool(mask[index >> 3] >> (index & 7) & 1) == kept
            at += size
        found.add(kept and matcher.may_end)
    return found
