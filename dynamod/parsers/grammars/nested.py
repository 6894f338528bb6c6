"""MiniMax M3: every tag has a marker in front, parameters are tags of their own, and values may have tags inside."""

from collections.abc import Mapping
from typing import Any

from ..reader import LONGEST_NAME, Emit, Ended, Malformed, Steps
from ..typed import kinds, member, quoted, typed_as
from ..writing import Parameter, Writing
from .invoke import Minimax
from .parameters import Parameters, trimmed

_MARK = "]<]minimax[>["
_CALL_ENDS = ("/invoke", "/tool_call")
DEEPEST = 50


class MinimaxM3(Minimax):
    """`M<tool_call>M<invoke name="f">M<p>text M</p>M<l>M<item>1M</item>M</l>M</invoke>M</tool_call>`, M the marker.

    A value with tags inside is an object, or a list where the schema asks for one or a tag comes twice.
    """

    writing = Writing(
        f'{_MARK}<invoke name="{{name}}">',
        f"{_MARK}</invoke>\n",
        Parameter(f"{_MARK}<{{key}}>", f"{_MARK}</{{key}}>"),
        f"{_MARK}<tool_call>\n",
        f"{_MARK}</tool_call>",
    )
    call = f"{_MARK}<invoke"
    openings = (f"{_MARK}<tool_call>", call)
    closings = (f"{_MARK}</tool_call>", f"{_MARK}</invoke>", _MARK)

    def parameters(self, parameters: Parameters) -> Steps[None]:
        """Those of one call, and its end."""
        schema = parameters.schema
        while True:
            try:
                yield from self.reader.expect(f"{_MARK}<")
                key, _ = yield from self.name(">")
            except Ended:
                raise parameters.unclosed() from None
            if key in _CALL_ENDS:
                break
            if key.startswith("/"):
                raise Malformed
            emit = parameters.string(key, lines=True, filled=True)
            value = yield from self._value(key, member(schema, key, schema), schema, DEEPEST, emit)
            parameters.add_json(key, value)
        parameters.done()

    def _value(
        self, key: str, schema: object, root: Mapping[str, Any], depth: int, emit: Emit | None = None
    ) -> Steps[str]:
        """JSON text of what stands between the tags of `key`, a value of `schema`."""
        reader = self.reader
        if not depth:
            raise Malformed
        text, _ = yield from reader.until(f"{_MARK}<", emit=emit)
        tag, _ = yield from reader.until(">", limit=LONGEST_NAME)
        if tag in _CALL_ENDS:  # the closing tag is missing
            reader.back(f"{_MARK}<{tag}>")
        if tag == f"/{key}" or tag in _CALL_ENDS:
            return typed_as(trimmed(text), schema, root)
        if text.strip():
            raise Malformed
        found: list[tuple[str, str]] = []
        while tag != f"/{key}":
            if tag.startswith("/") or not tag:
                raise Malformed
            found.append((tag, (yield from self._value(tag, member(schema, tag, root), root, depth - 1))))
            yield from reader.expect(f"{_MARK}<")
            tag, _ = yield from reader.until(">", limit=LONGEST_NAME)
        return _joined(found, listed=kinds(schema, root) & {"array", "object"} == {"array"})


def _joined(found: list[tuple[str, str]], listed: bool) -> str:
    """Members with their names, or a list of them."""
    if listed:
        return _list([value for _, value in found])
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    members = (f"{quoted(name)}: {same[0] if len(same) == 1 else _list(same)}" for name, same in values.items())
    return f"{{{', '.join(members)}}}"


def _list(values: list[str]) -> str:
    return f"[{', '.join(values)}]"
