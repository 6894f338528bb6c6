"""Validation of a section against the model its service declares: a pydantic model, or a msgspec struct.

The components that ship declare structs: a pydantic model would cost each of their processes 12 MB and 0.1 s.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

import msgspec

from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint

Path = tuple[str, ...]
Fail = Callable[[Path, str, str], UserError]
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")


def validate(model: type, config: Mapping[str, Any], service: str, failing: Fail | None = None) -> Any:
    """An instance of `model`, or the one UserError of the first thing wrong.

    Keys may be spelled with `-` or `_`. A key the model does not know is an error unless it has `extra="allow"`. In a
    struct null stands for the default of a field that cannot be null. `failing(path, problem, hint)` makes the error,
    so that the caller can add file and line.
    """

    def plain(path: Path, problem: str, hint: str) -> UserError:
        return UserError(f"{'.'.join((service, *path))}: {problem}", hint)

    fail = failing or plain
    normal = _normal(model, config, (), fail)
    if not _is_struct(model):
        return _pydantic(model, normal, fail)
    hints = get_type_hints(model)
    given = {key: value for key, value in normal.items() if value is not None or NoneType in get_args(hints[key])}
    try:
        return msgspec.convert(given, model, strict=False)
    except UserError as error:  # fields that do not fit together
        raise fail((), str(error), error.hint) from None
    except msgspec.ValidationError as error:
        text = str(error)
        where = _WHERE.search(text)
        path = tuple(where[1].split(".")) if where is not None else ()
        problem = text[: where.start()] if where is not None else text
        value = given.get(path[0]) if len(path) == 1 else None
        shown = f", got {value!r}" if value is not None and not isinstance(value, dict | list) else ""
        problem = problem[:1].lower() + problem[1:].partition(", got")[0].replace("`", "") + shown
        raise fail(path, problem, f"known keys: {', '.join(sorted(field_names(model)))}") from None


def given(config: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a section says, keys with `_`; what the environment says where the section is silent or null."""
    said = {key.replace("-", "_"): value for key, value in config.items()}
    return said | {key: value for key, value in environment.items() if said.get(key) is None}


def _pydantic(model: type, normal: Mapping[str, Any], fail: Fail) -> Any:
    from pydantic import ValidationError

    try:
        return cast("Any", model).model_validate(normal)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = problems[0]
        path = tuple(str(part) for part in first["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        given = (
            "" if first["type"] == "missing" or isinstance(first["input"], dict | list) else f", got {first['input']!r}"
        )
        if first["type"] == "missing":
            path, problem = path[:-1], f"'{path[-1]}' is missing"
        else:
            problem = first["msg"].replace("Input should be", "expected") + given
        owner = _model_at(model, path)
        raise fail(path, problem + more, f"known keys: {', '.join(sorted(field_names(owner)))}") from None


def field_names(model: type) -> dict[str, Any]:
    """Field annotations by the key a file uses: the alias where there is one."""
    if _is_struct(model):
        return {field.encode_name: field.type for field in msgspec.structs.fields(model)}
    fields = cast("Any", model).model_fields
    return {str(field.validation_alias or field.alias or name): field.annotation for name, field in fields.items()}


def model_schema(model: Any, ref: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """JSON schema of a model, and of the models below it by name. `ref`: how they are referred to, with `{name}`."""
    if _is_struct(model):
        _, found = msgspec.json.schema_components([model], ref_template=ref)
        body = found.pop(model.__name__)
    else:
        body = model.model_json_schema(ref_template=ref.replace("{name}", "{model}"))
        found = body.pop("$defs", {})
    return body, found


def _is_struct(model: type) -> bool:
    return isinstance(model, type) and issubclass(model, msgspec.Struct)


def nested_models(annotation: Any) -> Iterator[type]:
    """Pydantic models that are the annotation itself or one arm of its union."""
    from pydantic import BaseModel

    for arm in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(arm, type) and not hasattr(arm, "__origin__") and issubclass(arm, BaseModel):
            yield arm


def _normal(model: type, config: Mapping[str, Any], path: Path, fail: Fail) -> dict[str, Any]:
    """Keys as the model spells them, all known."""
    known = field_names(model)
    struct = _is_struct(model)
    names = known if struct else [*cast("Any", model).model_fields, *known]
    spelled = {name.replace("-", "_"): name for name in names}
    loose = not struct and cast("Any", model).model_config.get("extra") == "allow"
    normal: dict[str, Any] = {}
    for key, value in config.items():
        name = key if key in known else spelled.get(key.replace("-", "_"))
        if name is None and not loose:
            raise fail((*path, key), "unknown key", known_hint(key, known))
        name = name or key
        if name in normal:
            raise fail((*path, key), f"given twice, as '{key}' and with the other of '-' and '_'", "")
        inner = next(nested_models(known[name]), None) if name in known and not struct else None
        if inner is not None and isinstance(value, Mapping):
            value = _normal(inner, cast("Mapping[str, Any]", value), (*path, key), fail)
        normal[name] = value
    return normal


def _model_at(model: type, path: Path) -> type:
    for part in path:
        inner = next(nested_models(field_names(model).get(part)), None)
        if inner is None:
            break
        model = inner
    return model
