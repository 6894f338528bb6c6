"""Which features there are, and which of them are switched on."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynamod.message.errors import UserError

from .component import Component
from .feature import ConfigKey, Feature

if TYPE_CHECKING:
    from dynamod.message.discovery import Capabilities

    from .command import CommandHandler

T = TypeVar("T")

VARIABLE = "DYNAMOD_FEATURES"
"""Features to switch off: names with a minus, separated by commas; `none` switches all off."""

SEE = "see dynamo features"

FOLDER = Path(__file__).parents[1] / "features"


@cache
def installed() -> Mapping[str, Feature]:
    """The features whose folders are there, by name."""
    names = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
    found: list[Feature] = [import_module(f"dynamod.features.{name}").FEATURE for name in names]
    return {feature.name: feature for feature in found}


def why_off(features: Mapping[str, Feature], text: str) -> dict[str, str]:
    """For each feature the reason why the feature is off, "" for a feature that is on.

    `text`: the value of DYNAMOD_FEATURES. Raises UserError for an unknown name and for a name without a minus.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word != "none" and word.removeprefix("-") not in features:
            raise UserError(f"{VARIABLE} names '{word}'", f"known features: {', '.join(features) or 'none'}")
        if word != "none" and not word.startswith("-"):
            raise UserError(f"{VARIABLE} has '{word}'", f"-{word} switches it off; all features are on without it")
    off = dict.fromkeys(features, "")
    for name in features if "none" in words else [word.removeprefix("-") for word in words]:
        off[name] = f"switched off by {VARIABLE}"
    while more := {name: why for name in features if not off[name] and (why := _lacks(features[name], off))}:
        off |= more
    return off


def _lacks(feature: Feature, off: Mapping[str, str]) -> str:
    """Why a feature cannot be on, by the features that it requires; "" when it can."""
    for name in feature.requires:
        if off.get(name, "absent"):
            return f"requires {name}, which is off" if name in off else f"requires {name}, which is not installed"
    return ""


def enabled() -> Sequence[Feature]:
    """The features that are on. Raises UserError for a wrong DYNAMOD_FEATURES."""
    features = installed()
    off = why_off(features, os.environ.get(VARIABLE, ""))
    return [feature for name, feature in features.items() if not off[name]]


def disabled() -> Mapping[str, str]:
    """Why features are off, by name. Raises UserError for a wrong DYNAMOD_FEATURES."""
    return {name: why for name, why in why_off(installed(), os.environ.get(VARIABLE, "")).items() if why}


def require(name: str, what: str) -> None:
    """Raise UserError when the feature is off or absent. `what` needs it: a flag, for instance."""
    if name not in installed():
        raise UserError(f"{what} needs the feature '{name}', which is not installed", SEE)
    if why := disabled().get(name, ""):
        raise UserError(f"{what} needs the feature '{name}', which is off: {why}", SEE)


def extensions(name: str) -> Sequence[Any]:
    """What features that are on add to the feature of this name."""
    return [feature.extends[name]() for feature in enabled() if name in feature.extends]


def overlap_sources() -> Sequence[Callable[[Any], Any]]:
    """What makes the overlap sources of a router (`router.overlap.MakeSource`), of features that are on."""
    return [feature.overlaps() for feature in enabled() if feature.overlaps is not None]


def component(kind: str) -> Component | None:
    """The kind of component that a feature adds under this name; None when no feature has it.

    Raises UserError when the feature is off.
    """
    return _owned(kind, lambda feature: feature.components, f"the component kind '{kind}'")


def declared(kind: str) -> Component | None:
    """As `component`, also where the feature is off."""
    return next((one.components[kind] for one in installed().values() if kind in one.components), None)


def explanation(word: str) -> Callable[[str | None, Any], None] | None:
    """What prints `dynamo explain WORD`, as a feature adds it; None when no feature does.

    Raises UserError when the feature is off.
    """
    made = _owned(word, lambda feature: feature.explains, f"`dynamo explain {word}`")
    return made() if made is not None else None


def everywhere(word: str) -> Callable[[str | None, Any], int]:
    """What runs `dynamo WORD --all`, of the feature that asks all nodes.

    Raises UserError when the feature is off, or none is installed.
    """
    made = _owned(word, lambda feature: feature.everywhere, f"`dynamo {word} --all`")
    if made is None:
        raise UserError(f"`dynamo {word} --all` needs a feature that asks all nodes, and none is installed", SEE)
    return made()


