"""What the mocker answers where a request asks for a form: ids that the form allows, chosen by the mocker's noise.

They depend on the prompt, the seed, the form and the position alone, so another mocker that has read the first ids
continues with the same ones. Noise would not end a string or a list for long, so now and then, and more often as the
answer grows, what closes something is preferred.
"""

from collections.abc import Callable, Sequence

from xxhash import xxh3_64_intdigest

from dynamod.message import tokens
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.structured.matcher import Matcher
from dynamod.structured.vocabulary import Vocabulary
from dynamod.transport.base import Reply

BRACKETS = (b"}", b"]", b")")
"""Tokens that close something where only one of them may come; else they are part of a string."""
MARKS = (b'"', b",", b":")
"""Tokens that bring that nearer, the best ones first."""
RUN = 5
"""Tokens without one of these after which one is taken, if it may come."""
FEW = 64
"""Ids that may come of which each is as likely as another; of more, those after gaps are likelier."""
LONG = 200
"""Position from which on one is taken whenever it may come, and the answer ends when it may."""
THOUGHT = 12
"""Ids of noise as reasoning, where the form follows that."""
_PLACEHOLDER = tokens.pack((0,))


class Preferences:
    """What to choose among allowed ids of a vocabulary, whose `eos_ids` are never chosen. Made in a thread.

    `brackets`, `marks`: the ids of these; `closing`: of both. As numbers with one bit per id: `readable`, whose text is
    printable ASCII without backslash and more than spaces; `others`, that do not end an answer.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = vocabulary.pieces
        single = {pieces[index]: index for index in range(len(pieces) - 1, -1, -1) if len(pieces[index]) == 1}
        self.brackets = [single[piece] for piece in BRACKETS if piece in single]
        self.marks = [single[piece] for piece in MARKS if piece in single]
        self.closing = frozenset((*self.brackets, *self.marks))
        bits = bytearray(len(pieces) // 8 + 1)
        for index, piece in enumerate(pieces):
            if piece.strip() and piece.isascii() and piece.decode().isprintable() and b"\\" not in piece:
                bits[index >> 3] |= 1 << (index & 7)
        self.readable = int.from_bytes(bits, "little")
        self.others = ((1 << len(pieces)) - 1) & ~sum([1 << index for index in vocabulary.eos_ids])

    def choose(self, mask: bytes, noise: int, run: int, position: int) -> int | None:
        """The next id; None: only the end may come. `run`: ids since the last one that closes something."""
        allowed = int.from_bytes(mask, "little") & self.others
        if not allowed:
            return None
        if run >= RUN or position >= LONG or noise & 3 == 0:
            brackets = [index for index in self.brackets if allowed >> index & 1]
            if len(brackets) == 1:
                return brackets[0]
            for index in self.marks:
                if allowed >> index & 1:
                    return index
        return _pick(allowed & self.readable or allowed, noise >> 2)


def _pick(bits: int, noise: int) -> int:
    """The place of a bit that is set; of a few each is as likely as another."""
    count = bits.bit_count()
    if count <= FEW:
        for _ in range(noise % count):
            bits &= bits - 1
        return (bits & -bits).bit_length() - 1
    shift = noise % bits.bit_length()
    behind = bits >> shift << shift
    return (behind & -behind).bit_length() - 1


class ConstrainedIds:
    """One answer with a form, as `output.OutputIds`. It is one id ahead of what has been asked for.

    So the id that ends it is known before it is computed: `ended` with the last of `ids`. `error`: why it broke off,
    instead of the last id. `empty`: there is nothing to say, and the last id only stands for that.
    """

    __slots__ = (
        *("_closing", "_key", "_mask", "_matcher", "_min", "_preferences", "_run", "empty", "ended", "error", "ids"),
    )

    def __init__(
        self,
        key: bytes,
        matcher: Matcher,
        preferences: Preferences,
        prior: Sequence[int] = (),
        min_tokens: int = 0,
        closing: Sequence[int] = (),
    ) -> None:
        """`key`: of the noise; `prior`: ids that another instance has generated; `closing`: of the marker that ends the
        reasoning in front. Raises EngineFailed.
        """
        self._closing = closing
        self._key, self._matcher, self._preferences, self._min = key, matcher, preferences, min_tokens
        self.ids: list[bytes] = []
        self.ended = self.empty = False
        self.error: RequestError | None = None
        self._run = 0
        self._mask = b""
        for index in prior:
            self._add(index)
        self._look()
        if self.ended:
            self.empty = True
            self.ids.append(_PLACEHOLDER)

    def reach(self, count: int) -> None:
        """Make at least the first `count` ids, unless it ends before."""
        while len(self.ids) < count and not self.ended:
            try:
                self._next()
            except EngineFailed as error:
                self.error, self.ended = error, True
                self.ids.append(_PLACEHOLDER)

    def _next(self) -> None:
        position = len(self.ids)
        noise = xxh3_64_intdigest(self._key + position.to_bytes(8, "little"))
        index = self._preferences.choose(self._mask, noise, self._run, position)
        if 0 <= (place := position - THOUGHT) < len(self._closing):
            wanted = self._closing[place]
            index = wanted if self._mask[wanted >> 3] >> (wanted & 7) & 1 else index  # noise may have ended it before
        assert index is not None, "_look has seen one"
        self._add(index)
        self._look()

    def _add(self, index: int) -> None:
        self._matcher.accept(index)
        self._run = 0 if index in self._preferences.closing else self._run + 1
        self.ids.append(tokens.pack((index,)))

    def _look(self) -> None:
        """Whether the answer ends here, and if not, what may come next. Depends on its ids alone."""
        matcher, count = self._matcher, len(self.ids)
        if matcher.must_end:
            self.ended = True
            return
        if matcher.may_end and count and count >= self._min:
            noise = xxh3_64_intdigest(self._key + count.to_bytes(8, "little") + b"end")
            if self._run >= RUN or count >= LONG or noise & 3 == 0:
                self.ended = True
                return
        self._mask = matcher.mask()
        self.ended = self._preferences.choose(self._mask, 0, 0, 0) is None


def sender(reply: Reply, output: ConstrainedIds, begun: int, ends: Callable[[int], None]) -> Callable[..., None]:
    """What sends the ids of an answer instead of `reply.tokens`, each once, and makes the one after it.

    `begun`: ids of another instance. `ends(count)`: the answer of this one has so many ids.
    """
    sent = begun

    def look() -> None:
        if output.ended:
            ends(len(output.ids) - begun)

    def send(ids: bytes, count: int, finish: str | None) -> None:
        nonlocal sent
        sent += count
        if not output.ended:
            output.reach(sent + 1)
            look()
        elif sent >= len(output.ids):
            if output.error is not None:
                reply.raised(output.error)
                return
            ids, count, finish = (b"", 0, "stop") if output.empty else (ids, count, "stop")
        reply.tokens(ids, count, finish)

    output.reach(begun + 1)
    look()
    return send
