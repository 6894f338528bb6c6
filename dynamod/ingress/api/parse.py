"""A body becomes a request: JSON, types, unknown fields. What the values mean is checked in `validate`."""

import re
from typing import Generic, TypeVar

import msgspec

from dynamod.message.errors import BadRequest

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at `(\$|key in \$)([^`]*)`$")
_FIELD = re.compile(r"^Object missing required field `([^`]*)`")
_UNKNOWN = "Object contains unknown field `"
_BROKEN = (UnicodeDecodeError, RecursionError)


class Parser(Generic[T]):
    """Decodes the bodies of one route. Strict first: the usual request costs one pass."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def parse(self, body: bytes, reject_unknown: bool = False) -> tuple[T, int]:
        """The request and how many fields nobody knows. Raises BadRequest, with `param` where one is to blame."""
        try:
            return self._decoder.decode(body), 0
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN):
                raise _explain(error) from error
        except (msgspec.DecodeError, *_BROKEN) as error:
            raise _not_json(body, error) from error
        return self._without_unknown(body, reject_unknown)

    def _without_unknown(self, body: bytes, reject: bool) -> tuple[T, int]:
        try:
            check_json(body)
            fields = self._raw.decode(body)
            unknown = [name for name in fields if name not in self._known]
            if reject:
                names = ", ".join(unknown[:8])
                raise BadRequest(f"unknown field: {names}", param=unknown[0], code="unknown_parameter")
            for name in unknown:
                del fields[name]
            return self._decoder.decode(msgspec.json.encode(fields)), len(unknown)
        except msgspec.ValidationError as error:
            raise _explain(error) from error
        except (msgspec.DecodeError, *_BROKEN) as error:
            raise _not_json(body, error) from error


def check_json(body: bytes) -> None:
    """Raise BadRequest unless every corner of the body is good JSON, also those that no struct reads.

    For bodies that travel on as they are (text engines) and for those with unknown fields.
    """
    try:
        msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(error) from error
    except (msgspec.DecodeError, *_BROKEN) as error:
        raise _not_json(body, error) from error


def _explain(error: msgspec.ValidationError) -> BadRequest:
    message = str(error)
    found = _PATH.search(message)
    path = found[2].lstrip(".") if found else ""
    text = message[: found.start()] if found else message
    if missing := _FIELD.match(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return BadRequest(f"`{path}` is required", param=path, code="missing_required_parameter")
    text = text[:1].lower() + text[1:].replace("`", "")
    if not path:
        return BadRequest(f"the body must be a JSON object with the request's fields: {text}")
    param = path.split("[...]", 1)[0]
    return BadRequest(f"`{path}`: {text}", param=param, code="invalid_type")


def _not_json(body: bytes, error: Exception) -> BadRequest:
    if not body.strip():
        return BadRequest("the body is empty; send a JSON object", code="invalid_json")
    if isinstance(error, RecursionError):
        return BadRequest("the JSON is nested too deeply", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return BadRequest("the body is not valid UTF-8", code="invalid_json")
    return BadRequest(f"the body is not valid JSON: {error}", code="invalid_json")
