"""What users hand over, as plain data."""

from typing import Any

import msgspec

from dynamod.message.errors import UserError


def plain(value: Any) -> Any:
    """JSON-like data: pydantic models and structs become dicts, the rest stays. Raises UserError for anything else."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"cannot send {type(value).__name__} to another service: {error}") from None
