"""Members of `nvext` that features add to the requests of clients."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from dynamod.extension.installed import disabled, installed
from dynamod.extension.structs import derived
from dynamod.message.errors import BadRequest
from dynamod.message.openai import NvExt

R = TypeVar("R")


def extended(kind: type[R]) -> type[R]:
    """The struct of a request, whose `nvext` has what features add; `kind` itself where none does.

    A feature that is off adds its members, too, so that a request with one can be refused (`check_features`).
    """
    request: Any = kind
    structs = tuple(one.nvext for one in installed().values() if one.nvext is not None)
    has = any(field.name == "nvext" and field.type == NvExt | None for field in msgspec.structs.fields(request))
    return _extended(request, structs) if structs and has else kind


@cache
def _extended(kind: type[Any], structs: tuple[type[msgspec.Struct], ...]) -> type[Any]:
    return derived(kind, [("nvext", _nvext(structs) | None, None)])


@cache
def _nvext(structs: tuple[type[msgspec.Struct], ...]) -> Any:
    fields = (field for struct in structs for field in msgspec.structs.fields(struct))
    return derived(NvExt, [(field.name, field.type, None) for field in fields])


def members_off() -> frozenset[str]:
    """The members of `nvext` that belong to features which are off."""
    structs = [found for name in disabled() if (found := installed()[name].nvext) is not None]
    return frozenset(field for struct in structs for field in struct.__struct_fields__)


def check_features(nvext: msgspec.Struct) -> None:
    """A request has no member of `nvext` that belongs to a feature which is off. Raises BadRequest with the reason."""
    for name, why in disabled().items():
        struct = installed()[name].nvext
        for field in struct.__struct_fields__ if struct is not None else ():
            if getattr(nvext, field, None) is not None:
                text = f"`nvext.{field}` belongs to the feature '{name}', which is off: {why}"
                raise BadRequest(text, param=f"nvext.{field}", code="feature_off")
