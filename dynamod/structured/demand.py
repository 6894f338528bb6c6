"""The form that a request asks for, by whichever of its fields says so.

OpenAI's `response_format`; vLLM's `structured_outputs` and, before that, `guided_json` and its kin; the same in
Dynamo's `nvext`; llama.cpp's `grammar` and `json_schema`. All become one `Grammar`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import GUIDED, ChatRequest, Common, ResponseFormat
from dynamod.message.schemas import parameters_of
from dynamod.message.worker import LATER_TAGS, Grammar

from .calls import calls_schema
from .lark import TagError
from .lengths import bound
from .tags import TAGS, Rules

MAX_BYTES = 64 * 1024
"""Of a schema, an expression or a grammar."""
MAX_DEPTH = 32
"""Objects and lists of a schema within each other."""
CALLS = "tool_choice"
JSON_OBJECT = Grammar("json", '{"type":"object"}')

_HARMLESS = (None, False)


def demand(request: Common, calls: dict[str, Any] | None = None) -> tuple[str, Grammar] | None:
    """The field and what it asks for; None: any text will do. Raises BadRequest.

    Calls that have to come replace another form, which is for the answer after them. `calls`: such calls in the model's
    own format, as the `format` of a structural tag; None: they are JSON.
    """
    if isinstance(request, ChatRequest) and request.must_call:
        return CALLS, _calls(request, calls)
    found = list(_demands(request))
    if not found:
        return None
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        raise BadRequest(f"`{first}` and `{second}`: an answer keeps to one form only", param=second)
    field, read, value = found[0]
    grammar = read(field, value)
    _check_size(field, grammar)
    return field, grammar


def parameters(request: ChatRequest) -> Iterator[tuple[str, Grammar]]:
    """Field and schema of each tool's parameters. Raises BadRequest."""
    for place, tool in enumerate(request.tools or ()):
        field, schema = f"tools[{place}].function.parameters", parameters_of(tool["function"])
        if isinstance(schema, str):
            raise BadRequest(f"`{field}` must be a JSON Schema, which is an object", param=field)
        yield field, _schema(field, schema)


def _calls(request: ChatRequest, form: dict[str, Any] | None) -> Grammar:
    """Raises BadRequest for tools that are too large, or too deep."""
    for field, grammar in parameters(request):
        _check_size(field, grammar)
    if form is not None and (written := _written(form)) is not None:
        _check_size("tools", written)
        return written
    grammar = Grammar("json", msgspec.json.encode(calls_schema(request)).decode())
    _check_size("tools", grammar)
    return grammar


def _written(form: dict[str, Any]) -> Grammar | None:
    """Calls in the model's own format; None where that cannot be a form."""
    tag = msgspec.json.decode(msgspec.json.encode({"type": TAGS, "format": form}))
    _bound(tag)
    try:
        later = Rules(tag).later
    except TagError:
        return None
    return Grammar(TAGS, msgspec.json.encode(tag).decode(), needs=(LATER_TAGS,) if later else ())


def _bound(form: Any) -> None:
    """Bounds the numbers of all schemas of a format, in place."""
    for part in form if isinstance(form, list) else form.values():
        if isinstance(part, dict) and part.get("type") == "json_schema":
            bound(part["json_schema"], steps=True)
        elif isinstance(part, (dict, list)):
            _bound(part)


