"""From an engine's deltas to the text a client sees: detokenising, stop tokens, stop strings, limits.

`Output` is for token engines, `TextOutput` for text engines. One object serves one answer, called by the stream's sink:

    text = output.push(ids)          # what to send now, perhaps ""
    if output.finish: ...            # "stop" or "length": over; cancel the engine if it continues
    text = output.end("stop")        # the engine has ended: what was held back
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from dynamod.message.worker import Stops

from .tokenizer import Tokenizer


class StopMatcher:
    """Finds the first stop string in a text given piece by piece; the answer does not depend on where it was cut.

    The match that ends first wins; of matches that end at the same character, the longest one does, so that the most
    is hidden. Text that may be the start of a stop string is held back until the next pieces decide: never more than
    the longest proper prefix of a stop string that the text ends with. `include` shows the stop string itself.
    """

    __slots__ = ("_first", "_held", "_include", "_last", "_longest", "_stops", "found")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        # A held text starts with a first character of a stop string and ends with one that is not its last.
        self._first = frozenset(stop[0] for stop in self._stops)
        self._last = frozenset("".join(stop[:-1] for stop in self._stops))
        self._include = include
        self._held = ""
        self.found: str | None = None  # the stop string that was there

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to show now and whether a stop string was found (then nothing follows)."""
        if not self._stops:
            return text, False
        if self._held:
            text = self._held + text
        for stop in self._stops:
            if stop in text:
                end, start = min([(start + len(one), start) for one in self._stops if (start := text.find(one)) >= 0])
                self._held, self.found = "", text[start:end]
                return text[: end if self._include else start], True
        if not text or text[-1] not in self._last:
            self._held = ""
            return text, False
        cut = self._cut(text)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """Return what is held back: the text has ended without the rest of a stop string."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> int:
        """Where the longest end of `text` begins that is a proper prefix of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first:
                tail = text[start:]
                for stop in self._stops:
                    if len(stop) > len(tail) and stop.startswith(tail):
                        return start
        return len(text)


