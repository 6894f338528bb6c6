"""The bytes of a model's ids, as llguidance takes them."""

from collections.abc import Sequence
from typing import Any, Protocol

from llguidance import LLTokenizer, TokenizerWrapper

from dynamod.message.errors import EngineFailed

SPECIAL = b"\xff"
"""In front of the text of a special token, which no form allows: this byte is no text."""


class Encodes(Protocol):
    """The tokenizer of a model."""

    def pieces(self, special: bytes) -> list[bytes] | None:
        """The bytes of all ids, with `special` in front of special tokens; None: it has no such table."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""


class Vocabulary:
    """`pieces`: by id, with `SPECIAL` in front of special tokens; empty for ids without one. `eos_ids`: end answers.

    `tokenizer`: the same for llguidance. Making it takes up to a second for 150,000 ids. Raises EngineFailed.
    """

    def __init__(self, model: Encodes, eos_ids: Sequence[int]) -> None:
        pieces = model.pieces(SPECIAL)
        if pieces is None:
            raise EngineFailed("the tokenizer of this model does not say which bytes its tokens are")
        self.pieces = pieces
        self.eos_ids = frozenset(index for index in eos_ids if index < len(self.pieces))
        for index in self.eos_ids:
            if not self.pieces[index].startswith(SPECIAL):
                self.pieces[index] = SPECIAL + self.pieces[index]
        end = sorted(self.eos_ids)
        if not end:  # llguidance needs one
            end = [len(self.pieces)]
            self.pieces.append(SPECIAL + b"<end>")
        self._encode = _Pieces(self.pieces, end[0], model)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self._encode), eos_token=end)

    def encode(self, text: str) -> list[int]:
        """Ids whose bytes are this text."""
        return self._encode(text)


class _Pieces:
    """What llguidance reads of a tokenizer, and how it encodes text that a grammar leaves no choice about."""

    bos_token_id = None

    def __init__(self, pieces: list[bytes], eos_id: int, model: Encodes) -> None:
        self.tokens = pieces
        self.eos_token_id = eos_id
        self.special_token_ids = [index for index, piece in enumerate(pieces) if piece.startswith(SPECIAL)]
        self._model = model
        self._ids = {piece: index for index, piece in enumerate(pieces) if piece and not piece.startswith(SPECIAL)}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: Any) -> list[int]:
        """As the model's tokenizer does it, unless that puts a space in front or finds special tokens in it."""
        if not isinstance(text, str):
            raise TypeError("not bytes")
        data, tokens = text.encode(), self.tokens
        ids = self._model.encode(text)
        return ids if b"".join([tokens[index] for index in ids]) == data else self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest tokens from the left on, as far as there are any."""
        ids: list[int] = []
        while data:
            for length in range(min(self._longest, len(data)), 0, -1):
                if (index := self._ids.get(data[:length])) is not None:
                    break
            else:
                return ids
            ids.append(index)
            data = data[length:]
        return ids