def discovery(word: str) -> Callable[[Mapping[str, str]], Any]:
    """What makes the store of all nodes of this name (`discovery.backend.Backend`), of the environment.

    Raises UserError when no feature has it, or the feature is off.
    """
    made = _owned(word, lambda feature: feature.discovery, f"the store '{word}'")
    if made is None:
        known = ", ".join(sorted({"etcd", *(one for feature in enabled() for one in feature.discovery)}))
        raise UserError(f"DYNAMOD_DISCOVERY is {word!r}", f"known: {known}")
    return made()


def daemon_parts() -> Mapping[str, Any]:
    """By feature that is on: the class of what the feature keeps in each daemon (`daemon.parts.DaemonPart`).

    Raises UserError for a wrong DYNAMOD_FEATURES.
    """
    return {feature.name: feature.daemon() for feature in enabled() if feature.daemon is not None}


def signer(said: Mapping[str, Any], before: Any) -> Any:
    """What signs for a process (`transport.signing.Signer`), by what parts of features in the daemon say; or None.

    `before`: the last one. Raises UserError for a wrong DYNAMOD_FEATURES.
    """
    if not said:
        return None
    makes = [(feature.signer, said[feature.name]) for feature in enabled() if feature.signer and feature.name in said]
    return makes[0][0]()(makes[0][1], before) if makes else None


def config_keys() -> Mapping[str, ConfigKey]:
    """The keys at the top of a config file that features add, also where they are off."""
    return {key: one for feature in installed().values() for key, one in feature.config_keys.items()}


def run_models() -> Callable[[Any], Any]:
    """What makes the graph of `dynamo-run` with several models, also where its feature is off.

    Raises UserError where no feature does.
    """
    for feature in installed().values():
        if feature.run_models is not None:
            return feature.run_models
    raise UserError("several models need a feature that loads models on demand, and none is installed", "give one")


def inputs() -> list[str]:
    """The inputs of `dynamo-run` that features add, as `--help` writes them."""
    return [form for feature in installed().values() for form in feature.inputs]


def run_input(given: str) -> Callable[[Any], Any] | None:
    """What starts an input of `dynamo-run`; None where no feature adds the input.

    Raises UserError when the feature is off.
    """

    def starts(feature: Feature) -> Mapping[str, Callable[[Any], Any]]:
        return {"".join(form.partition(":")[:2]): start for form, start in feature.inputs.items()}

    word = "".join(given.partition(":")[:2])
    return _owned(word, starts, f"in={word}")


def control(name: str) -> "CommandHandler[Any, Any] | None":
    """What answers a command of the control socket that a feature adds; None when no feature adds it.

    Raises UserError when the feature is off.
    """

    def handlers(feature: Feature) -> "Mapping[str, CommandHandler[Any, Any]]":
        return {handler.command.name: handler for handler in feature.controls()}

    return _owned(name, handlers, f"the command '{name}'")


def require_role(role: str) -> None:
    """Raise UserError for a role of workers that no feature gives them, or whose feature is off."""
    if _owned(role, lambda feature: dict.fromkeys(feature.roles, True), f"the role '{role}'") is None:
        raise UserError(f"there is no role '{role}' for workers", SEE)


def helper_roles() -> Mapping[str, str]:
    """The `Feature.helpers` of all features, on and off: workers of other nodes may have such a role."""
    return {role: needs for feature in installed().values() for role, needs in feature.helpers.items()}


def helpers_of(capabilities: "Capabilities") -> list[str]:
    """Roles of the workers without which an engine with these capabilities serves no request."""
    return [role for role, needs in helper_roles().items() if getattr(capabilities, needs)]


def pool_of(role: str) -> str:
    """The pool of workers with a role: the role itself for helpers, the pool of ordinary workers for all others."""
    return role if role in helper_roles() else ""


def block_stores(what: str) -> Any:
    """The `kvcache.store.BlockStores` of the first feature that is on and has some. `what` needs them: a setting.

    Raises UserError where no feature that is on has any; it names one that is off.
    """
    found = {name: feature.block_stores for name, feature in installed().items() if feature.block_stores is not None}
    off = disabled()
    for name, made in found.items():
        if name not in off:
            return made()
    for name in found:
        raise UserError(f"{what} belongs to the feature '{name}', which is off: {off[name]}", SEE)
    raise UserError(f"{what} needs a feature that keeps KV blocks, and none is installed", SEE)


def _owned(key: str, given: Callable[[Feature], Mapping[str, T]], what: str) -> T | None:
    for name, feature in installed().items():
        if key in given(feature):
            if why := disabled().get(name, ""):
                raise UserError(f"{what} belongs to the feature '{name}', which is off: {why}", SEE)
            return given(feature)[key]
    return None