class BaseOutput:
    """What both kinds keep of one answer: its limits and why it is over."""

    __slots__ = ("_limit", "_matcher", "_min", "completion_tokens", "finish")

    def __init__(self, stops: Stops, *, include_stop: bool = False) -> None:
        self._matcher = StopMatcher(stops.stop, include=include_stop) if stops.stop else None
        self._limit = sys.maxsize if stops.max_tokens is None else stops.max_tokens
        self._min = stops.min_tokens or 0
        self.completion_tokens = 0
        self.finish: str | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string that has ended the answer, if one has."""
        return self._matcher.found if self._matcher is not None else None

    def token(self, index: int) -> str:
        """`push` of one id after which the engine continues."""
        return self.push((index,))

    def push(self, ids: Sequence[int], engine_finish: str | None = None) -> str:
        """Text for new ids. Raises TypeError where the engine sends text."""
        raise TypeError("an engine of another kind sent token ids")

    def push_text(self, text: str, tokens: int = 0, engine_finish: str | None = None) -> str:
        """Text to show for new text. Raises TypeError where the engine sends token ids."""
        raise TypeError("an engine of another kind sent text")

    def end(self, finish: str) -> str:
        """The engine has ended the answer: return what was held back. The first reason to finish stays."""
        if self.finish is not None:
            return ""
        self.finish = finish
        return self._rest()

    def _rest(self) -> str:
        """What no later token can complete: the start of a stop string."""
        return self._matcher.flush() if self._matcher is not None else ""


class Output(BaseOutput):
    """What the ingress applies to one answer's tokens.

    Rules: nothing ends an answer before `min_tokens` tokens but the engine itself; then a hidden stop token (the
    model's EOS, unless `ignore_eos`) or a stop string ends it with "stop", `max_tokens` with "length". Stop tokens and
    stop strings are not shown (`include_stop` shows the string). The token that ends the answer counts in
    `completion_tokens`, as in vLLM; tokens after it do not. When the engine gives a reason with the token that reaches
    `max_tokens`, its reason stays: it may stop at tokens that only it knows.
    """

    __slots__ = ("_decoder", "_push", "_simple", "_stop_ids", "_token")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Stops,
        eos_token_ids: Iterable[int] = (),
        *,
        skip_special: bool = True,
        continuing: bool = False,
        include_stop: bool = False,
    ) -> None:
        super().__init__(stops, include_stop=include_stop)
        self._decoder = tokenizer.decoder(skip_special, continuing=continuing)
        self._push = self._decoder.push
        self._token = self._decoder.token
        eos = () if stops.ignore_eos else tuple(eos_token_ids)
        self._stop_ids = frozenset((*stops.stop_token_ids_hidden, *eos))
        self._simple = self._limit if self._matcher is None else 0  # fewer tokens than this end only by a stop token

    def token(self, index: int) -> str:
        """`push` of one id after which the engine continues: the hot path."""
        total = self.completion_tokens + 1
        if total < self._simple and index not in self._stop_ids and self.finish is None:
            self.completion_tokens = total
            return self._token(index)
        return self.push((index,))

    def push(self, ids: Sequence[int], engine_finish: str | None = None) -> str:
        """Return the text to send for new tokens; sets `finish` when the answer is over.

        `engine_finish`: the engine's reason, when these are its last tokens. `end` is to be called all the same.
        """
        total = self.completion_tokens + len(ids)
        if total < self._limit and self._stop_ids.isdisjoint(ids) and self.finish is None:
            if self._matcher is None:
                self.completion_tokens = total
                return self._push(ids)
            if len(ids) == 1 and total >= self._min:
                self.completion_tokens = total
                text, found = self._matcher.push(self._push(ids))
                if found:
                    self.finish = "stop"
                return text
        text = "".join([self._one(index) for index in ids if self.finish is None])
        if engine_finish is not None and self.finish == "length" and self.completion_tokens == total:
            self.finish = engine_finish
        return text

    def _one(self, index: int) -> str:
        """One token with every check, in the order of the rules."""
        self.completion_tokens += 1
        checking = self.completion_tokens >= self._min
        if checking and index in self._stop_ids:
            self.finish = "stop"
            return self._rest()
        text = self._push((index,))
        if checking and self._matcher is not None and text:
            text, found = self._matcher.push(text)
            if found:
                self.finish = "stop"
                return text
        if self.completion_tokens >= self._limit:
            self.finish = "length"
            return text + self._rest()
        return text

    def _rest(self) -> str:
        """Also the rest of a character."""
        text = self._decoder.flush()
        if self._matcher is None:
            return text
        visible, found = self._matcher.push(text)
        return visible if found else visible + self._matcher.flush()


class RecordedOutput(Output):
    """An output that keeps the ids of the answer, as many as count in `completion_tokens`. `ids` grows with them."""

    __slots__ = ("ids",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ids: list[int] = []

    def token(self, index: int) -> str:
        """`push` of one id after which the engine continues: the hot path."""
        total = self.completion_tokens + 1
        if total < self._simple and index not in self._stop_ids and self.finish is None:
            self.completion_tokens = total
            self.ids.append(index)
            return self._token(index)
        return self.push((index,))

    def push(self, ids: Sequence[int], engine_finish: str | None = None) -> str:
        """As an `Output`."""
        before = self.completion_tokens
        text = super().push(ids, engine_finish)
        self.ids += ids[: self.completion_tokens - before]
        return text


class TextOutput(BaseOutput):
    """The same for engines that answer in text. `max_tokens` can only be kept to a delta: its text cannot be cut."""

    __slots__ = ()

    def push_text(self, text: str, tokens: int = 0, engine_finish: str | None = None) -> str:
        """Return the text to send for a delta of `tokens` tokens; sets `finish` when the answer is over.

        `engine_finish`: the engine's reason, when this is its last delta; only a stop string comes before it.
        """
        if self.finish is not None:
            return ""
        self.completion_tokens += tokens
        if self._matcher is not None and self.completion_tokens >= self._min:
            text, found = self._matcher.push(text)
            if found:
                self.finish = "stop"
                return text
        if engine_finish is not None:
            return text + self.end(engine_finish)
        if self.completion_tokens >= self._limit:
            return text + self.end("length")
        return text
