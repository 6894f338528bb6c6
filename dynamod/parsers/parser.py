"""One parser per choice: text in pieces becomes reasoning, content and calls, in order."""

from collections.abc import Callable, Sequence

from .calls import Calls, long_id
from .grammars import grammar_class
from .grammars.base import Grammar
from .markers import Markers, markers
from .reader import Ended, Malformed, Reader, Steps
from .segments import Arguments, CallStart, Content, Reasoning, Segment, ToolSpec
from .thinking import Thinking, suffix_of, thinking_of
from .thought import Thought
from .words import words_of

MOST_UNDONE_CHARS = 16_384
"""Characters of an answer that are searched for calls once more: each stood after an opening marker and was no call.

More than that is content without a second look: else N opening markers would have the text after them read N times.
"""

TURN_CHARS = 8192
"""Characters that one turn of an event loop reads at most, about 10 ms: after these, other streams are served."""

_NOTHING = Thinking((), ())


class OutputParser:
    """Feed it all text of a choice, then finish it. The same text gives the same result however it is cut.

    `reasoning`: whether the text that has been fed ends inside of reasoning. `reasons`: whether it looks for any.
    """

    __slots__ = (
        *("_calls", "_grammar", "_kind", "_lead", "_near", "_over", "_plain", "_reader"),
        *("_steps", "_thinking", "_undone", "_words"),
        *("reasoning", "reasons"),
    )

    def __init__(
        self,
        grammar: type[Grammar] | None,
        thinking: Thinking,
        tools: Sequence[ToolSpec],
        seed: str,
        inside: bool,
        special: Sequence[str],
    ) -> None:
        self._reader = Reader()
        self._calls = Calls(self._reader, tools, seed, grammar.identify if grammar is not None else long_id)
        self._grammar = grammar(self._reader, self._calls) if grammar is not None else None
        self._thinking = thinking
        self.reasons = bool(grammar.channels if grammar is not None else False) or bool(
            thinking.closings and not thinking.append
        )
        self.reasoning = inside
        self._kind: type[Content | Reasoning] = Content
        self._near: Callable[[str], object] | None = (
            None  # set while text without a marker's first character needs no look at it
        )
        self._lead = ""  # white space that is content if text follows it
        self._undone = 0  # characters that were read once more
        self._plain = 0  # the position up to which an opening marker begins no call
        self._over = False
        self._words = words_of(self._grammar, thinking, special)
        self._steps = self._run(inside)
        next(self._steps)

    def keep_calls(self, *, pieces: bool) -> None:
        """A broken call stays, for clients that get one: its arguments are the text that the model wrote.

        `pieces`: they get arguments as they come, so that a call which the limit cuts off stays, too.
        """
        calls, ends = self._calls, self._grammar.call_ends() if self._grammar is not None else ()
        calls.rules = calls.rules._replace(stays=True, pieces=pieces)
        calls.certain.ends = markers(*ends) if ends else None

    def begin(self, text: str) -> None:
        """The prompt ends with this, and the answer continues from there. A call that it begins is the answer's."""
        self._calls.out = [segment for segment in self.feed(text) if isinstance(segment, CallStart | Arguments)]

    @property
    def waiting(self) -> int:
        """Characters that a call with `most` has left unread."""
        return self._reader.waiting

    def feed(self, text: str, most: int | None = None) -> list[Segment]:
        """What the next piece of text completes.

        `most`: about as many characters are read in this call; `waiting` says how many are left, which
        `feed("", most)` reads next.
        """
        near = self._near
        if near is not None and near(text) is None:
            return [self._kind(text)] if text else []
        reader = self._reader
        if not reader.ended:
            if text and reader.take(text):
                return self._step(most)
            reader.give(text)
        return self._read(most)

    def finish(self, reason: str = "stop", most: int | None = None) -> list[Segment]:
        """What the end of the text completes. `reason`: why it ended; "stop" is the model's own end. `most`: as fed."""
        if self._reader.ended:
            return []
        self._calls.reason = reason
        self._reader.end()
        return self._read(most)

    def _read(self, most: int | None) -> list[Segment]:
        reader, spent = self._reader, 0
        while not self._over:
            spent += reader.advance()
            self._near = None
            self._over = next(self._steps, self) is self
            assert self._over or not reader.closed, "a grammar waits after the end of the text"
            if not reader.waiting or (most is not None and spent >= most):
                break
        if reader.waiting:
            self._near = None  # the next piece of text has to wait for what is left
        out, self._calls.out = self._calls.out, []
        return out

    def _step(self, most: int | None) -> list[Segment]:
        """As `_read`, for a text that one step reads."""
        if not self._over:
            self._near = None
            self._over = next(self._steps, self) is self
            if self._reader.waiting:
                return self._read(most)
        out, self._calls.out = self._calls.out, []
        return out

    def _run(self, inside: bool) -> Steps[None]:
        grammar, thinking, reader, words = self._grammar, self._thinking, self._reader, self._words
        first = fresh = True
        late: tuple[str, ...] = ()  # markers that may follow a call
        thought = Thought(grammar, inside)
        if thinking.append:
            self._calls.text(Content, thinking.openings[0])
        while True:
            self.reasoning = thought.inside
            if first or fresh:
                yield from self._white(first)
            first = False
            if fresh and not thought.inside and grammar is not None and self._bare(grammar):
                fresh = bool((yield from self._region(grammar, "", thought)))
                if fresh:
                    self._lead = ""
                    late = grammar.closings
                    continue
            place, inside, after = reader.position, thought.inside, late
            then = words.reasoning if inside else words.content
            marker = yield from self._text(
                Reasoning if inside else Content, words.after_call if inside and late else then, late, then
            )
            late = ()
            if not marker:
                return
            fresh, at = True, reader.position - len(marker)
            if grammar is not None and marker in grammar.openings:
                read = False if at < self._plain else (yield from self._region(grammar, marker, thought))
                late = grammar.closings if read else ()
                fresh = read is not False
            elif grammar is not None and marker in words.inner:
                fresh = yield from self._within(grammar, marker, thought)
                late = grammar.closings if fresh else ()
            elif marker in thinking.openings:
                thought.mark(True)
            elif marker in thinking.closings:
                thought.mark(False)
            elif grammar is not None and marker in grammar.closings:
                thought.closing(marker, at)
                late = after if thought.inside and at == place else ()
            elif marker in thinking.around:
                thought.mark(False)
            else:
                fresh = False  # a special token: what is around it continues

    def _within(self, grammar: Grammar, word: str, thought: Thought) -> Steps[bool]:
        """Reads calls that begin with a word after text. False: text follows, or the word is text."""
        reader, lead, count = self._reader, self._lead, self._calls.count
        self._lead = ""
        if reader.position - len(word) >= self._plain:
            reader.back(word)
            if (yield from self._region(grammar, "", thought)) is not False:
                return True
            if self._calls.count > count:
                return False
            reader.cut(len(word))
        self._calls.text(Reasoning if thought.inside else Content, lead + word)
        return False

    def _bare(self, grammar: Grammar) -> bool:
        """Whether a call may begin here without a marker."""
        first, position = self._reader.held[:1], self._reader.position
        return first in tuple(grammar.bare) and position >= self._plain

    def _white(self, kept: bool) -> Steps[None]:
        """Reads white space. `kept`: it is content, unless a marker follows it."""
        reader, found = self._reader, list[str]()
        while True:
            rest = reader.held.lstrip()
            white = reader.cut(len(reader.held) - len(rest))
            if kept:
                found.append(white)
            if rest or reader.closed:
                self._lead += "".join(found)
                return
            yield

    def _text(
        self, kind: type[Content] | type[Reasoning], words: Markers, late: Sequence[str], then: Markers
    ) -> Steps[str]:
        """Passes text on up to a marker, and returns that; "" at the end of the text.

        `late`: markers of which the beginning alone is no text, where the text ends with it. `then`: the markers once
        there was text.
        """
        reader, out = self._reader, self._calls
        self._kind = kind
        while True:
            if reader.closed and any(word.startswith(reader.held) for word in late):
                return ""
            end, marker = words.find(reader.held, reader.closed)
            if end:
                out.text(kind, self._lead + reader.cut(end))
                self._lead = ""
                if words is not then:
                    words, late = then, ()
                    continue
            if marker:
                reader.cut(len(marker))
                self._lead = self._lead if marker in self._words.inner else ""
                return marker
            if reader.closed:
                out.text(kind, self._lead)
                return ""
            if not reader.held and not self._lead:
                self._near = words.near
            yield

    def _region(self, grammar: Grammar, opening: str, thought: Thought) -> Steps[bool | None]:
        """Reads calls after an opening marker. False: there were none, and the text continues without the marker.

        None: so it is, but one was broken, whose text is content.
        """
        reader, calls, count = self._reader, self._calls, self._calls.count
        reader.log, calls.another, self.reasoning = [], False, False
        read = yield from self._calls_of(grammar, opening)
        if read:
            thought.read(grammar, calls.count > count)
        elif read is None:
            thought.broken(self._plain)
        return read

    def _calls_of(self, grammar: Grammar, opening: str) -> Steps[bool | None]:
        reader, calls = self._reader, self._calls
        try:
            yield from grammar.read(opening)
        except Malformed:
            if calls.stays:
                yield from self._stays(grammar)
                return True
            if calls.open:
                self._broken(*self._end_of_call(grammar, reader.logged()), "malformed")
                return None
            calls.pending = False
            self._undo()
            return False
        except Ended:
            if not opening and not calls.open and calls.pending:
                calls.pending = False
                reader.cut(len(reader.held))
                self._undo()
                return False
            if calls.pending and not (calls.rules.keeps_cut and calls.reason == "length"):
                at, marker = self._end_of_call(grammar, reader.logged() + reader.held)
                # A text that is cut off may have markers in a string, unless they are special tokens.
                own = calls.reason == "stop" and (grammar.quoted or not calls.open)
                if own or (marker and marker in self._words.special):
                    if calls.stays:
                        yield from self._stays(grammar)
                        return True
                    reader.cut(len(reader.held))
                    self._broken(at, marker, "malformed" if marker else "truncated")
                    return None
            if calls.pending:
                calls.drop("truncated")
            reader.held = ""
        reader.log = None
        return True

    def _end_of_call(self, grammar: Grammar, text: str) -> tuple[int, str]:
        """Where the text of this region has the first end marker of the call, and which; "": it has none."""
        if not (ends := grammar.call_ends()):
            return len(text), ""
        front = len(self._reader.logged()) - (self._reader.position - self._calls.started)
        at, marker = markers(*ends).find(text[front:], closed=True)
        return front + at, marker

    def _broken(self, at: int, marker: str, why: str) -> None:
        """The call is none: its text is content up to its end marker, and what follows that is read again.

        Above a bound, calls are not looked for in what follows.
        """
        reader = self._reader
        self._calls.drop(why)
        end = reader.position
        reader.undo()
        self._plain = reader.position + at if marker else end
        self._undone += end - self._plain
        if self._undone > MOST_UNDONE_CHARS + 2 * end:
            self._plain = end

    def _stays(self, grammar: Grammar) -> Steps[None]:
        """The open call is broken, and stays: its text up to its end marker are its arguments."""
        reader, calls = self._reader, self._calls
        log, end = reader.logged(), reader.position
        begin = end - len(log)
        at, marker = self._end_of_call(grammar, log)
        if marker and begin + at < calls.certain.covered:
            held = calls.certain.held()
            rest = held[: markers(*grammar.call_ends()).find(held, closed=True)[0]]
        elif marker:
            rest = calls.certain.held() + log[calls.certain.covered - begin : at]
        else:
            rest, covered = calls.certain.held(), calls.certain.covered
            try:
                _, stop = yield from reader.until(*grammar.outer_ends())
                reader.back(stop)
            except Ended:
                reader.cut(len(reader.held))
            rest += reader.logged()[covered - begin : reader.position - begin]
        if marker:
            reader.undo(at)
            self._undone += end - reader.position
            self._plain = end if self._undone > MOST_UNDONE_CHARS + 2 * end else reader.position
        calls.broken("malformed", rest.rstrip())
        reader.log = None

    def _undo(self) -> None:
        """The text after an opening marker is unread again; above a bound, calls are not looked for in it."""
        reader = self._reader
        end = reader.position
        reader.undo()
        self._undone += end - reader.position
        if self._undone > MOST_UNDONE_CHARS:
            self._plain = end


