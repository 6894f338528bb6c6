"""Tags with attributes: `<invoke name="f">` and `<parameter name="p">`, as MiniMax M2 and others write them."""

import html
import re
from typing import ClassVar
from xml.sax.saxutils import unescape

from ..calls import Calls
from ..markers import markers
from ..reader import Emit, Ended, Malformed, Reader, Steps
from ..writing import Parameter, Writing
from .base import Grammar
from .json_calls import json_calls
from .parameters import Parameters, Pieces, Stops, tagged

_NAME = re.compile(r"""\b(?:name|tool|key)\s*=\s*(?:"([^"]*)(?:"|$)|'([^']*)(?:'|$)|([^\s"'>]+))""")
_ENTITIES = {"&quot;": '"', "&apos;": "'"}
_LONGEST_ENTITY = 6
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
LONGEST_TAG = 1000


class Minimax(Grammar):
    """`<minimax:tool_call><invoke name="f"><parameter name="p">value</parameter></invoke></minimax:tool_call>`.

    `call`, `parameter`: how their tags begin; `tag_end`: how tags end; `call_end`, `parameter_end`: their closing tags.
    `front`: words that may stand in front of a call, in this order. `outer`: markers that end a call whose closing tag
    is missing; empty: all closings do. `value_stops`: markers that no value has.
    """

    writing = Writing(
        '<invoke name="{name}">\n',
        "</invoke>\n",
        Parameter('<parameter name="{key}">', "</parameter>\n"),
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
    )
    openings: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "<invoke")
    closings: ClassVar[tuple[str, ...]] = ("</minimax:tool_call>", "</invoke>", "</parameter>", "<parameter")
    call: ClassVar[str] = "<invoke"
    parameter: ClassVar[str] = "<parameter"
    tag_end: ClassVar[str] = ">"
    call_end: ClassVar[str] = "</invoke>"
    parameter_end: ClassVar[str] = "</parameter>"
    front: ClassVar[tuple[str, ...]] = ()
    outer: ClassVar[tuple[str, ...]] = ()
    value_stops: ClassVar[tuple[str, ...]] = ()

    def __init__(self, reader: Reader, calls: Calls) -> None:
        super().__init__(reader, calls)
        self._stops = self.stops()

    def read(self, opening: str) -> Steps[None]:
        """The calls between the outer markers."""
        self.calls.begin()
        if opening != self.call and not (yield from self._next()):
            raise Malformed
        while True:
            self.calls.begin()
            tag, _ = yield from self.reader.until(self.tag_end, limit=LONGEST_TAG)
            yield from self.parameters(Parameters(self.calls, self.named(tag)))
            if not (yield from self._next()):
                return

    def _next(self) -> Steps[str]:
        for word in self.front:
            yield from self.reader.accept(word)
        return (yield from self.reader.accept(self.call))

    def parameters(self, parameters: Parameters) -> Steps[None]:
        """Those of one call, and its end."""
        reader = self.reader
        while True:
            try:
                word = yield from reader.expect(self.parameter, self.call_end, *(self.outer or self.closings))
            except Ended:
                raise parameters.unclosed() from None
            if word != self.parameter:
                break
            tag, _ = yield from reader.until(self.tag_end, limit=LONGEST_TAG)
            name = attribute(tag)
            self.add(parameters, name, tag, (yield from self.value(self.pieces(parameters, name, tag))))
        parameters.done()

    def named(self, tag: str) -> str:
        """The tool's name in a call's tag."""
        return attribute(tag)

    def pieces(self, parameters: Parameters, name: str, tag: str) -> Emit | None:
        """What takes the pieces of a parameter that is a string in any case. `tag`: its attributes."""
        return parameters.string(name)

    def value(self, emit: Emit | None) -> Steps[str]:
        """A parameter's text, up to its closing tag. `emit`: gets the text in pieces."""
        return (yield from tagged(self.reader, self.calls, self._stops, emit))

    @classmethod
    def stops(cls) -> Stops:
        """What ends a value."""
        after = cls.value_stops or tuple(f"{cls.parameter.rstrip()} {word}=" for word in ("name", "key"))
        outer = (cls.call_end, *(cls.outer or cls.closings), *cls.openings)
        return Stops(cls.parameter_end, after, (cls.parameter,), outer)

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter. `tag`: its attributes."""
        parameters.add(name, value)


class Dots(Minimax):
    """The tags of MiniMax M2, or a JSON object, between `<dots_function_call>` and `</dots_function_call>`."""

    writing = Minimax.writing._replace(front="<dots_function_call>\n", back="</dots_function_call>")
    openings = ("<dots_function_call>", "<invoke")
    closings = ("</dots_function_call>", *Minimax.closings[1:])

    def read(self, opening: str) -> Steps[None]:
        """The calls between the outer markers."""
        if opening != self.call:
            self.calls.begin()
            if (yield from self.reader.peek()) in "{[":
                yield from json_calls(self.reader, self.calls)
                return
        yield from super().read(opening)


class MiniCpm(Minimax):
    """`<function name="f"><param name="p">value</param></function>`: values are XML text or CDATA."""

    writing = Writing(
        '<function name="{name}">\n',
        "</function>",
        Parameter('<param name="{key}">', "</param>\n", '<param name="{key}"><![CDATA[', "]]></param>\n"),
        between="\n",
    )
    openings = ("<function ",)
    closings = ("</function>", "</param>", "<param ")
    call, parameter = "<function ", "<param "
    call_end, parameter_end = "</function>", "</param>"

    def pieces(self, parameters: Parameters, name: str, tag: str) -> Emit | None:
        """Of XML text, or of CDATA."""
        pieces = parameters.string(name)
        return XmlPieces(pieces) if pieces is not None else None

    def value(self, emit: Emit | None) -> Steps[str]:
        """A parameter's text; CDATA may have the closing tag inside."""
        if not (yield from self._cdata()):
            return (yield from super().value(emit))
        text, end = yield from self.reader.until(_CDATA_END, emit=emit)
        if emit is not None:
            emit(end)
        return text + end + (yield from super().value(emit))

    def _cdata(self) -> Steps[bool]:
        """Whether CDATA comes next, after a little white space."""
        while True:
            held = self.reader.held
            front = held.lstrip()
            if len(held) - len(front) > LONGEST_TAG or not _CDATA.startswith(front[: len(_CDATA)]):
                return False
            if len(front) >= len(_CDATA):
                return True
            yield from self.reader.more()

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter."""
        plain = value.strip()
        if plain.startswith(_CDATA):
            parameters.add(name, plain.removeprefix(_CDATA).partition(_CDATA_END)[0])
        else:
            parameters.add(name, unescape(value, _ENTITIES))


class XmlPieces:
    """Passes XML text or CDATA on as text, in pieces."""

    def __init__(self, emit: Pieces) -> None:
        self._emit = emit
        self._front: list[str] | None = []  # white space, and what may be the beginning of CDATA
        self._end = ""  # of CDATA; empty: the text is none
        self._held = ""
        self._over = False

    def __call__(self, piece: str) -> None:
        """The next piece of the text."""
        if self._over:
            return
        if self._front is not None:
            self._front.append(piece)
            if not piece.strip():
                return
            piece = "".join(self._front)
            text = piece.lstrip()
            if len(text) < len(_CDATA) and _CDATA.startswith(text):
                self._front = [piece]
                return
            self._front = None
            if text.startswith(_CDATA):
                piece, self._end = text.removeprefix(_CDATA), _CDATA_END
        text = self._held + piece
        if self._end:
            end, marker = markers(self._end).find(text, False)
            self._over = bool(marker)
        else:
            end = max(text.rfind("&"), 0) if "&" in text[-_LONGEST_ENTITY:].rpartition(";")[2] else len(text)
        self._held = text[end:]
        self._emit(text[:end] if self._end else unescape(text[:end], _ENTITIES), len(self._held))


class Step3(Minimax):
    """`<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">...`."""

    writing = Writing(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
        "</steptml:invoke><｜tool_call_end｜>",
        Parameter('<steptml:parameter name="{key}">', "</steptml:parameter>\n"),
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        "\n",
    )
    openings = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke")
    closings = (
        *("<｜tool_calls_end｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>"),
        *("</steptml:invoke>", "</steptml:parameter>", "<steptml:parameter"),
    )
    call, parameter = "<steptml:invoke", "<steptml:parameter"
    call_end, parameter_end = "</steptml:invoke>", "</steptml:parameter>"
    front = ("<｜tool_call_end｜>", "<｜tool_call_begin｜>", "function", "<｜tool_sep｜>")


def attribute(tag: str) -> str:
    """The name in a tag, which also ends a quote that is not closed. Raises Malformed where it has none."""
    match = _NAME.search(tag)
    name = html.unescape(next(filter(None, match.groups()), "")) if match else ""
    if not name:
        raise Malformed
    return name
