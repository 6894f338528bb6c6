"""Harmony, the format of gpt-oss: messages with a channel and a recipient. It owns reasoning and calls alike."""

import re
from typing import ClassVar

from ..calls import Calls
from ..reader import Malformed, Reader, Steps
from ..segments import Content, Reasoning
from .base import Grammar
from .json_calls import arguments

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)").search
LONGEST_HEADER = 2000
LONGEST_BEGUN = 16_384
"""Characters at a prompt's end in which the beginning of an answer is looked for: it may have more than a header."""


class Harmony(Grammar):
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{...}`.

    The channel `analysis` is reasoning, `final` and `commentary` without a recipient are content. What is sent to
    any recipient but `functions` (the model's own browser or interpreter) is reasoning.
    """

    quoted = True
    openings: ClassVar[tuple[str, ...]] = (_START, _CHANNEL)
    closings: ClassVar[tuple[str, ...]] = (_MESSAGE, "<|constrain|>", *_ENDS)
    bare = "t"
    channels = True
    ends: ClassVar[tuple[str, ...]] = _ENDS
    """Markers after a message."""

    def __init__(self, reader: Reader, calls: Calls) -> None:
        super().__init__(reader, calls)
        self._first = True

    @classmethod
    def begun(cls, prompt: str) -> str:
        """The assistant's message that a prompt ends in, from its header on; empty where it ends with the role."""
        tail = prompt[-LONGEST_BEGUN:]
        tail = tail[max(tail.rfind(end) + len(end) if end in tail else 0 for end in cls.ends) :]
        begin = tail.rfind(_START)
        tail = tail[begin:] if begin >= 0 else tail[tail.find(_CHANNEL) :] if _CHANNEL in tail else ""
        role = f"{_START}assistant"
        return tail if tail.startswith((role, _CHANNEL)) and tail.rstrip() != role else ""

    def read(self, opening: str) -> Steps[None]:
        """One message's header, and its body when that is a call; `kind` says what else follows.

        The first header may lack its marker, as the prompt has it: then it begins with a recipient.
        """
        first, self._first = self._first, False
        self.kind = Content
        if not opening:
            if not first:
                raise Malformed
            self.calls.begin()  # a text that ends before that is none of a header
            yield from self.reader.expect("to=")
            self.calls.pending = False
        header, stop = yield from self.reader.until(_MESSAGE, *self.ends, limit=LONGEST_HEADER)
        if stop == _MESSAGE:
            header = header if opening else f"to={header}"
            recipient = _RECIPIENT(header)
            yield from self.message(header, "" if recipient is None else recipient[1])

    def message(self, header: str, recipient: str) -> Steps[None]:
        """What comes after a header, when it is a call, or what kind of text it is. `recipient`: empty for none."""
        if recipient.startswith("functions."):
            self.calls.begin()
            name = recipient.removeprefix("functions.")
            if not name:
                raise Malformed
            self.calls.text_begins()
            self.calls.start(name)
            yield from arguments(self.reader, self.calls)
        elif "analysis" in header or recipient:
            self.kind = Reasoning
