"""Inkling: blocks of reasoning, text and calls, each with the token of its kind."""

import string

from ..reader import LONGEST_NAME, Malformed, Steps
from ..segments import Content, Reasoning
from .base import Grammar
from .json_calls import json_call

_MODEL = "<|message_model|>"
_THINKING, _TEXT, _CALL = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
_OTHERS = ("<|content_invoke_tool_text|>", "<|content_tool_error|>")
_KINDS = (_THINKING, _TEXT, _CALL, *_OTHERS)
_NAME = f"{string.ascii_letters}{string.digits}_-."
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


class Inkling(Grammar):
    """`<|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {...}}<|end_message|>`.

    `<|content_thinking|>` is in front of reasoning, `<|content_text|>` of content. The name in front of a block's token
    is no text.
    """

    quoted = True
    ends = _ENDS
    openings = (_MODEL, *_KINDS)
    closings = _ENDS
    channels = True
    prompts = openings

    def read(self, opening: str) -> Steps[None]:
        """One block's header, and the call when it is one; `kind` says what else follows."""
        while opening == _MODEL:
            opening = yield from self._header()
        self.kind = Reasoning if opening == _THINKING else Content
        if opening == _CALL:
            self.calls.begin()
            self.calls.text_begins()
            yield from json_call(self.reader, self.calls)

    def _header(self) -> Steps[str]:
        """The token after the author's name. Raises Malformed where the block has none: its text is content."""
        reader = self.reader
        yield from reader.peek()
        while not (rest := reader.held.lstrip(_NAME)):
            if reader.closed or len(reader.held) > LONGEST_NAME:
                raise Malformed
            yield
        if len(reader.held) - len(rest) > LONGEST_NAME:
            raise Malformed
        reader.cut(len(reader.held) - len(rest))
        return (yield from reader.expect(_MODEL, *_KINDS))
