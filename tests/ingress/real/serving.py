"""What tests of a real processor wait for."""

from typing import Any


async def ready(until: Any, house: Any, name: str = "sample") -> None:
    """Wait until requests may name the model."""
    await until(lambda: name in house.processor.cards)
