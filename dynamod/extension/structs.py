"""Structs with fields that features add."""

from collections.abc import Iterable
from typing import Any

import msgspec


def derived(kind: type[Any], fields: Iterable[tuple[str, Any, Any]]) -> type[Any]:
    """A subclass of a struct, with its name and settings and these fields: name, type and default of each."""
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        module=kind.__module__,
        namespace={"__doc__": kind.__doc__},
        frozen=config.frozen,
        kw_only=True,
        forbid_unknown_fields=config.forbid_unknown_fields,
    )
