"""Tags with a mark and the type of each value: DSML of DeepSeek V3.2 and later, and what others write alike."""

from typing import ClassVar

import msgspec

from ..reader import Emit, decoded
from ..typed import kinds, literal, member, quoted
from ..writing import Parameter, Writing
from .invoke import Minimax
from .parameters import Parameters


def _written(mark: str, calls: str) -> Writing:
    return Writing(
        f'<{mark}invoke name="{{name}}">\n',
        f"</{mark}invoke>\n",
        Parameter(
            f'<{mark}parameter name="{{key}}" string="false">',
            f"</{mark}parameter>\n",
            f'<{mark}parameter name="{{key}}" string="true">',
        ),
        f"<{mark}{calls}>\n",
        f"</{mark}{calls}>",
    )


class Dsml(Minimax):
    """`<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="p" string="true">...`.

    `string="true"`: the value is a string as it stands; "false": it is JSON.
    """

    writing = _written("｜DSML｜", "function_calls")
    openings: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke")
    closings: ClassVar[tuple[str, ...]] = (
        *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        *("</｜DSML｜invoke>", "</｜DSML｜parameter>", "<｜DSML｜parameter"),
    )
    call, parameter = "<｜DSML｜invoke", "<｜DSML｜parameter"
    call_end, parameter_end = "</｜DSML｜invoke>", "</｜DSML｜parameter>"
    text: ClassVar[str] = 'string="true"'
    """The attribute of strings; other values are JSON."""

    def pieces(self, parameters: Parameters, name: str, tag: str) -> Emit | None:
        """Where the tag says a string, and the schema does not object."""
        if self.text not in tag:
            return None
        allowed = kinds(member(parameters.schema, name, parameters.schema), parameters.schema)
        return parameters.string(name, known=not allowed or "string" in allowed)

    def add(self, parameters: Parameters, name: str, tag: str, value: str) -> None:
        """One parameter, of the type that its tag says."""
        if self.text in tag:
            allowed = kinds(member(parameters.schema, name, parameters.schema), parameters.schema)
            if allowed and "string" not in allowed:
                parameters.add(name, value)  # the schema knows better than the tag
            else:
                parameters.add_json(name, quoted(value))
            return
        schema = parameters.schema
        made = literal(value.strip())
        if made is None:
            parameters.add(name, value)
            return
        known, allowed = schema.get("properties"), kinds(member(schema, name, schema), schema)
        found = decoded(made[0])
        if name == "arguments" and isinstance(found, dict) and isinstance(known, dict) and name not in known:
            for key, inner in found.items():  # all of them in one
                parameters.add_json(key, msgspec.json.encode(inner).decode())
        elif allowed and made[1] not in allowed and not (made[1] == "integer" and "number" in allowed):
            parameters.add(name, value)  # the schema knows better than the tag
        else:
            parameters.add_json(name, made[0])


class DsmlSpaced(Dsml):
    """The same with a space in front of each tag's name, and `calls` around several."""

    writing = _written("｜DSML｜ ", "calls")
    openings = ("<｜DSML｜ calls>", "<｜DSML｜ invoke")
    closings = ("</｜DSML｜ calls>", "</｜DSML｜ invoke>", "</｜DSML｜ parameter>", "<｜DSML｜ parameter")
    call, parameter = "<｜DSML｜ invoke", "<｜DSML｜ parameter"
    call_end, parameter_end = "</｜DSML｜ invoke>", "</｜DSML｜ parameter>"


class Gcml(Dsml):
    """The same with another mark: `<｜GCML｜tool_calls><｜GCML｜invoke name="f">...`."""

    writing = _written("｜GCML｜", "tool_calls")
    openings = ("<｜GCML｜tool_calls>", "<｜GCML｜invoke")
    closings = (
        *("</｜GCML｜tool_calls>", "</｜GCML｜invoke>", "</｜GCML｜parameter>", "<｜GCML｜parameter"),
        "<|message_sep|>",
    )
    call, parameter = "<｜GCML｜invoke", "<｜GCML｜parameter"
    call_end, parameter_end = "</｜GCML｜invoke>", "</｜GCML｜parameter>"


class KimiK3(Dsml):
    """`<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="p" type="string"<|sep|>...`.

    The answer is a channel too (`response`): its markers are no content.
    """

    writing = Writing(
        '<|open|>call tool="{name}" index="1"<|sep|>',
        "<|close|>call<|sep|>",
        Parameter(
            '<|open|>argument key="{key}" type="object"<|sep|>',
            "<|close|>argument<|sep|>",
            '<|open|>argument key="{key}" type="string"<|sep|>',
        ),
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
    )
    openings = ("<|open|>tools<|sep|>",)
    closings = (
        *("<|close|>tools<|sep|>", "<|close|>call<|sep|>", "<|close|>argument<|sep|>", "<|close|>message<|sep|>"),
        *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|open|>", "<|close|>", "<|sep|>"),
    )
    call, parameter, tag_end = "<|open|>call", "<|open|>argument", "<|sep|>"
    call_end, parameter_end = "<|close|>call<|sep|>", "<|close|>argument<|sep|>"
    outer = ("<|close|>tools<|sep|>", "<|close|>message<|sep|>")
    text = 'type="string"'
