"""Incremental detokenisation: ids in as they come, text out, never half a character.

`make_decoder` picks by what the tokenizer is; all three kinds have `push`, `token` and `flush`. One decoder serves one
answer. Ids that the vocabulary lacks decode to nothing.
"""

import functools
from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from typing import Any

from .table import Table


class TableDecoder:
    """Bytes by table, then UTF-8. The hot path of every token that is served: keep it to a few operations.

    Bytes that can no longer become a character show as U+FFFD at once; complete characters are shown as they come. (The
    reference decoder of SentencePiece style takes a run of byte tokens together and turns all of it into U+FFFD when
    any of it is wrong; an answer that is shown as it grows cannot, and would not want to.) `texts` remembers what ids
    that are whole characters decode to.
    """

    __slots__ = ("_errors", "_piece", "_pieces", "_tail", "_texts")

    def __init__(self, pieces: list[bytes], texts: list[str | None], errors: str) -> None:
        self._pieces = pieces
        self._texts = texts
        self._piece = pieces.__getitem__
        self._errors = errors
        self._tail = b""

    def push(self, ids: Sequence[int]) -> str:
        """Return the characters that `ids` complete."""
        try:
            data = self._piece(ids[0]) if len(ids) == 1 else b"".join(map(self._piece, ids))
        except IndexError:
            # Models pad their vocabulary: they can produce ids that no token has.
            data = b"".join([self._pieces[index] for index in ids if index < len(self._pieces)])
        if self._tail:
            data = self._tail + data
        text, used = utf_8_decode(data, self._errors)
        self._tail = data[used:]
        return text

    def token(self, index: int) -> str:
        """`push` of one id."""
        if self._tail:
            return self.push((index,))
        try:
            text = self._texts[index]
        except IndexError:
            return ""
        if text is None:
            text = self.push((index,))
            if not self._tail:
                self._texts[index] = text
        return text

    def flush(self) -> str:
        """Return U+FFFD for a character that was never completed."""
        text, _ = utf_8_decode(self._tail, self._errors, True)
        self._tail = b""
        return text


class LeadDecoder(TableDecoder):
    """Also takes away the space that SentencePiece puts before a text."""

    __slots__ = ("_open", "_remove", "_spaces", "_strip")

    def __init__(self, pieces: list[bytes], texts: list[str | None], table: Table) -> None:
        super().__init__(pieces, texts, table.rule.errors)
        self._spaces = table.spaces
        self._remove = table.rule.lead == "remove"
        self._strip = table.rule.strip
        self._open = True  # nothing has been shown yet

    def push(self, ids: Sequence[int]) -> str:
        """Return the characters that `ids` complete, without the space at the very start."""
        if not self._open:
            return super().push(ids)
        return self._first_token(ids) if self._remove else self._stripped(super().push(ids))

    def token(self, index: int) -> str:
        """`push` of one id."""
        return self.push((index,)) if self._open or self._tail else super().token(index)

    def flush(self) -> str:
        """Return U+FFFD for a character that was never completed."""
        return self._stripped(super().flush()) if self._open and not self._remove else super().flush()

    def _stripped(self, text: str) -> str:
        rest = text[: self._strip].lstrip(" ") + text[self._strip :]
        self._strip -= len(text) - len(rest)
        self._open = not rest and self._strip > 0
        return rest

    def _first_token(self, ids: Sequence[int]) -> str:
        """The first token that is not skipped loses all its spaces (the rule of the Metaspace decoder)."""
        for position, index in enumerate(ids):
            if index < len(self._pieces) and self._pieces[index]:
                self._open = False
                first = self._spaces.get(index) or self._pieces[index].replace(b" ", b"")
                return first.decode("utf-8", "replace") + super().push(ids[position + 1 :])
        return ""


class StreamDecoder:
    """Over the stream of `tokenizers`, for decoders that no table can express (WordPiece, CTC, none at all)."""

    __slots__ = ("_new", "_pending", "_reference", "_skip", "_stream")

    def __init__(self, reference: Any, skip_special: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._reference = reference
        self._skip = skip_special
        self._new = functools.partial(DecodeStream, skip_special_tokens=skip_special)
        self._stream = self._new()
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Return the characters that `ids` complete."""
        texts: list[str] = []
        for index in ids:
            self._pending.append(index)
            try:
                text = self._stream.step(self._reference, index)
            except Exception:  # it has no class of its own: what is shown already would now be decoded otherwise
                text = self._begin_again()
            if text is not None:
                self._pending.clear()
                texts.append(text)
        return "".join(texts)

    def token(self, index: int) -> str:
        """`push` of one id."""
        return self.push((index,))

    def _begin_again(self) -> str:
        """What the pending tokens show on their own. The last one stays, for the spaces after it."""
        self._stream = self._new()
        if self._stream.step(self._reference, self._pending[-1]) is None:
            self._stream = self._new()
        return str(self._reference.decode(self._pending, skip_special_tokens=self._skip))

    def flush(self) -> str:
        """Return what the last tokens show when nothing follows them."""
        pending, self._pending = self._pending, []
        return self._reference.decode(pending, skip_special_tokens=self._skip) if pending else ""


Decoder = TableDecoder | StreamDecoder


def make_decoder(table: Table | None, reference: Any, *, skip_special: bool, continuing: bool) -> Decoder:
    """Return a new decoder. `continuing`: the ids follow other text, so a space at the start belongs to the answer."""
    if table is None:
        return StreamDecoder(reference, skip_special)
    pieces, texts = table.plain if skip_special else table.full
    if table.rule.lead == "keep" or continuing:
        return TableDecoder(pieces, texts, table.rule.errors)
    return LeadDecoder(pieces, texts, table)
