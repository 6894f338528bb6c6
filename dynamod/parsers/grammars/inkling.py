"""Inkling: blocks of reasoning, text and calls, each with the token of its kind."""

from ..reader import LONGEST_NAME, Ended, Malformed, Steps
from ..segments import Content, Reasoning
from .base import Grammar
from .json_calls import json_call

_MODEL = "<|message_model|>"
_THINKING, _TEXT, _CALL = "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"
_OTHERS = ("<|content_invoke_tool_text|>", "<|content_tool_error|>")
_KINDS = (_THINKING, _TEXT, _CALL, *_OTHERS)
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


class Inkling(Grammar):
    """`<|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {...}}<|end_message|>`.

    `<|content_thinking|>` is in front of reasoning, `<|content_text|>` of content. The name in front of a block's token
    is no text.
    """

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
            yield from json_call(self.reader, self.calls)

    def _header(self) -> Steps[str]:
        """The token behind the author's name. Raises Malformed where the block has none: its text is content."""
        try:
            _, stop = yield from self.reader.until(_MODEL, *_KINDS, *_ENDS, limit=LONGEST_NAME)
        except Ended:
            if "<" not in "".join(self.reader.log or ()) + self.reader.held:
                raise Malformed from None
            raise
        if stop in _ENDS:
            raise Malformed
        return stop