def _check_size(field: str, grammar: Grammar) -> None:
    if (size := len(grammar.text.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        raise BadRequest(f"`{field}` has {size} bytes; it must have at most {MAX_BYTES}", param=field)


Read = Callable[[str, Any], Grammar]


def _demands(request: Common) -> "list[tuple[str, Read, Any]]":
    """Each field that asks for a form, how it is read, and its value."""
    found: list[tuple[str, Read, Any]] = []
    if (form := request.response_format) is not None and form.type != "text":
        found.append(_response_format(form))
    if (wanted := request.structured_outputs) is not None:
        found += _structured_outputs(wanted)
    for prefix, holder in (("", request), ("nvext.", request.nvext)):
        for name in GUIDED:
            if (value := getattr(holder, name, None)) is not None:
                found.append((prefix + name, _READERS[name.removeprefix("guided_")], value))
    if request.grammar is not None:
        found.append(("grammar", _grammar, request.grammar))
    if request.json_schema is not None:
        found.append(("json_schema", _schema, request.json_schema))
    return found


def _response_format(form: ResponseFormat) -> tuple[str, Read, Any]:
    if form.type == "json_object":
        return "response_format", _object, True
    if form.type == TAGS:
        given = msgspec.structs.asdict(form)
        members = {name: value for name, value in given.items() if value is not None and name != "json_schema"}
        return "response_format", _tags, members
    if form.type != "json_schema":
        known = f"text, json_object, json_schema, {TAGS}"
        why = f"`response_format.type` {form.type!r} is not served; known are {known}"
        raise unsupported("response_format.type", why)
    field = "response_format.json_schema"
    named = form.json_schema
    if not isinstance(named, dict):
        raise BadRequest(f'`{field}` must be an object like {{"name": ..., "schema": ...}}', param=field)
    if named.get("schema") is None:
        raise BadRequest(f"`{field}` needs a `schema`; for any object use the type json_object", param=field)
    return f"{field}.schema", _schema, named["schema"]


def _structured_outputs(wanted: Any) -> list[tuple[str, Read, Any]]:
    field = "structured_outputs"
    if not isinstance(wanted, dict):
        raise BadRequest(f"`{field}` must be an object with one of {', '.join(_READERS)}", param=field)
    for name, value in wanted.items():
        if name not in _READERS and value not in _HARMLESS:
            raise unsupported(f"{field}.{name}", f"`{field}.{name}` is not served; known are {', '.join(_READERS)}")
    found = [(f"{field}.{name}", read, wanted[name]) for name, read in _READERS.items() if wanted.get(name) is not None]
    found = [one for one in found if one[2] is not False or one[1] is not _object]
    if not found:
        raise BadRequest(f"`{field}` asks for nothing; it must have one of {', '.join(_READERS)}", param=field)
    return found


def _object(field: str, value: Any) -> Grammar:
    if value is not True:
        raise BadRequest(f"`{field}` must be true or false", param=field)
    return JSON_OBJECT


def _schema(field: str, value: Any) -> Grammar:
    """A schema as an object or, as vLLM has it, as the text of one."""
    schema = _decoded(field, value) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise BadRequest(f"`{field}` must be a JSON Schema, which is an object", param=field)
    _check_depth(field, schema)
    return Grammar("json", msgspec.json.encode(schema).decode())


def _decoded(field: str, text: str) -> Any:
    if len(text) > MAX_BYTES:
        raise BadRequest(f"`{field}` has {len(text)} characters; it must have at most {MAX_BYTES}", param=field)
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"`{field}` is not valid JSON: {error}", param=field) from None


def _check_depth(field: str, schema: Any) -> None:
    """Level by level, so that no schema is too deep for this."""
    level: list[tuple[str, Any]] = [(field, schema)]
    for _ in range(MAX_DEPTH):
        inner: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, dict):
                inner += [(f"{path}.{name}", one) for name, one in value.items() if isinstance(one, (dict, list))]
            else:
                inner += [(f"{path}[{place}]", one) for place, one in enumerate(value) if isinstance(one, (dict, list))]
        if not inner:
            return
        level = inner
    raise BadRequest(f"`{field}` is more than {MAX_DEPTH} objects and lists deep, at `{level[0][0]}`", param=field)


def _regex(field: str, value: Any) -> Grammar:
    return Grammar("regex", _text(field, value))


def _grammar(field: str, value: Any) -> Grammar:
    return Grammar("grammar", _text(field, value))


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"`{field}` must be a string that is not empty", param=field)
    return value


def _choice(field: str, value: Any) -> Grammar:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise BadRequest(f"`{field}` must be a list of strings that are not empty", param=field)
    return Grammar("choice", msgspec.json.encode(value).decode())


def _tags(field: str, value: Any) -> Grammar:
    """A structural tag as an object or, as vLLM has it, as the text of one."""
    tag = _decoded(field, value) if isinstance(value, str) else value
    if not isinstance(tag, dict):
        raise BadRequest(f"`{field}` must be an object, or the JSON text of one", param=field)
    _check_depth(field, tag)
    grammar = Grammar(TAGS, msgspec.json.encode(tag).decode())
    _check_size(field, grammar)
    try:
        rules = Rules(tag)
    except TagError as error:
        where = f"{field}{error.place}"
        raise BadRequest(f"`{where}`: {error}", param=where) from None
    return msgspec.structs.replace(grammar, needs=(LATER_TAGS,)) if rules.later else grammar


_READERS: dict[str, Read] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _object,
    TAGS: _tags,
}
