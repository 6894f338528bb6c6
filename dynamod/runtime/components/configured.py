"""Cards of models as the settings of their workers say, before any worker says more."""

import asyncio

import msgspec

from dynamod.engine.lora import adapters_of
from dynamod.engine.names import served_types
from dynamod.graph.service_config import COMMON, merge_common
from dynamod.graph.typed import validate
from dynamod.message.discovery import ModelCard
from dynamod.preprocess.card import read_card
from dynamod.preprocess.fetch import fetch
from dynamod.preprocess.override import template_text, with_template
from dynamod.preprocess.reference import model_name
from dynamod.runtime.context import ComponentContext
from dynamod.worker.settings import WorkerSettings


async def configured_card(ctx: ComponentContext, component: str, name: str = "") -> ModelCard:
    """What is known of the model of a component of our graph: an engine may take text where we have a tokenizer.

    Its adapters have no digests. `name`: default: as its workers would say. Raises UserError, OSError for a model that
    cannot be read.
    """
    config = ctx.process_context.plan.config
    section = merge_common(config.get(COMMON) or {}, config.get(component) or {})
    worker: WorkerSettings = validate(WorkerSettings, section, component)
    length, name = worker.context_length, name or worker.served_model_name
    types = served_types(worker.name, worker.arguments)
    if not worker.entry.model:
        length = length or 0
        return ModelCard(name or worker.name, "text", types, engine=worker.name, context_length=length)
    path = await fetch(worker.model_config or worker.model, weights=False)
    name = name or model_name(worker.model, path)
    if worker.chat_template:
        path = await asyncio.to_thread(with_template, path, template_text(worker.chat_template))
    card = await asyncio.to_thread(read_card, path, name=name, context_length=length, engine=worker.name, types=types)
    return msgspec.structs.replace(card, adapters=adapters_of(worker.lora, name))
