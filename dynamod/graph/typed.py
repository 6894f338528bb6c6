"""Validation of a section against the pydantic model its service declares."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint

Path = tuple[str, ...]
Fail = Callable[[Path, str, str], UserError]


def validate(model: type, config: Mapping[str, Any], service: str, failing: Fail | None = None) -> Any:
    """An instance of `model`, or the one UserError of the first thing wrong.

    Keys may be spelled with `-` or `_`. A key the model does not know is an error unless it has `extra="allow"`.
    `failing(path, problem, hint)` makes the error, so that the caller can add file and line.
    """
    from pydantic import ValidationError

    def plain(path: Path, problem: str, hint: str) -> UserError:
        return UserError(f"{'.'.join((service, *path))}: {problem}", hint)

    fail = failing or plain

    normal = _normal(model, config, (), fail)
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
    fields = cast("Any", model).model_fields
    return {str(field.validation_alias or field.alias or name): field.annotation for name, field in fields.items()}


def nested_models(annotation: Any) -> Iterator[type]:
    """Models that are the annotation itself or one arm of its union."""
    from pydantic import BaseModel

    for arm in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(arm, type) and not hasattr(arm, "__origin__") and issubclass(arm, BaseModel):
            yield arm


def _normal(model: type, config: Mapping[str, Any], path: Path, fail: Fail) -> dict[str, Any]:
    """Keys as the model spells them, all known."""
    known = field_names(model)
    spelled = {name.replace("-", "_"): name for name in [*cast("Any", model).model_fields, *known]}
    loose = cast("Any", model).model_config.get("extra") == "allow"
    normal: dict[str, Any] = {}
    for key, value in config.items():
        name = key if key in known else spelled.get(key.replace("-", "_"))
        if name is None and not loose:
            raise fail((*path, key), "unknown key", known_hint(key, known))
        name = name or key
        if name in normal:
            raise fail((*path, key), f"given twice, as '{key}' and with the other of '-' and '_'", "")
        inner = next(nested_models(known[name]), None) if name in known else None
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
