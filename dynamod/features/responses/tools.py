"""Tools of a request: the functions that the model is told of, and what clients call them.

A tool `f` of a namespace `n` becomes the function `n__f`. A custom tool becomes a function with one text, `input`.
Tools that OpenAI's servers run (`HOSTED`) are left out: the model cannot call what it is not told of.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dynamod.message.errors import BadRequest, unsupported

from .messages import FunctionTool

HOSTED = frozenset(
    (
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("file_search", "code_interpreter", "image_generation", "computer", "computer_use_preview", "mcp"),
        *("local_shell", "shell", "apply_patch", "tool_search"),
    )
)
"""Types of tools that a server or a client of OpenAI runs without a function of the request."""
OWN = ("function", "custom", "namespace")
SEPARATOR = "__"
INPUT = "input"
"""The argument of the function that a custom tool becomes."""
LONGEST_NAME = 128
_DIGEST = 8


class ServedTool(NamedTuple):
    """A function of the chat. `name`, `namespace`: of the client's tool. `place`: of the tool, for errors."""

    flat: str
    name: str
    namespace: str | None
    tool: FunctionTool
    place: str

    @property
    def custom(self) -> bool:
        """Whether the client gets the text of the input, not arguments in JSON."""
        return self.tool.type == "custom"

    def function(self) -> dict[str, Any]:
        """As a tool of a chat."""
        tool, found = self.tool, dict[str, Any]()
        if self.custom:
            found = {"name": self.flat, "description": _explained(tool), "parameters": _one_text(tool.format)}
        else:
            found = {
                "name": self.flat,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
        return {"type": "function", "function": {name: value for name, value in found.items() if value is not None}}


def flat_name(name: str, namespace: str | None) -> str:
    """The name of the function. One that is too long ends with a digest."""
    if not namespace:
        return name
    flat = f"{namespace}{SEPARATOR}{name}"
    if len(flat) <= LONGEST_NAME:
        return flat
    digest = hashlib.sha256(flat.encode()).hexdigest()[:_DIGEST]
    return f"{flat[: LONGEST_NAME - _DIGEST - 1]}_{digest}"


def served(tools: Sequence[FunctionTool] | None) -> Iterator[ServedTool]:
    """The functions that the tools become. The tools have been checked."""
    for place, tool in enumerate(tools or ()):
        where = f"tools[{place}]"
        if tool.type == "namespace":
            for number, inner in enumerate(tool.tools or ()):
                flat = flat_name(inner.name, tool.name)
                yield ServedTool(flat, inner.name, tool.name, inner, f"{where}.tools[{number}]")
        elif tool.type not in HOSTED:
            yield ServedTool(tool.name, tool.name, None, tool, where)


def left_out(tools: Sequence[FunctionTool] | None) -> list[str]:
    """The types of the tools of which the model is not told."""
    return [tool.type for tool in tools or () if tool.type in HOSTED]


def by_name(tools: Sequence[FunctionTool] | None) -> dict[str, ServedTool]:
    """The functions by their names."""
    return {one.flat: one for one in served(tools)}


def check_tools(tools: Sequence[FunctionTool] | None) -> None:
    """Raises BadRequest for a tool of an unknown type, without a name, or whose function has another tool's name."""
    for place, tool in enumerate(tools or ()):
        _check(tool, f"tools[{place}]", inside=False)
    seen: dict[str, ServedTool] = {}
    for one in served(tools):
        other = seen.setdefault(one.flat, one)
        if other is not one and one.namespace != other.namespace:
            why = f"`{one.place}` and `{other.place}` are both the function {one.flat[:40]!r}; rename one of them"
            raise BadRequest(why, param=one.place)


def _check(tool: FunctionTool, where: str, *, inside: bool) -> None:
    kinds = OWN[:2] if inside else OWN
    if tool.type in HOSTED and not inside:
        return
    if tool.type not in kinds:
        text = f"tools of type {tool.type[:40]!r} are not served, only {', '.join(kinds)}"
        raise unsupported(f"{where}.type", text)
    if not tool.name:
        raise BadRequest(f"`{where}.name` is required", param=f"{where}.name")
    if tool.type == "custom":
        _check_format(tool.format, f"{where}.format")
    for number, inner in enumerate(tool.tools or () if tool.type == "namespace" else ()):
        _check(inner, f"{where}.tools[{number}]", inside=True)


def _check_format(form: Any, where: str) -> None:
    kind = form.get("type") if isinstance(form, Mapping) else "text" if form is None else None
    if kind == "text":
        return
    if kind != "grammar":
        raise BadRequest(f'`{where}.type` must be "text" or "grammar"', param=f"{where}.type")
    grammar = _definition(form)
    if grammar.get("syntax") not in ("lark", "regex"):
        raise BadRequest(f'`{where}.syntax` must be "lark" or "regex"', param=f"{where}.syntax")
    if not isinstance(grammar.get("definition"), str):
        raise BadRequest(f"`{where}.definition` is required", param=f"{where}.definition")


def _definition(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """What has `syntax` and `definition`: the format itself (responses) or its `grammar` (chats)."""
    inner = form.get("grammar")
    return inner if "syntax" not in form and isinstance(inner, Mapping) else form


def _grammar(form: Any) -> tuple[str, str] | None:
    """Syntax and definition of the grammar of a custom tool's input."""
    if not isinstance(form, Mapping) or form.get("type") != "grammar":
        return None
    given = _definition(form)
    return str(given["syntax"]), str(given["definition"])


def _one_text(form: Any) -> dict[str, Any]:
    """The arguments of a custom tool: its input. A regular expression holds where calls are constrained."""
    text: dict[str, Any] = {"type": "string"}
    if (grammar := _grammar(form)) is not None and grammar[0] == "regex" and _is_regular(grammar[1]):
        text["pattern"] = f"^(?:{grammar[1]})$"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _is_regular(pattern: str) -> bool:
    """Whether engines can constrain a text to the pattern: they know no lookaround and no references."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return not re.search(r"\(\?[=!<P(]|\\[1-9]", pattern)


def _explained(tool: FunctionTool) -> str | None:
    """The description, and the grammar that a model cannot see elsewhere."""
    if (grammar := _grammar(tool.format)) is None:
        return tool.description
    told = f"The input must match this {grammar[0]} grammar:\n{grammar[1]}"
    return f"{tool.description}\n\n{told}" if tool.description else told


def input_of(arguments: str) -> str:
    """The input in the arguments of the function of a custom tool. What is no such JSON is the input itself."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_of(text: str) -> str:
    """The arguments of the function of a custom tool with this input."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def chosen(choice: Any) -> Any:
    """`tool_choice` in the words of a chat. Raises BadRequest."""
    if isinstance(choice, str) or choice is None:
        if choice not in (None, "none", "auto", "required"):
            raise BadRequest('`tool_choice` must be "none", "auto", "required" or a tool', param="tool_choice")
        return choice
    kind = _type_of(choice)
    if kind in ("function", "custom") and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": _flat(choice)}}
    if kind == "allowed_tools":
        return {**choice, "tools": _allowed(choice.get("tools"))} if "tools" in choice else choice
    if kind in HOSTED:
        raise unsupported("tool_choice", f"`tool_choice` asks for a tool of type {kind!r}, which is not served")
    raise unsupported("tool_choice", "`tool_choice` must be a word, or a function or custom tool with a name")


def _type_of(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def _allowed(listed: Any) -> Any:
    """The tools of `allowed_tools` as functions; the chat checks them. Tools that are left out are not allowed."""
    if not isinstance(listed, list):
        return listed
    kept = [one for one in listed if _type_of(one) not in HOSTED]
    return [
        {"type": "function", "name": _flat(one)} if isinstance(one, dict) and isinstance(one.get("name"), str) else one
        for one in kept
    ]


def _flat(named: Mapping[str, Any]) -> str:
    namespace = named.get("namespace")
    return flat_name(str(named["name"]), namespace if isinstance(namespace, str) else None)
