"""The card of an engine's model, from the options that all engines share."""

import asyncio
from typing import Any

from dynamod.message.discovery import ModelCard

from .base import EngineOptions


async def card_of(options: EngineOptions, **fields: Any) -> ModelCard:
    """Read the model's files in a thread. `fields` are further ones of `read_card`. Raises UserError."""
    from dynamod.preprocess.card import read_card  # not needed by engines without a model

    assert options.path is not None
    return await asyncio.to_thread(
        read_card,
        options.path,
        name=options.name,
        config=options.config_path,
        context_length=options.context_length,
        **fields,
    )
