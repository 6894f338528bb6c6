"""Calls as JSON objects with a name and arguments, alone or in a list: the part that several grammars share."""

from collections.abc import Iterable

import msgspec

from ..calls import Calls
from ..reader import Malformed, Reader, Steps, decoded
from ..typed import literal

NAMES = ("name", "function", "tool_name")
ARGUMENTS = ("arguments", "parameters", "args")
_KEYS = (*NAMES, *ARGUMENTS, "type", "id")


def arguments(reader: Reader, calls: Calls) -> Steps[None]:
    """The arguments of the open call, which is complete then: an object, a string that holds one, or null."""
    first = yield from reader.peek()
    calls.certain.begin(reader.position)
    if first == "{":
        text = yield from reader.value(calls.arguments, checked=False)
        try:
            decoded(text)
        except Malformed:
            if not calls.rules.stays or calls.certain.doubtful:
                raise
            calls.broken("malformed", calls.certain.held())
            return
    else:
        calls.arguments(_object((yield from reader.value())))
    calls.done()


def _object(text: str) -> str:
    value = decoded(text)
    if isinstance(value, str):
        text = value.strip()
        value = decoded(text)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    return text


def json_call(reader: Reader, calls: Calls, known: Iterable[str] | None = None) -> Steps[None]:
    """One call. `known`: only these names, and no key that calls do not have, for text that may be any JSON."""
    calls.begin()
    yield from reader.expect("{")
    name, given, early, complete = "", "", "", False
    if (yield from reader.peek()) == "}":
        raise Malformed
    more = True
    while more:
        key = decoded((yield from _string(reader)))
        yield from reader.expect(":")
        if known is not None and key not in _KEYS:
            raise Malformed
        first = yield from reader.peek()
        if key in NAMES and first == '"' and not name:
            name = str(decoded((yield from reader.value())))
            if not calls.names(name) or (known is not None and name not in known):
                raise Malformed
            calls.start(name, given)
            if early:
                calls.arguments(early)
                calls.done()
                complete = True
        elif key in ARGUMENTS and name and not complete:
            yield from arguments(reader, calls)
            complete = True
        elif key in ARGUMENTS and not complete:
            early = _object((yield from reader.value()))
        elif key == "function" and first == "{" and not name:
            function = msgspec.json.decode((yield from reader.value()))
            name, value = str(function.get("name") or ""), function.get("arguments")
            if not calls.names(name) or (known is not None and name not in known):
                raise Malformed
            inner = _object(msgspec.json.encode(value).decode())
            calls.start(name, given)
            calls.arguments(inner)
            calls.done()
            complete = True
        else:
            text = yield from reader.value()
            if key == "id" and text[0] == '"':
                given = str(decoded(text))
        more = (yield from reader.expect(",", "}")) == ","
    if not complete:
        if not name:
            raise Malformed
        calls.arguments("{}")
        calls.done()


def _string(reader: Reader) -> Steps[str]:
    if (yield from reader.peek()) != '"':
        raise Malformed
    return (yield from reader.value())


def json_calls(reader: Reader, calls: Calls, known: Iterable[str] | None = None) -> Steps[None]:
    """A list of calls, or calls with nothing, a comma or a semicolon between them."""
    first = yield from reader.peek()
    if first == "[":
        reader.cut(1)
        while True:
            yield from json_call(reader, calls, known)
            if not (yield from reader.accept(",")):
                break
        yield from reader.accept("]")
        return
    while True:
        yield from json_call(reader, calls, known)
        following = yield from reader.peek()
        if following in ",;":
            reader.cut(1)
            following = yield from reader.peek()
        if following != "{":
            return


def python_call(reader: Reader, calls: Calls, *ends: str) -> Steps[None]:
    """One call as Python writes a dictionary, up to one of the markers `ends`."""
    calls.begin()
    text, stop = yield from reader.until(*ends)
    reader.back(stop)
    value = literal(text.strip())
    called = decoded(value[0]) if value is not None else None
    name = called.get("name") if isinstance(called, dict) else None
    if not isinstance(name, str) or not isinstance(called, dict) or not calls.names(name):
        raise Malformed
    given = next((called[key] for key in ARGUMENTS if key in called), None)
    inner = _object(msgspec.json.encode(given).decode())
    calls.start(name)
    calls.arguments(inner)
    calls.done()


def keyed_calls(reader: Reader, calls: Calls) -> Steps[None]:
    """A list of objects, or one, whose only key is the tool's name and whose value are the arguments."""
    several = bool((yield from reader.accept("[")))
    while True:
        calls.begin()
        yield from reader.expect("{")
        name = str(decoded((yield from _string(reader))))
        if not calls.names(name):
            raise Malformed
        yield from reader.expect(":")
        calls.start(name)
        yield from arguments(reader, calls)
        yield from reader.accept("}")
        if not several:
            return
        if not (yield from reader.accept(",")):
            break
    yield from reader.accept("]")