def make_parser(
    tool: str | None,
    reasoning: str | None,
    tools: Sequence[ToolSpec] = (),
    *,
    seed: str = "",
    prompt: str = "",
    special: Sequence[str] = (),
) -> OutputParser:
    """The parser of one choice.

    `tool`, `reasoning`: names or aliases of a grammar and of reasoning markers; None: none. `seed`: what ids of calls
    are made of, unique per choice. `prompt`: the end of the rendered prompt, which says whether the text begins with
    reasoning. `special`: the tokenizer's special tokens, which are dropped. Raises UserError for an unknown name.
    """
    grammar = grammar_class(tool) if tool is not None else None
    thinking = thinking_of(reasoning) if reasoning is not None else _NOTHING
    if thinking.channels and (grammar is None or not grammar.channels):
        grammar = grammar_class(thinking.channels)  # channels have calls too: one parser owns both
    if grammar is not None and grammar.channels:
        thinking = _NOTHING
    if thinking.suffixes or (grammar is not None and grammar.suffixes):
        suffix = suffix_of(prompt, special)
        grammar, thinking = grammar.suffixed(suffix) if grammar is not None else None, thinking.suffixed(suffix)
    inside = not thinking.append and thinking.begins_inside(prompt)
    parser = OutputParser(grammar, thinking, tools, seed, inside, special)
    if grammar is not None and (begun := grammar.begun(prompt)):
        parser.begin(begun)
    return parser


def keeping_cut(parser: OutputParser) -> OutputParser:
    """The parser, for an answer that is calls alone: what it has of a call is kept when the limit cuts it off.

    A call whose name is known keeps the arguments as far as they came. Else the text is content.
    """
    calls = parser._calls
    calls.rules = calls.rules._replace(keeps_cut=True)
    return parser
