"""Calls whose parameters come one by one: their arguments are written as a JSON object, one parameter at a time."""

from typing import NamedTuple

from ..calls import Calls
from ..reader import Emit, Ended, Reader, Steps
from ..typed import kinds, member, quoted, typed


class Parameters:
    """The arguments of one call; `schema` is that of its tool.

    A second value for a name is left out: JSON objects have a name once.
    """

    def __init__(self, calls: Calls, name: str, given: str = "") -> None:
        self._calls = calls
        self.schema = calls.tools.get(name, {})
        self._seen: set[str] = set()
        self._sent = 0  # characters of the parameter that is being read
        calls.start(name, given)

    def add(self, name: str, text: str) -> None:
        """A parameter as the model wrote it, typed by the tool's schema."""
        if name not in self._seen:
            self.add_json(name, typed(text, self.schema, name))

    def add_json(self, name: str, value: str) -> None:
        """A parameter whose value is JSON text."""
        if name not in self._seen:
            text = self._front(name) + value
            self._calls.arguments(text[self._sent :])
            self._seen.add(name)
            self._sent = 0

    def certain(self, name: str, *, known: bool) -> bool:
        """Whether a parameter is a string in any case, and may come in pieces. `known`: the format says so."""
        if name in self._seen or not self._calls.rules.stays:
            return False
        return known or kinds(member(self.schema, name, self.schema), self.schema) == {"string"}

    def string(self, name: str, *, lines: bool = False, filled: bool = False, known: bool = False) -> "Pieces | None":
        """What takes the pieces of a parameter that is a string in any case, before `add`; None: it may be another.

        `lines`, `filled`: as of `Pieces`. `known`: the format says that it is a string.
        """
        return Pieces(self, name, lines=lines, filled=filled) if self.certain(name, known=known) else None

    def more(self, name: str, text: str, unread: int = 0) -> None:
        """A piece of a string. `unread`: as of `Calls.arguments`."""
        piece = quoted(text)[1:-1]
        if not self._sent:
            piece = f'{self._front(name)}"{piece}'
        self._sent += len(piece)
        self._calls.arguments(piece, unread)

    def _front(self, name: str) -> str:
        return f"{', ' if self._seen else '{'}{quoted(name)}: "

    def done(self) -> None:
        """The call is complete."""
        self._calls.arguments("}" if self._seen else "{}")
        self._calls.done()

    def unclosed(self) -> Ended:
        """The text is over between two parameters: the call is complete if the model has ended it itself."""
        if self._calls.reason == "stop":
            self.done()
        return Ended()


class Pieces:
    """Passes a parameter's text on in pieces, as far as what follows cannot change them.

    `lines`: as `trimmed` does. `filled`: nothing before a character that is no white space.
    """

    def __init__(self, parameters: Parameters, name: str, *, lines: bool, filled: bool) -> None:
        self._parameters, self._name, self._lines = parameters, name, lines
        self._front: list[str] | None = []  # white space
        self._begins = not filled
        self._break = ""  # a line break that may be the last

    def __call__(self, text: str, unread: int = 0) -> None:
        """The next piece. `unread`: as of `Calls.arguments`."""
        if self._front is not None:
            self._front.append(text)
            if not text or not (self._begins or text.strip()):
                return
            text, self._front = "".join(self._front), None
            if self._lines:
                text = text.removeprefix("\n")
        text = self._break + text
        self._break = "\n" if self._lines and text.endswith("\n") else ""
        if text := text.removesuffix(self._break):
            self._parameters.more(self._name, text, unread + len(self._break))


def trimmed(text: str) -> str:
    """A value without the line break that formats write after the opening and in front of the closing marker."""
    return text.removeprefix("\n").removesuffix("\n")


class Stops(NamedTuple):
    """What ends a value: its closing tag `end`, or else one of the others, which stays unread.

    `after`: markers of the next parameter. `begins`: words of which one is in front of each value. `outer`: markers of
    the call's end, and of the next call.
    `then`: what may come after the closing tag of a value with a marker of `outer` in it; empty: anything. `closed`:
    where a limit ends the text, the first marker of `outer` ends the value if one of these words comes next, or nothing
    more; empty: it does not.
    """

    end: str
    after: tuple[str, ...]
    begins: tuple[str, ...]
    outer: tuple[str, ...]
    then: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def end_at(self, marker: str, rest: str) -> bool:
        """Whether a value ends at a marker of `outer`, where a limit has ended the text with `rest` after it."""
        rest = rest.lstrip()
        return marker == self.outer[0] and any(rest.startswith(word) or word.startswith(rest) for word in self.closed)


def tagged(reader: Reader, calls: Calls, stops: Stops, emit: Emit | None) -> Steps[str]:
    """A value up to its closing tag. `emit`: gets the text in pieces, as far as it is certain.

    A value may have a marker of `outer` in it. It ends there if another value begins before the closing tag, or if the
    model ends the text. No text is looked at for that more than once: in front of each value is one of `begins`.
    """
    text, stop = yield from reader.until(stops.end, *stops.after, *stops.outer, emit=emit)
    if stop == stops.end:
        return text
    if stop in stops.after:
        reader.back(stop)
        return text
    more = [stop]
    try:
        while True:
            _, last = yield from reader.until(stops.end, *stops.begins, *stops.after, emit=more.append)
            if last != stops.end or not stops.then or (yield from reader.follows(*stops.then)):
                break
            more.append(last)
    except Ended:
        if calls.reason != "stop" and not stops.end_at(stop, "".join((*more[1:], reader.held))):
            raise
        last = ""
    if last == stops.end:
        rest = "".join(more)
        if emit is not None:
            emit(rest)
        return text + rest
    reader.back("".join((*more, last)))
    return text
