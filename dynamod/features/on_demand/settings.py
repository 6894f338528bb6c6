"""What an operator says of models that are loaded on demand: the entries of `models:` and the `budget:`."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.graph.typed import validate
from dynamod.ingress.settings import ProcessorSettings
from dynamod.message.errors import UserError
from dynamod.observe.memory import size

_UNITS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. `component`: whose replicas go from 0 to 1 and back."""

    component: str
    ttl: Annotated[
        float | str | None, Meta(description="seconds without a request until it is unloaded, or like 5m; null: never")
    ] = None
    load_timeout: Annotated[
        float | str, Meta(description="seconds that a load may take until it is given up, or like 30m")
    ] = 1800.0
    preload: Annotated[bool, Meta(description="loaded at the start, if it fits")] = False
    aliases: Annotated[tuple[str, ...], Meta(description="other names that it answers to")] = ()
    concurrency: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="requests at once; others wait. null: as its worker takes them"),
    ] = None
    memory: Annotated[
        int | str,
        Meta(description="bytes that it takes when it is loaded, or like 4.5GiB; 0: its files, then what is measured"),
    ] = 0
    groups: Annotated[
        tuple[str, ...], Meta(description="models that share no group are never loaded together; none: with all")
    ] = ()

    workload: Annotated[
        str,
        Meta(description="workload of a cluster that is scaled, like statefulset/NAME; empty: processes of the daemon"),
    ] = ""

    @property
    def seconds(self) -> float | None:
        """The `ttl`; None: forever."""
        return None if self.ttl is None else duration(self.ttl)

    @property
    def load_seconds(self) -> float:
        """The `load_timeout`."""
        return duration(self.load_timeout)

    @property
    def bytes(self) -> int:
        """The `memory`."""
        return size(self.memory)


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be loaded at once."""

    models: Annotated[int | None, Meta(description="models that may be loaded at once; null: any number")] = None
    memory: Annotated[
        int | str | None, Meta(description="bytes for all that are loaded, or like 16GiB; null: no limit")
    ] = None
    patience: Annotated[
        float,
        Meta(
            ge=0,
            description="seconds that a request waits while loaded models stay busy; then new requests for one "
            "of them wait for it",
        ),
    ] = 5.0

    @property
    def bytes(self) -> int | None:
        """The `memory`; None: no limit."""
        return None if self.memory is None else size(self.memory)


class OnDemandSettings(ProcessorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A processor of models that are loaded on demand. Both keys stand at the top of a config file."""

    models: Annotated[dict[str, dict[str, Any]], Meta(description="settings by model")] = msgspec.field(
        default_factory=dict[str, dict[str, Any]]
    )
    budget: Annotated[dict[str, Any], Meta(description="what may be loaded at once")] = msgspec.field(
        default_factory=dict[str, Any]
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.read()

    def read(self) -> tuple[dict[str, ModelSettings], Budget]:
        """Models by name, and the budget. Raises UserError that names the key."""
        models = models_of(self.models)
        return models, budget_of(self.budget, models)


def duration(value: float | str) -> float:
    """Seconds of a number, or of text like `300`, `5m` or `1h30m`. Raises ValueError."""
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    sign, parts = (-1, text[1:]) if text.startswith("-") else (1, text)
    found = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", parts)
    if not found or "".join(number + unit for number, unit in found) != parts:
        raise ValueError(f"{value!r} is no time; write seconds, or like 30s, 5m or 1h30m")
    return sign * sum(float(number) * _UNITS[unit] for number, unit in found)


def models_of(data: Mapping[str, Any]) -> dict[str, ModelSettings]:
    """The entries of `models:`, checked each and together. Raises UserError that names the key."""
    found: dict[str, ModelSettings] = {}
    for name, entry in data.items():
        if not isinstance(entry, Mapping):
            raise UserError(f"models.{name}: expected a mapping", "give at least its engine or model")
        found[name] = validate(ModelSettings, entry, f"models.{name}")
    taken = dict.fromkeys(found, "the name of a model")
    for name, model in found.items():
        where = f"models.{name}"
        _check(f"{where}.ttl", lambda: model.seconds, "seconds, 0 or more; null: it stays loaded")  # noqa: B023
        _check(f"{where}.load_timeout", lambda: model.load_seconds, "seconds above 0")  # noqa: B023
        _check(f"{where}.memory", lambda: model.bytes, "bytes, 0 or more")  # noqa: B023
        if not model.load_seconds:
            raise UserError(f"{where}.load_timeout is 0", "seconds above 0")
        for alias in model.aliases:
            if not alias or alias in taken:
                what = f"'{alias}' is {taken[alias]} already" if alias else "an alias is empty"
                raise UserError(f"{where}.aliases: {what}", "each name means one model")
            taken[alias] = f"an alias of '{name}'"
    return found


def budget_of(data: Mapping[str, Any], models: Mapping[str, ModelSettings]) -> Budget:
    """The `budget:`, checked against the models. Raises UserError that names the key."""
    budget: Budget = validate(Budget, data, "budget")
    if budget.models is not None and budget.models < 1:
        raise UserError(f"budget.models is {budget.models}", "at least 1, else no model could be loaded")
    _check("budget.memory", lambda: budget.bytes, "bytes, or like 16GiB")
    if (limit := budget.bytes) is not None:
        for name, model in models.items():
            if model.bytes > limit:
                problem = f"budget.memory is {limit} bytes, below the {model.bytes} of models.{name}.memory"
                raise UserError(problem, "raise it, or take the model out")
    if (most := budget.models) is not None and sum(model.preload for model in models.values()) > most:
        raise UserError(f"budget.models is {most}, below the models with preload", "preload fewer")
    return budget


def names_of(models: Mapping[str, ModelSettings]) -> dict[str, str]:
    """Each name that clients may use, with the name of its model."""
    aliases = {alias: name for name, model in models.items() for alias in model.aliases}
    return {name: name for name in models} | aliases


def together(models: Iterable[ModelSettings]) -> bool:
    """Whether the groups allow that all of them are loaded at once."""
    grouped = [set(model.groups) for model in models if model.groups]
    return all(one & other for index, one in enumerate(grouped) for other in grouped[:index])


def _check(key: str, value: Callable[[], float | None], hint: str) -> None:
    try:
        number = value()
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None
    if number is not None and number < 0:
        raise UserError(f"{key} is {number:g}", hint)
