"""Messages with a recipient, as in harmony, whose calls are tags: Beam and Muse Glimmer."""

from typing import ClassVar

from ..calls import Calls
from ..reader import Emit, Malformed, Reader, Steps
from ..segments import Content, Reasoning
from .harmony import Harmony
from .invoke import Minimax, attribute
from .parameters import Parameters, trimmed


class _Rfl(Minimax):
    """`<rfl:parameter name="p">value</rfl:parameter>` up to the message's end."""

    openings = ()
    parameter, parameter_end = "<rfl:parameter", "</rfl:parameter>"
    call_end = "<|call|>"
    outer = ("<|end|>", "<|return|>")
    value_stops = ("<rfl:parameter", "<|call|>", "<|end|>", "<|return|>")

    def pieces(self, parameters: Parameters, name: str, tag: str) -> Emit | None:
        """Of a parameter on lines of its own."""
        return parameters.string(name, lines=True)

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter, on lines of its own."""
        parameters.add(name, trimmed(value))


class Beam(Harmony):
    """`<|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="p">...<|call|>`.

    A message with a recipient is a call of that tool; the other channels are those of harmony.
    """

    closings = (*Harmony.closings, "</rfl:parameter>", "<rfl:parameter")

    def __init__(self, reader: Reader, calls: Calls) -> None:
        super().__init__(reader, calls)
        self._parameters = _Rfl(reader, calls)

    def message(self, header: str, recipient: str) -> Steps[None]:
        """What comes after a header, when it is a call, or what kind of text it is."""
        if recipient:
            self.calls.begin()
            self.calls.text_begins()
            yield from self._parameters.parameters(Parameters(self.calls, recipient))
        elif "analysis" in header:
            self.kind = Reasoning


class _Atem(Minimax):
    """`<atem:function_calls><atem:invoke name="f"><atem:parameter name="p">value</atem:parameter>...`."""

    openings = ("<atem:function_calls>", "<atem:invoke")
    closings = ("</atem:function_calls>", "</atem:invoke>", "</atem:parameter>", "<atem:parameter")
    call, parameter = "<atem:invoke", "<atem:parameter"
    call_end, parameter_end = "</atem:invoke>", "</atem:parameter>"
    outer = ("</atem:function_calls>", "<|eom|>", "<|eot|>")

    def named(self, tag: str) -> str:
        """The tool's name: the model writes the namespace in front of it, twice where that is the name itself."""
        name = attribute(tag)
        if name in self.calls.tools:
            return name
        leaf = name.rpartition(".")[2]
        same = [tool for tool in self.calls.tools if tool.rpartition(".")[2] == leaf]
        return same[0] if len(same) == 1 else name

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter: white space around it is part of it."""
        parameters.add(name, value)


class Muse(Harmony):
    """`<|start|>assistant to=f<|message|><atem:function_calls><atem:invoke name="f">...</atem:function_calls><|eom|>`.

    Text to `self` is reasoning; to `user`, to `commentary` and without a recipient content. Call tags inside are text.
    """

    openings = ("<|start|>", "<|message|>", *_Atem.openings)
    closings = ("<|eom|>", "<|eot|>", *_Atem.closings)
    within = _Atem.closings
    ends = ("<|eom|>", "<|eot|>")
    answers: ClassVar[tuple[str, ...]] = ("user", "commentary", "")

    def __init__(self, reader: Reader, calls: Calls) -> None:
        super().__init__(reader, calls)
        self._invokes = _Atem(reader, calls)
        self._scoped = False  # a header has named the recipient of the text

    def read(self, opening: str) -> Steps[None]:
        """One message's header, and its body when that is a call; calls without a header where none has come yet.

        The model may leave reasoning with a header that lacks `<|start|>`: calls after `<|message|>` are calls.
        """
        self.kind = Content
        if opening in _Atem.openings:
            if self._scoped:
                raise Malformed
            yield from self._invokes.read(opening)
        elif opening == "<|message|>":
            self._scoped = True
            yield from self._body(Content)
        else:
            yield from super().read(opening)

    def message(self, header: str, recipient: str) -> Steps[None]:
        """What comes after a header, when it is a call, or what kind of text it is."""
        self._scoped = True
        if recipient == "self":
            self.kind = Reasoning
        elif recipient not in self.answers:
            yield from self._body(Reasoning)

    def _body(self, other: type[Content] | type[Reasoning]) -> Steps[None]:
        """Calls, or text of kind `other`."""
        self.calls.begin()
        self.calls.text_begins()
        opening = yield from self.reader.accept(*_Atem.openings)
        if opening:
            yield from self._invokes.read(opening)
        else:
            self.calls.pending = False
            self.kind = other
