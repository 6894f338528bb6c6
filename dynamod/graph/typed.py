"""Validation of data against the model that code declares: a pydantic model, a msgspec struct or a dataclass.

The components that ship declare structs: a pydantic model would cost each of their processes 12 MB and 0.1 s.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec

from dynamod.extension.settings import extended
from dynamod.message.errors import UserError
from dynamod.message.hints import in_words, known_hint, names, refusal

Path = tuple[str, ...]
Fail = Callable[[Path, str, str], UserError]


class Invalid(ValueError):
    """The first thing wrong with a value: where, what, and the name of a field that is missing there, if one is."""

    def __init__(self, path: Path, problem: str, missing: str = "") -> None:
        super().__init__(problem)
        self.path, self.missing = path, missing


def converted(model: Any, value: Any, *, strict: bool = True) -> Any:
    """`value` as an instance of `model`. Raises Invalid. `strict`: text is no number (of structs; pydantic decides)."""
    if hasattr(model, "model_validate"):
        return _pydantic(model, value)
    try:
        return msgspec.convert(value, model, strict=strict)
    except msgspec.ValidationError as error:
        place, sentence, missing = refusal(error)
        path = tuple(place.split(".")) if place else ()
        if missing:
            raise Invalid(path, f"'{missing}' is missing", missing) from None
        raise Invalid(path, in_words(sentence, value.get(place) if isinstance(value, Mapping) else None)) from None


def _pydantic(model: Any, value: Any) -> Any:
    from pydantic import ValidationError

    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
    path, given, more = tuple(map(str, first["loc"])), first["input"], f" (and {len(others)} more)" if others else ""
    if first["type"] == "missing":
        raise Invalid(path[:-1], f"'{path[-1]}' is missing{more}", path[-1])
    shown = "" if isinstance(given, dict | list) else f", got {given!r}"
    said = first["msg"].replace("Input should be", "expected").partition(", unable to ")[0]
    raise Invalid(path, said + shown + more)


def validate(model: type, config: Mapping[str, Any], service: str, failing: Fail | None = None) -> Any:
    """An instance of `model` from a section of a config, or the one UserError of the first thing wrong.

    Keys may be spelled with `-` or `_`. A key the model does not know is an error unless it has `extra="allow"`; a
    class method `belongs(key, config)` of the model may say where it belongs, else it returns nothing. In a struct
    null stands for the default of a field that cannot be null. `failing(path, problem, hint)` makes the error, so that
    the caller can add file and line.
    """

    def plain(path: Path, problem: str, hint: str) -> UserError:
        return UserError(f"{'.'.join((service, *path))}: {problem}", hint)

    fail, model = failing or plain, extended(model)
    values = _normal(model, config, (), fail)
    if _is_struct(model):
        types = get_type_hints(model)
        hints = {field.encode_name: types[field.name] for field in msgspec.structs.fields(model)}
        values = {key: one for key, one in values.items() if one is not None or NoneType in get_args(hints[key])}
    try:
        return converted(model, values, strict=False)
    except UserError as error:  # fields that do not fit together
        raise fail((), str(error), error.hint) from None
    except Invalid as error:
        keys = f"known keys: {names(field_names(_model_at(model, error.path)))}" if error.missing else ""
        raise fail(error.path, str(error), keys or _choices(model, error.path)) from None


def _choices(model: type, path: Path) -> str:
    """The words that a field takes, where it takes nothing else."""
    if not path or not _is_struct(parent := _model_at(model, path[:-1])):
        return ""
    hint = get_type_hints(parent).get(path[-1])
    kinds = [hint, *get_args(hint)]
    words = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return f"one of {', '.join(map(str, words))}" if words else ""


def given(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a section says, keys with `_`; what the environment says where the section is silent or null."""
    said = {key.replace("-", "_"): value for key, value in config.items()}
    return said | {key: value for key, value in environment.items() if said.get(key) is None}


def field_names(model: type) -> dict[str, Any]:
    """Keys of a model as a config file spells them, with their types."""
    if _is_struct(model):
        return {field.encode_name: field.type for field in msgspec.structs.fields(model)}
    fields = cast("Any", model).model_fields
    return {str(field.validation_alias or field.alias or name): field.annotation for name, field in fields.items()}


def model_schema(model: Any, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """JSON schema of a model, and of the models below it by name. `ref`: how they are referred to, with `{name}`."""
    if _is_struct(model):
        model = extended(model)
        _, found = msgspec.json.schema_components([model], ref_template=ref)
        body = found.pop(model.__name__)
    else:
        body = model.model_json_schema(ref_template=ref.replace("{name}", "{model}"))
        found = body.pop("$defs", {})
    for one in (body, *found.values()):
        if "description" in one:  # Python 3.13 takes the indentation out of docstrings, others leave it
            one["description"] = inspect.cleandoc(one["description"])
    return body, found


def _is_struct(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, msgspec.Struct)


def _nested(annotation: Any) -> Iterator[type]:
    """Models that are the annotation itself or one arm of its union."""
    if isinstance(annotation, type) and (hasattr(annotation, "model_validate") or _is_struct(annotation)):
        yield annotation
    for arm in getattr(annotation, "__args__", ()):
        yield from _nested(arm)


def _normal(model: type, config: Mapping[str, Any], path: Path, fail: Fail) -> dict[str, Any]:
    """Keys as the model spells them, all known."""
    known, pydantic = field_names(model), None if _is_struct(model) else cast("Any", model)
    spelled = {name.replace("-", "_"): name for name in (*(pydantic.model_fields if pydantic else ()), *known)}
    loose = pydantic is not None and pydantic.model_config.get("extra") == "allow"
    normal: dict[str, Any] = {}
    for key, value in config.items():
        name = key if key in known else spelled.get(key.replace("-", "_"), key if loose else "")
        if not name:
            belongs: Callable[[str, Mapping[str, Any]], str] = getattr(model, "belongs", lambda _key, _config: "")
            raise fail((*path, key), "unknown key", belongs(key, config) or known_hint(key, known))
        if name in normal:
            raise fail((*path, key), f"given twice, as '{key}' and with the other of '-' and '_'", "")
        inner = next(_nested(known.get(name)), None)
        if inner is not None and isinstance(value, Mapping):
            value = _normal(inner, cast("Mapping[str, Any]", value), (*path, key), fail)
        normal[name] = value
    return normal


def _model_at(model: type, path: Path) -> type:
    for part in path:
        inner = next(_nested(field_names(model).get(part)), None)
        if inner is None:
            break
        model = inner
    return model
